"""formers try NAME: experiments that show one idea each, with real numbers and a page."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter

from ..errors import Error
from ..experiments.registry import EXPERIMENTS, ExperimentEntry, find_experiment
from . import common
from .common import OverwriteFlag
from .terminal import SafeConsole, escape_line, print_table, show_progress

EXPERIMENT_HELP = """{help}.

Prints tables, and writes one HTML page with the pictures and what to look at. The page needs no network.

formers try {name}
{example}
formers try {name} --language ko --out page.html

Args:
    text: {text_help}
    file: {file_help}
    language: The language of the page and of the bundled text; by default that of your own text or file, or English.
    out: The page; formers-try-{name}.html by default, which is replaced; one that you name only with --overwrite.
    settings: What this experiment can be changed in.
"""
TEXT_FILE_HELP = "A text file of your own to train on, at least 20 lines; else the bundled corpus."
LIST_HELP = """Try an idea: experiments with real numbers and a page.

formers try
formers try --language ko
formers try attention-by-hand --text "The law of the land"
formers try masks --help
"""
LIST_END = (
    "formers try NAME runs one within a few minutes on two cores and writes a page; "
    "formers try NAME --help lists its settings.",
    "formers try 이름은 코어 두 개에서 몇 분 안에 실험 하나를 실행하고 페이지를 씁니다. "
    "formers try 이름 --help는 설정을 보여 줍니다.",
)
TextOption = Annotated[str | None, Parameter(allow_leading_hyphen=True)]
experiments = App(
    name="try", help=LIST_HELP, help_flags=[], version_flags=[],
)  # fmt: skip


@experiments.default
def try_experiment(
    *words: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="An experiment and its settings; none lists all.")
    ],
) -> object:
    """Run an experiment, or list them all."""
    if not words or words[0] in ("--help", "-h"):
        list_experiments("en")
        return None
    if words[0].partition("=")[0] == "--language":
        language = "=".join(words).partition("=")[2]
        if language not in ("en", "ko"):
            raise Error(f"there is no list in {language or 'this language'!r}", fix="give --language en or ko")
        list_experiments(language)
        return None
    return build_app(find_experiment(words[0]))(list(words[1:]), exit_on_error=False, print_error=False)


def list_experiments(language: str) -> None:
    """Print every experiment with one line about it."""
    at = ("en", "ko").index(language)
    print_table([(entry.name, entry.help[at]) for entry in EXPERIMENTS.values()], no_wrap=("",))
    SafeConsole(wrap=True).print(f"\n{LIST_END[at]}")


def build_app(entry: ExperimentEntry) -> App:
    """Build the command of one experiment, with its own settings as options."""
    app = App(
        name=f"formers try {entry.name}", help_format="plaintext", suppress_keyboard_interrupt=False, version_flags=[],
        default_parameter=Parameter(negative_bool=(), negative_iterable=(), negative_none=()),
    )  # fmt: skip
    app.default(build_command(entry))
    return app


def build_command(entry: ExperimentEntry) -> Callable[..., None]:
    """Build the function of one experiment's command."""
    module = entry.load()

    def run_experiment(
        *, text: TextOption = None, file: Path | None = None, language: Literal["en", "ko"] | None = None,
        out: Path | None = None, overwrite: OverwriteFlag = False, settings: Any = None,  # dynamic: of its own class
    ) -> None:  # fmt: skip
        from ..atomic_files import write_atomically
        from ..experiments.page import Page, check_settings
        from ..text.normalise import normalise

        where = Path(f"formers-try-{entry.name}.html") if out is None else out
        if where.suffix != ".html":
            raise Error(f"a page is not written as {where.suffix or 'this'}", where=where, fix="name it page.html")
        for option, value, is_taken in (("text", text, entry.takes_text), ("file", file, entry.takes_file)):
            if value is not None and not is_taken:
                raise Error(f"{entry.name} reads no --{option}", fix=f"leave it out; formers try {entry.name} --help")
        if text is not None and not normalise(text).strip():
            raise Error("--text is empty", fix="give a sentence, or leave --text out for a usual one")
        common.check_output_file(where, overwrite or out is None)
        settings = module.Settings() if settings is None else settings
        check_settings(settings)
        documents = None if file is None else [read_own_file(file, entry)]
        language = language or choose_language(text, documents)
        with show_progress(SafeConsole(stderr=True), entry.name, delay_seconds=1) as tell, common.summarise_warnings():
            page = Page(language, text, documents, tell)
            module.run(page, settings)
        command = describe_command(entry.name, text, file, language, settings, out)
        write_atomically(where, page.render(entry, module.EXPLANATION, command))  # before a closed pipe can end this
        for block in page.tables:
            print_table(block.rows, block.head, caption=block.title)
            SafeConsole().print("")
        console = SafeConsole(wrap=True)
        for note in page.notes:
            console.print(f"{note}\n")
        for number, pair in enumerate(module.EXPLANATION, 1):
            console.print(f"{number}. {page.localise(*pair)}")
        console.print(f"\n{escape_line(where)}: {page.localise('open it in a browser', '브라우저로 여십시오')}")

    for option, kind, is_taken in (("text", TextOption, entry.takes_text), ("file", Path | None, entry.takes_file)):
        run_experiment.__annotations__[option] = Annotated[kind, Parameter(show=is_taken)]
    run_experiment.__annotations__["settings"] = Annotated[module.Settings | None, Parameter(name="*")]
    title = entry.help[0][0].upper() + entry.help[0][1:]
    rows = f"A file of your own with lines of {entry.file_rows}; else sentences made by templates."
    file_help = rows if entry.file_rows else TEXT_FILE_HELP
    run_experiment.__doc__ = EXPERIMENT_HELP.format(
        help=title, name=entry.name, example=entry.example, file_help=file_help, text_help=entry.text_help
    )
    return run_experiment


def read_own_file(file: Path, entry: ExperimentEntry) -> str:
    """Read the user's file: of rows every line as it stands, whatever the file is called; else its text."""
    from ..data.readers import check_readable, read_text

    if entry.file_rows and str(file) != "-":
        return read_text(check_readable(file))
    return common.read_whole_text(file, common.TextFileOptions())


def describe_command(
    name: str, text: str | None, file: Path | None, language: str, settings: Any,  # dynamic: of its own class
    out: Path | None = None,
) -> str:  # fmt: skip
    """Return the command that makes the same page again, with all that differs from the defaults."""
    words = ["formers", "try", name]
    for option, value in (("text", text), ("file", file), ("language", language if language != "en" else None)):
        words += [] if value is None else [f"--{option}", str(value)]
    for field in dataclasses.fields(settings):
        value = getattr(settings, field.name)  # dynamic: the settings of the experiment
        if value != field.default:
            several = value if isinstance(value, tuple) else (value,)
            words += [word for one in several for word in (f"--{field.name.replace('_', '-')}", str(one))]
    words += [] if out is None else ["--out", str(out), "--overwrite"]
    return " ".join(quote(word) for word in words)


def choose_language(text: str | None, documents: list[str] | None) -> Literal["en", "ko"]:
    """Return Korean where there is Hangul in the user's text."""
    from ..inspection.objective_steps import has_hangul

    return "ko" if has_hangul([*([text] if text else []), *(documents or [])]) else "en"
