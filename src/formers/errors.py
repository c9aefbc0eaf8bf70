"""The one family of errors: what went wrong, where, and what to do about it."""

import errno
import re

MAX_MESSAGE_LENGTH = 500  # characters of what and of fix
CONTINUE_ADVICE = ""  # what "formers: interrupted" is followed by, set by a command that can be continued
OUT_OF_MEMORY_PATTERN = re.compile(
    r"out of memory|can('t|not) allocate|not enough memory|bad_alloc|can't start new thread|unable to mmap", re.I
)


class Error(Exception):
    """What formers raises on bad input; the command line prints it as one line and exits with its code."""

    exit_code = 2

    def __init__(self, what: str, *, where: object = None, fix: str | None = None):
        self.what = to_printable_line(what[:MAX_MESSAGE_LENGTH])
        self.fix = None if fix is None else to_printable_line(fix[:MAX_MESSAGE_LENGTH])
        self.where = None if where is None else to_printable_line(str(where))
        super().__init__(self.what)

    def __str__(self) -> str:
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        if self.fix is None:
            return text
        copied = self.fix.startswith(("formers ", "formers.", "hub:", "pip "))  # what is to be typed keeps its case
        return f"{text}. {self.fix if copied else self.fix[:1].upper() + self.fix[1:]}"


class NonFinite(Error):
    """A model's answer holds NaN or infinity: its weights are damaged, or too large for their type."""

    exit_code = 3

    def __init__(self, what: str = "what it computes", *, where: object = None):
        fix = "its training diverged or its file is damaged: take an earlier checkpoint; if it is float16, try float32"
        super().__init__(f"the model's numbers are not finite ({what})", where=where, fix=fix)


class UnsupportedTask(Error):
    """A model has no head for the task that it is to learn."""


def is_disk_full(error: OSError) -> bool:
    """Return whether a write failed because the disk is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def advise_on_write(error: OSError, retry_advice: str = "try again") -> str:
    """Say what to do about a file that could not be written; `retry_advice` is how to continue afterwards."""
    if is_disk_full(error):
        return f"make room and {retry_advice}"
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
        return f"the folder was moved or deleted meanwhile: put it back and {retry_advice}, or begin anew elsewhere"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"check the permissions and {retry_advice}"
    if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
        return "something else was written there meanwhile: choose another place"
    if error.errno == errno.EFBIG:
        return f"raise the limit on the size of a file (ulimit -f) and {retry_advice}"
    if error.errno in (errno.EMFILE, errno.ENFILE):
        return f"raise the limit on open files (ulimit -n) and {retry_advice}"
    return f"check the disk and {retry_advice}"


def get_reason(error: Exception) -> str:
    """Say why the system refused something, without the number and the file name that str(error) has."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that memory has run out; torch has no type of its own for that on a CPU."""
    says_so = OUT_OF_MEMORY_PATTERN.search(str(error)) is not None
    is_refused = isinstance(error, OSError) and error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or is_refused or (isinstance(error, RuntimeError) and says_so)


def to_printable_line(text: str) -> str:
    """Make one line that any terminal can show: text from a hostile file may hold control or broken characters."""
    text = " ".join(text.split())
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
