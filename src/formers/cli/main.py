"""formers: the command. The files of the verbs import nothing heavy before they run, so that help answers at once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NoReturn, get_args, get_origin

from cyclopts import (
    App,
    Argument,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)
from rich.text import Text

from .. import __version__, errors
from ..errors import Error, is_out_of_memory
from ..option_aliases import COMMAND_NAME_HINTS, DO_SAMPLE, SYNONYM_NOTES, explain_option, resolve_option
from .about import doctor, models, recipes, tree
from .common import find_nearest, make_option_error, rewrite_as_options
from .compare import compare
from .convert import export, import_checkpoint
from .demo import demo
from .embed import embed, neighbours
from .experiments import experiments
from .finetune import finetune
from .generate import augment, fill, generate, summarise, translate
from .inspect import inspect
from .predict import answer, choose, classify, evaluate, score, synthetic, tag
from .pretrain import pretrain
from .runs import report, rerun, resume, runs
from .serve import serve
from .show import show
from .terminal import SafeConsole, escape_line, escape_unencodable
from .tokenizer import prepare, tokenizer

VALUE_KINDS: dict[type | None, str] = {int: "a whole number", float: "a number", bool: "true or false"}
LONG_ARGUMENT = {"long": "long_texts"}  # what classify and its like call the setting of fine-tuning


def format_default(value: object) -> str | None:
    """Return the default that help shows; an option that is off or has none shows nothing."""
    return None if value is None or value is False or value == () else str(value)


app = App(
    name="formers", help="The whole family of pretrained language models in one library. Begin with: formers demo",
    version=f"formers {__version__}", help_format="plaintext", suppress_keyboard_interrupt=False,
    # --no-OPTION and --empty-OPTION exist only where they mean something, by an option's own `negative`
    default_parameter=Parameter(negative_bool=(), negative_iterable=(), negative_none=(), show_default=format_default),
)  # fmt: skip
for _command in (
    demo, tree, models, recipes, export, prepare, pretrain, finetune, compare, classify, score, tag, answer, choose,
    augment, evaluate, synthetic, runs, report, rerun, generate, translate, summarise, fill, show, inspect, embed,
    neighbours, serve,
    doctor, tokenizer,
):  # fmt: skip
    app.command(_command)
app.command(import_checkpoint, name="import")
app.command(experiments)
app.command(resume, show=False)
app.command(neighbours, name="neighbors", show=False)
app.command(summarise, name="summarize", show=False)


def rewrite_message(text: str, arguments: list[str] | None) -> str:
    """Name options where a message names arguments of Python, by what the command that was typed takes."""
    if rewrite_as_options(text) == text:
        return text
    chain, apps, _ = app.parse_commands(arguments)
    known = [name for one in apps[-1].assemble_argument_collection() for name in one.names]
    if chain[:1] != ("finetune",):
        return rewrite_as_options(text, known)
    from ..training.config_merge import TuneConfig

    return rewrite_as_options(text, known, {name: name for name in TuneConfig.__dataclass_fields__} | LONG_ARGUMENT)


def run_command(arguments: list[str]) -> object:
    """Parse and run a command; an option of another library is replaced by ours, or is an error that names ours."""
    try:
        return app(arguments, exit_on_error=False, print_error=False)
    except (UnknownOptionError, MissingArgumentError):
        changed = translate_options(arguments)
        if changed == arguments:
            raise
    return run_command(changed)


def translate_options(arguments: list[str]) -> list[str]:
    """Replace synonyms among the options of a command that could not be parsed by the options that it has."""
    _, apps, rest = app.parse_commands(arguments)
    known = [name for one in apps[-1].assemble_argument_collection() for name in one.names]
    words, at = list(arguments), len(arguments) - len(rest)
    while at < len(words) and words[at] != "--":
        option, equal, value = words[at].partition("=")
        at += 1
        if not option.startswith("--") or option.replace("_", "-") in known:
            continue
        if option.replace("-", "_") == f"__{DO_SAMPLE}" and "--temperature" in known:
            if not equal:
                value = words.pop(at) if at < len(words) and words[at].lower() in ("true", "false") else "true"
            words[at - 1 : at] = ["--temperature", "1" if value.lower() == "true" else "0"]
        elif (ours := resolve_option(option, known)) is not None:
            words[at - 1] = f"{ours}{equal}{value}"
            if note := SYNONYM_NOTES.get(option.removeprefix("--").replace("-", "_")):
                warnings.warn(note, stacklevel=1)
        elif (hint := explain_option(option, known)) is not None:
            raise make_option_error(option, hint)
    return words


def format_argument(argument: Argument) -> str:
    """Return the name of an argument as help shows it: MODEL where its place is enough, else its option."""
    return argument.name.removeprefix("--").upper() if argument.field_info.is_positional else argument.name


def explain_parse_error(error: CycloptsError) -> Error:
    """Say in our words and in one format what is wrong with a command that was typed."""
    command = " ".join(("formers", *(error.command_chain or ())))
    fix = f"see {command} --help"
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        name = error.unused_tokens[0]
        known = [one for one in error.app or () if not one.startswith("-")]
        near = find_nearest(name, known)
        what = f"there is no command {' '.join((*(error.command_chain or ()), name))!r}"
        return Error(what, fix=COMMAND_NAME_HINTS.get(name) or (fix if near is None else f"did you mean {near}?"))
    if isinstance(error, UnknownOptionError):
        option = (error.token.keyword or error.token.value).partition("=")[0]
        near = find_nearest(option, [name for one in error.argument_collection for name in one.names])
        return make_option_error(option, fix if near is None else f"did you mean {near}?")
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return Error(f"unexpected argument {error.unused_tokens[0]!r}", fix=f"put a text with spaces in quotes; {fix}")
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        typed = [word.partition("=")[0].replace("_", "-") for word in error.root_input_tokens or ()]
        if set(typed) & set(error.argument.names):
            return Error(f"{error.keyword or error.argument.name} has no value", fix=fix)
        misspelled = [word for word in typed if word.startswith("--") and find_nearest(word, error.argument.names)]
        if misspelled:
            return make_option_error(misspelled[0], f"did you mean {error.argument.name}?")
        return Error(f"{command} needs {format_argument(error.argument)}", fix=fix)
    if isinstance(error, CoercionError) and error.token is not None and error.argument is not None:
        name, value = error.token.keyword or format_argument(error.argument), error.token.value
        if get_origin(error.target_type) is Literal:
            choices = [*map(str, get_args(error.target_type))]
            near = find_nearest(value, choices)
            return Error(
                f"{name} has no choice {value!r}",
                fix="choose from " + ", ".join(choices) + ("" if near is None else f"; did you mean {near}?"),
            )
        if kind := VALUE_KINDS.get(error.target_type):
            return Error(f"{name} takes {kind}, not {value!r}", fix=fix)
    return Error(" ".join(str(error).split()).removesuffix("."), fix=fix)


@contextmanager
def print_warnings(console: SafeConsole, arguments: list[str] | None) -> Iterator[None]:
    """Show warnings as notes of one line, without the file and the code they come from."""

    def print_warning(message: Warning | str, *_: object, **more: object) -> None:
        console.print(f"formers: note: {rewrite_message(' '.join(str(message).split()), arguments)}")

    with warnings.catch_warnings():
        warnings.showwarning = print_warning
        yield


def main(arguments: list[str] | None = None) -> object:
    """Run a command; an error is one line and exit code 2 (or its own), Ctrl-C is 130."""
    escape_unencodable()
    out, errors.CONTINUE_ADVICE = SafeConsole(stderr=True), ""
    try:
        with print_warnings(out, arguments):
            return run_command(list(sys.argv[1:] if arguments is None else arguments))
    except Error as error:
        exit_with_error(out, rewrite_message(str(error), arguments), error.exit_code)
    except CycloptsError as error:
        exit_with_error(out, str(explain_parse_error(error)))
    except KeyboardInterrupt:
        out.print(f"formers: interrupted{errors.CONTINUE_ADVICE}")
        sys.exit(130)
    except UnicodeEncodeError as error:  # bytes on the command line that are no UTF-8, where text is wanted
        half = ascii(error.object[error.start : error.end])[1:-1]
        exit_with_error(out, f"a text or a name holds half a character ({half}). Is the terminal's encoding UTF-8?")
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        fix = "Take smaller batches or a smaller model, --dtype bfloat16 where there is one, or a machine with more."
        exit_with_error(out, f"out of memory ({' '.join(str(error).split())[:200] or type(error).__name__}). {fix}")
    except OSError as error:  # the terminal, or the file that output goes to, takes no more
        if isinstance(error, BrokenPipeError):  # the reader of a pipe has seen enough
            sys.stderr.close()
            sys.exit(0)
        where = f"{escape_line(error.filename)}: " if error.filename else ""
        sys.stdout = None  # what is left in its buffer cannot be written either
        exit_with_error(out, f"{where}{error.strerror or error}")


def exit_with_error(console: SafeConsole, words: str, code: int = 2) -> NoReturn:
    """Print an error after the command's name, and exit."""
    console.print(Text.assemble(("formers:", "bold red"), f" {words}"))
    sys.exit(code)


if __name__ == "__main__":
    main()
