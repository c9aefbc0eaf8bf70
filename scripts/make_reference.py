"""Make the reference pages of the book from the code: commands, the Python interface, settings.

scripts/build_docs.py puts them into the site; python scripts/make_reference.py FOLDER writes them as Markdown.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import io
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

import formers
from formers import verbs
from formers.cli.main import app
from formers.option_aliases import HINTS, SYNONYMS
from formers.registry import FAMILIES
from formers.training.config_merge import FinetuneDataConfig, PretrainDataConfig, TuneConfig
from formers.training.optimizer import OPTIMIZERS, SCHEDULES
from formers.training.train_config import TrainConfig
from formers.training.word_vectors.word2vec import VectorTrainConfig

INTRODUCTIONS = {
    "commands": {
        "en": "# Commands\n\nEvery command with its options, as its own `--help` prints them.\n",
        "ko": "# 명령\n\n모든 명령과 옵션입니다. 각 명령의 `--help`가 출력하는 내용을 그대로 옮겼으므로"
        " 설명은 영어입니다.\n",
    },
    "python": {
        "en": "# Python\n\nWhat `import formers` gives, with signatures and docstrings of the code. A verb is also a"
        " method of a loaded model: `f.generate(...)` is `formers.generate(f, ...)`.\n",
        "ko": "# Python\n\n`import formers`로 쓸 수 있는 이름입니다. 시그니처와 설명은 코드의 독스트링이므로"
        " 영어입니다. 동사는 불러온 모델의 메서드이기도 합니다."
        " `f.generate(...)`는 `formers.generate(f, ...)`와 같습니다.\n",
    },
    "settings": {
        "en": "# Settings\n\nWhat a YAML file (`--config`), a dotted option (`--train.steps 2000`) and `overrides=` in"
        " Python may hold. `--print-config` prints all settings of a run with their values. Read off the code.\n",
        "ko": "# 설정\n\nYAML 파일(`--config`), 점으로 이은 옵션(`--train.steps 2000`), Python의 `overrides=`에"
        " 쓸 수 있는 설정입니다. `--print-config`는 실행의 모든 설정과 값을 출력합니다."
        " 표는 코드에서 만들며 설명은 영어입니다.\n",
    },
}
TABLES = (
    ("train", TrainConfig, {"en": "of pretraining and fine-tuning", "ko": "사전 학습과 미세 조정"}),
    ("data", PretrainDataConfig, {"en": "of pretraining", "ko": "사전 학습"}),
    ("data", FinetuneDataConfig, {"en": "of fine-tuning", "ko": "미세 조정"}),
    ("tune", TuneConfig, {"en": "of fine-tuning", "ko": "미세 조정"}),
    ("train", VectorTrainConfig, {"en": "of word vectors", "ko": "단어 벡터"}),
)
CHOICES = {"train.optimizer": OPTIMIZERS, "train.schedule": SCHEDULES}  # settings whose values are names of a table
COLUMNS = {"en": ("setting", "default", "meaning"), "ko": ("설정", "기본값", "뜻")}
HEADS = {
    "en": {"verbs": "Verbs", "rest": "Load, build, train", "classes": "Classes and errors", "model": "model: {}",
           "names": "Names of other libraries",
           "names_text": "These are accepted where ours is meant, or the error names ours."},
    "ko": {"verbs": "동사", "rest": "불러오기, 만들기, 학습", "classes": "클래스와 오류", "model": "model: {}",
           "names": "다른 라이브러리의 이름",
           "names_text": "아래 이름은 그대로 쓸 수 있거나, 오류 메시지가 formers의 이름을 알려 줍니다."},
}  # fmt: skip


def make_pages(language: str) -> dict[str, str]:
    """Make the pages of a language, by their names on the site."""
    makers = {"commands": make_commands, "python": make_python, "settings": make_settings}
    return {
        f"reference/{name}": INTRODUCTIONS[name][language] + "\n" + "\n".join(make(language)) + "\n"
        for name, make in makers.items()
    }


def make_commands(language: str) -> Iterator[str]:
    """Make a section for each command and subcommand, pretraining shown for one family of each kind."""
    for name in sorted(one for one in app if not one.startswith("-")):
        if not app[name].show:
            continue
        yield from make_command((name,))
        below = [one for one in app[name] if not one.startswith("-")]
        if name == "pretrain":
            below = ["bert", "seq2seq", "word2vec"]  # the others have the same options
        if name != "try":
            for one in below:
                yield from make_command((name, one))


def make_command(names: tuple[str, ...]) -> Iterator[str]:
    """Make a command's section of its help."""
    console = Console(file=io.StringIO(), width=92, color_system=None, force_terminal=False)
    app.help_print(list(names), console=console)
    text = textwrap.dedent(console.file.getvalue()).strip()
    yield f"{'#' * (1 + len(names))} formers {' '.join(names)}\n\n```text\n{text}\n```\n"


def make_python(language: str) -> Iterator[str]:
    """Make the sections of verbs, of other functions and of classes."""
    words, names = HEADS[language], [name for name in formers.__all__ if not name.startswith("_")]
    objects = {name: getattr(formers, name) for name in names}
    functions = {name: one for name, one in objects.items() if not inspect.isclass(one)}
    yield f"## {words['rest']}\n"
    for name in sorted(set(functions) - set(verbs.VERBS)):
        yield from describe_function(f"formers.{name}", functions[name])
    yield f"## {words['verbs']}\n"
    for name in sorted(verbs.VERBS):
        yield from describe_function(f"formers.{name}", functions[name])
    yield f"## {words['classes']}\n"
    for name, one in objects.items():
        if not inspect.isclass(one):
            continue
        yield f"### formers.{name}\n\n{format_docstring(one)}\n"
        for member, value in vars(one).items():
            if member.startswith("_") or not (inspect.isfunction(value) or isinstance(value, property)):
                continue
            if isinstance(value, property):
                yield f"**`{name}.{member}`** {format_docstring(value)}\n"
            else:
                yield from describe_function(f"{name}.{member}", value, level=4)


def describe_function(name: str, function: object, level: int = 3) -> Iterator[str]:
    """Make a function's section: signature and docstring."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    unquote = functools.partial(re.sub, r"(: |-> |^)'([^']*)'", r"\1\2")
    call = name + unquote(str(signature))
    if len(call) > 92:
        parameters = str(signature.replace(return_annotation=inspect.Signature.empty))[1:-1]
        rows = re.split(r", (?=\*|\w+: |\w+=)", unquote(parameters))
        result = call.rpartition(") -> ")[2] if ") -> " in call else "None"
        call = f"{name}(\n" + "".join(f"    {row},\n" for row in rows) + f") -> {result}"
    yield f"{'#' * level} {name}\n\n```text\n{call}\n```\n\n{format_docstring(function)}\n"


def format_docstring(thing: object) -> str:
    """Return a docstring as Markdown: commands and examples become blocks, arguments a list."""
    lines: list[str] = []
    for line in (inspect.getdoc(thing) or "").splitlines():
        item = re.match(r"    (\w[\w, *]*): (.*)", line)
        if line in ("Args:", "Attributes:", "Returns:", "Raises:"):
            lines += ["", f"**{line}**", ""]
        elif item:
            lines.append(f"- `{item[1]}`: {escape(item[2])}")
        else:
            lines.append(escape(line.strip() if lines and lines[-1].startswith("- ") else line))
    return re.sub(r"\n    (?=\S)", "\n", "\n".join(lines))


def escape(text: str) -> str:
    """Keep words from being read as Markdown's marks, outside of code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([<>\[\]*_$|])", r"\\\1", part) for part in parts)


def read_comments(kind: type) -> dict[str, str]:
    """Read the comment behind each field of a dataclass."""
    lines = inspect.getsourcelines(kind)[0]
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(tree, ast.ClassDef)
    comments = {}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            text = "".join(lines[node.lineno - 1 : node.end_lineno])
            comment = re.search(r"  # (?!type:)(.+)$", text.rstrip())
            comments[node.target.id] = comment[1] if comment else ""
    return comments


def make_table(prefix: str, kind: type, language: str) -> Iterator[str]:
    """Make a table of a dataclass's fields with defaults and comments, those of its bases included."""
    comments: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base) and base.__module__.startswith("formers"):
            comments |= read_comments(base)
    yield f"| {' | '.join(COLUMNS[language])} |\n|---|---|---|"
    for field in dataclasses.fields(kind):
        default = "" if field.default is dataclasses.MISSING else f"`{format_value(field.default)}`"
        meaning, names = escape(comments.get(field.name, "")), CHOICES.get(f"{prefix}.{field.name}", ())
        meaning += ": " * bool(names) + ", ".join(f"`{name}`" for name in names)
        yield f"| `{prefix}.{field.name}` | {default} | {meaning} |"
    yield ""


def format_value(value: object) -> str:
    """Return a default as YAML would have it."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(format_value, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def make_settings(language: str) -> Iterator[str]:
    """Make the tables of training, data and tasks, then one of each family's model."""
    for prefix, kind, words in TABLES:
        yield f"## {prefix}: {words[language]}\n"
        yield from make_table(prefix, kind, language)
    for name, member in FAMILIES.items():
        yield f"## {HEADS[language]['model'].format(name)}\n"
        yield from make_table("model", member.definition.config_class, language)
    yield f"## {HEADS[language]['names']}\n\n{HEADS[language]['names_text']}\n"
    yield "| name | formers |\n|---|---|"
    for name, ours in sorted({**SYNONYMS, **HINTS}.items()):
        words = ours if isinstance(ours, str) else " / ".join(map(str, ours))
        yield f"| `{name}` | {escape(words)} |"
    yield ""


if __name__ == "__main__":
    for name, text in make_pages("en").items():
        path = Path(sys.argv[1]) / f"{name}.md"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
