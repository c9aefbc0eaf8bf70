"""The one family of errors: what went wrong, where, and what to do about it."""

LONGEST = 500  # characters of what and of fix


class Error(Exception):
    """What formers raises on bad input; the command line prints it as one line and exits with its code."""

    code = 2

    def __init__(self, what: str, *, where: object = None, fix: str | None = None):
        self.what, self.fix = plain(what[:LONGEST]), None if fix is None else plain(fix[:LONGEST])
        self.where = None if where is None else plain(str(where))
        super().__init__(self.what)

    def __str__(self) -> str:
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        if self.fix is None:
            return text
        copied = self.fix.startswith(("formers ", "hub:", "pip "))  # what is to be typed keeps its case
        return f"{text}. {self.fix if copied else self.fix[:1].upper() + self.fix[1:]}"


class NonFinite(Error):
    """A model's answer holds NaN or infinity: its weights are damaged, or too large for their type."""

    code = 3

    def __init__(self, what: str = "what it computes", *, where: object = None):
        fix = "its training diverged or its file is damaged: take an earlier checkpoint; if it is float16, try float32"
        super().__init__(f"the model's numbers are not finite ({what})", where=where, fix=fix)


def plain(text: str) -> str:
    """One line that any terminal can show: words out of a hostile file may hold control or broken characters."""
    text = " ".join(text.split())
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
