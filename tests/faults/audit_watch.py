"""An audit hook that notes everything that a file must never cause."""

from __future__ import annotations

import os
import sys
from pathlib import Path

HARMLESS = {"object.__getattr__", "object.__setattr__", "object.__delattr__", "sys._getframe", "builtins.id"}
LISTING = {"open", "os.listdir", "os.scandir"}
WRITING = {
    "pathlib.Path.rglob",
    "tempfile.mkdtemp",
    "os.mkdir",
    "os.chmod",
    "os.rename",
    "os.rmdir",
    "os.remove",
    "shutil.rmtree",
}


class AuditWatch:
    """A list of what happened while it was armed and should not have, outside of some folders."""

    def __init__(self, *roots: Path):
        self.roots, self.armed, self.seen = [os.path.realpath(root) for root in roots], False, []
        sys.addaudithook(self)

    def __call__(self, event: str, arguments: tuple) -> None:
        if not self.armed or event in HARMLESS or self.is_pattern_trial(event, arguments):
            return
        if event in LISTING | WRITING:
            path = arguments[0]
            if isinstance(path, int) or self.is_inside(path):
                return
        self.seen.append(f"{event} {str(arguments)[:200]}")

    def is_pattern_trial(self, event: str, arguments: tuple) -> bool:
        """Return whether this starts our own process that tries an unknown regular expression."""
        return event == "subprocess.Popen" and arguments[0] == sys.executable and "try_pattern(" in arguments[1][2]

    def is_inside(self, path) -> bool:
        """Return whether a path lies in one of the folders."""
        full = os.path.realpath(os.fsdecode(path))
        return any(full == root or full.startswith(root + os.sep) for root in self.roots)
