"""formers: the command. The files of the verbs import nothing heavy before they run, so that help answers at once."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cyclopts import App, CycloptsError
from rich.text import Text

from .. import __version__
from ..errors import Error, is_out_of_memory
from .ask import answer, choose, classify, score, tag
from .augment import augment
from .common import name_options
from .convert import export, import_
from .demo import demo
from .doctor import doctor
from .embed import embed, neighbours
from .evaluate import evaluate
from .finetune import finetune
from .generate import fill, generate, summarise, translate
from .prepare import prepare
from .pretrain import pretrain
from .runs import report, rerun, resume, runs
from .screen import Screen, accept_any_text, show_line
from .show import show
from .tokenizer import tokenizer
from .tree import tree

app = App(
    name="formers",
    help="The whole family of pretrained language models in one house. Begin with: formers demo",
    version=f"formers {__version__}",
    help_format="plaintext",
    suppress_keyboard_interrupt=False,
)
app.command(demo)
app.command(tree)
app.command(import_, name="import")
app.command(export)
app.command(prepare)
app.command(pretrain)
app.command(finetune)
app.command(classify)
app.command(score)
app.command(tag)
app.command(answer)
app.command(choose)
app.command(augment)
app.command(evaluate)
app.command(runs)
app.command(report)
app.command(rerun)
app.command(resume, show=False)
app.command(generate)
app.command(translate)
app.command(summarise)
app.command(fill)
app.command(show)
app.command(embed)
app.command(neighbours)
app.command(doctor)
app.command(tokenizer)


def in_options(text: str, arguments: list[str] | None) -> str:
    """Name options where a message names arguments of Python, by what the command that was typed takes."""
    if name_options(text) == text:
        return text
    chain, apps, _ = app.parse_commands(arguments)
    known = [name for one in apps[-1].assemble_argument_collection() for name in one.names]
    if chain[:1] != ("finetune",):
        return name_options(text, known)
    from ..training.tuning import Tune

    return name_options(text, known, Tune.__dataclass_fields__)


@contextmanager
def plain_warnings(console: Screen, arguments: list[str] | None) -> Iterator[None]:
    """Show warnings as notes of one line, without the file and the code they come from."""

    def show(message: Warning | str, *_: Any, **more: Any) -> None:
        console.print(f"formers: note: {in_options(' '.join(str(message).split()), arguments)}")

    with warnings.catch_warnings():
        warnings.showwarning = show
        yield


def main(arguments: list[str] | None = None) -> Any:
    """Run a command; an error is one line and exit code 2 (or its own), Ctrl-C is 130."""
    accept_any_text()
    out = Screen(stderr=True)
    try:
        with plain_warnings(out, arguments):
            return app(arguments, exit_on_error=False, print_error=False)
    except Error as error:
        out.print(refusal(in_options(str(error), arguments)))
        sys.exit(error.code)
    except CycloptsError as error:
        out.print(refusal(f"{' '.join(str(error).split())} See formers --help."))
        sys.exit(2)
    except KeyboardInterrupt:
        out.print("formers: interrupted")
        sys.exit(130)
    except UnicodeEncodeError as error:  # bytes on the command line that are no UTF-8, where text is wanted
        half = ascii(error.object[error.start : error.end])[1:-1]
        out.print(refusal(f"a text or a name holds half a character ({half}). Is the terminal's encoding UTF-8?"))
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        fix = "Take smaller batches or a smaller model, --dtype bfloat16 where there is one, or a machine with more."
        out.print(refusal(f"out of memory ({' '.join(str(error).split())[:200] or type(error).__name__}). {fix}"))
        sys.exit(2)
    except OSError as error:  # the terminal or the file behind it takes no more
        if isinstance(error, BrokenPipeError):  # the reader of a pipe has seen enough
            sys.stderr.close()
            sys.exit(0)
        where = f"{show_line(error.filename)}: " if error.filename else ""
        out.print(refusal(f"{where}{error.strerror or error}"))
        sys.stdout = None  # what is left in its buffer cannot be written either
        sys.exit(2)


def refusal(words: str) -> Text:
    """Put the command's name in front of an error."""
    return Text.assemble(("formers:", "bold red"), f" {words}")


if __name__ == "__main__":
    main()
