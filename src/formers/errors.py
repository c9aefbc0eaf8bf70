"""The one family of errors: what went wrong, where, and what to do about it."""


class Error(Exception):
    """What formers raises on bad input; the command line prints it as one line and exits with code 2."""

    def __init__(self, what: str, *, where: object = None, fix: str | None = None):
        self.what, self.where, self.fix = what, None if where is None else str(where), fix
        super().__init__(what)

    def __str__(self) -> str:
        text = self.what if self.where is None else f"{self.where}: {self.what}"
        text = text if self.fix is None else f"{text}. {self.fix[:1].upper()}{self.fix[1:]}"
        return " ".join(text.split())
