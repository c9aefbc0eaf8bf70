"""Every command's help: examples that can be typed, options of today, the field's terms, and no torch."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from functools import cache

import pytest
from rich.console import Console

from formers.cli.main import app

# Settings, options and words that have a better name now, and what to write instead.
OLD_WORDS = {
    r"\b(train\.check|tune\.checks|data\.looks)\b": "train.eval_every, tune.evals_per_epoch, train.eval_batches",
    r"\btrain\.(save|last|best|every)\b": "save_every, keep_last, keep_best, keep_every",
    r"\btrain\.(tokens|ramp|decay|clip|warmup|spike|skips|short|length|carry)\b": "see option_aliases.py",
    r"\b(copies|shards|experts)\b(?=.*parallel)": "ddp, fsdp, expert",
    r"\bdata\.(pieces|held)\b": "data.vocab_size, data.valid",
    r"\btune\.(batch|many|text|most|between)\b": "batch_size, multilabel, label_as_text, max_answer_tokens",
    r"--(tokens|beams|samples|no-repeat|early|banned|min-tokens|size|way|sure)(?![\w-])": "see option_aliases.py",
    r"--empty-": "hidden",
    r"\[default: (False|None|\(\))\]": "hidden",
    r"\bformers show (masked|words|spans)\b": "mlm, whole-word, span-corruption",
    r"held-out (text|examples)": "validation text",
    r"\b(foret[eo]ll?|learnt)\b": "predict, learned",
    r"\bno number\b": "not finite",
    r"\b(goes|go) on\b": "continue",
    r"% right": "accuracy",
}
# What the field calls what a command does.
FIELD_TERMS = {
    "classify": "text classification", "score": "regression", "tag": "token classification",
    "choose": "multiple choice", "answer": "extractive question answering", "fill": "masked language modelling",
    "embed": "embeddings", "augment": "data augmentation", "generate": "sampling", "prepare": "contamination",
}  # fmt: skip


def list_commands(command=app, words=()):
    """All commands by their words, the hidden ones left out."""
    for name in command:
        if not name.startswith("-") and command[name].show:
            yield (*words, name)
            yield from list_commands(command[name], (*words, name))


COMMANDS = list(list_commands())


@cache
def render_help(words):
    out = io.StringIO()
    app.help_print(list(words), console=Console(file=out, width=200, no_color=True))
    return out.getvalue()


def test_all_commands_are_walked():
    assert {("classify",), ("tokenizer", "train"), ("pretrain", "bert"), ("pretrain", "word2vec")} <= set(COMMANDS)
    assert ("neighbors",) not in COMMANDS


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_has_examples_that_parse(words):
    lines = re.findall(r"^(?:echo .*\| )?(formers .*)$", render_help(words), re.MULTILINE)
    name = " ".join(("formers", *words))
    assert any(line.startswith(name) for line in lines), f"no example of {name}"
    for line in lines:
        typed = shlex.split(re.split(r" [<>] ", line)[0])
        app.parse_args(typed[1:], exit_on_error=False, print_error=False)


@pytest.mark.parametrize("words", [(), *COMMANDS], ids=" ".join)
def test_help_uses_the_terms_of_today(words):
    text = render_help(words)
    found = [f"{match.group()} → {better}" for old, better in OLD_WORDS.items() for match in re.finditer(old, text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(("verb", "term"), FIELD_TERMS.items())
def test_help_names_the_field_s_term(verb, term):
    assert term in render_help((verb,)).lower()


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_option_is_described(words):
    command = app
    for word in words:
        command = command[word]
    if command.default_command is None:
        return
    for argument in command.assemble_argument_collection(parse_docstring=True):
        if argument.parameter.show is not False and not argument.children:
            assert argument.parameter.help, f"{' '.join(words)}: {argument.name} has no help"


def test_help_imports_neither_torch_nor_numpy():
    code = "import sys; from formers.cli.main import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
    code += "assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
