"""formers show: what an objective masks and predicts, on any text: in colour on a terminal, with marks that plain text
shows as well."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from ..errors import Error
from .common import TextFileOptions
from .terminal import SafeConsole, show_progress

if TYPE_CHECKING:
    import numpy as np

    from ..batch import Batch
    from ..config import JSONValue
    from ..data.plans import RawExamples
    from ..objectives.continual import ContinualTasks
    from ..text.tokenizer import Tokenizer

RESERVED_OPTIONS = {
    "length": "say --length",
    "tokenizer": "say --tokenizer",
    "name": "the objective comes first: formers show mlm",
}
MAX_LENGTH = 1 << 16  # tokens of an example: a screen shows no more
DEFAULT_LENGTH = 48  # tokens of an example
SUPERSCRIPT_DIGITS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
SPECIAL_STYLE, HIDDEN_STYLE, REPLACED_STYLE, TARGET_STYLE = "dim", "bold red", "bold yellow", "bold green"


def show(
    objective: str, *, text: tuple[str, ...] = (), data: Path | None = None, tokenizer: Path | None = None,
    length: int | None = None, seed: int = 0, examples: int = 3, option: tuple[str, ...] = (),
    reading: TextFileOptions | None = None,
) -> None:  # fmt: skip
    """Show what a pretraining objective does to a text: what it masks, what the model sees and what it predicts.

    formers show mlm --text "The cat sat on the mat."
    formers show span-corruption --text "옛날 옛적에 호랑이가 담배를 피우던 시절의 이야기입니다."
    formers show nsp --data corpus.txt --length 64 --examples 5
    formers show mlm --data reviews.csv --column review
    formers show ngrams --option mask_rate=0.3
    formers show seq2seq --text "a source" --text "its target"

    Objectives: causal, prefix, seq2seq, bidirectional, mlm, whole-word, ngrams, nsp, sop, plm, denoising,
    span-corruption, switch, prefix-spans, deshuffle, ernie-units, unit-pairs, dialogue,
    continual.

    Args:
        objective: One of the objectives above.
        text: A document; may be given several times. Without text and data, the small corpus that comes with formers.
        data: A file of documents: txt, jsonl, csv, tsv, parquet; in a text file, blank lines separate documents.
        tokenizer: A tokenizer.json, or a folder with one; by default a small one is trained for this.
        length: Tokens in an example; 48 by default.
        seed: Random seed.
        examples: How many examples to show.
        option: An option of the objective, as name=value; may be given several times.
    """
    import numpy as np

    from ..data.plans import gather_examples
    from ..inspection.objective_steps import build_store
    from ..inspection.objective_words import PAIR_QUESTIONS
    from ..objectives.continual import ContinualTasks
    from ..objectives.registry import OBJECTIVES, build_objective, resolve_objective

    console = SafeConsole()
    if examples < 1:
        raise Error(f"cannot show {examples} examples", fix="take 1 or more")
    if length is not None and not 1 <= length <= MAX_LENGTH:
        raise Error(f"an example cannot have {length:,} tokens", fix=f"take 1 to {MAX_LENGTH:,}, or leave --length out")
    if not 0 <= seed < 2**63:
        raise Error(f"seed must be a whole number from 0 to 2^63, got {seed}", fix="take 0")
    objective = resolve_objective(objective)
    settings = dict(map(parse_option, option))
    documents = read_documents(text, data, reading or TextFileOptions())
    pieces = get_tokenizer(objective, documents, tokenizer)
    store = build_store(objective, documents, pieces)
    size = length or (min(DEFAULT_LENGTH, len(store.tokens)) if objective == "plm" else DEFAULT_LENGTH)
    goal = build_objective(objective, pieces, size, **settings)
    plan = goal.plan(store, seed, 0)
    numbers = np.arange(min(examples, len(plan)))
    if not len(numbers):
        raise Error("no example can be made of this text", fix="give a longer one")
    raw = gather_examples(store, plan, numbers, numbers)
    batch = goal.corrupt(raw, seed)
    question = objective if objective in PAIR_QUESTIONS else goal.pair_part
    console.print(Text.assemble((objective, "bold"), f": {OBJECTIVES[objective].help}"))
    for row in range(len(numbers)):
        console.print(Text.assemble("\n", (f"example {row + 1}", "bold"), f" of {len(plan):,}"))
        lines = (
            render_task(goal, raw, batch, row, pieces, seed)
            if isinstance(goal, ContinualTasks)
            else render_example(question, raw, batch, row, pieces)
        )
        for line in lines:
            console.print(line)


def read_documents(text: tuple[str, ...], data: Path | None, reading: TextFileOptions) -> list[str]:
    """Read documents from the command line or a file, or take those that come with formers."""
    from ..data.readers import load_bundled_corpus
    from ..data.readers import read_documents as read_files
    from ..text.normalise import normalise

    if text and data is not None:
        raise Error("--text and --data are two sources", fix="give one of them")
    if data is not None:
        return list(itertools.islice(read_files(data, **reading.to_keywords()), 5000))
    documents = [normalise(document) for document in text if document.strip()]
    if text and not documents:
        raise Error("the text is empty", fix="give some words")
    return documents or load_bundled_corpus("en")[0]


def get_tokenizer(objective: str, documents: list[str], where: Path | None) -> Tokenizer:
    """Load the given tokenizer, or train a small one of the kind that suits the objective."""
    from ..inspection.objective_steps import train_small_tokenizer
    from ..interop.tokenizer_files import load_tokenizer

    if where is not None:
        tokenizer = load_tokenizer(where)
        for note in tokenizer.notes:
            SafeConsole(stderr=True).print(f"Note: {note}")
        return tokenizer
    with show_progress(SafeConsole(stderr=True), "show", delay_seconds=2) as tell:
        tell("tokenizer", 0, 1, f"a small one is trained for {objective}")
        tokenizer = train_small_tokenizer(objective, documents)
        tell("tokenizer", 1, 1, f"{len(tokenizer):,} pieces")
    return tokenizer


def parse_option(text: str) -> tuple[str, JSONValue]:
    """Parse name=value, the value as YAML."""
    from ..config import parse_yaml

    name, separator, value = text.partition("=")
    if not separator:
        raise Error(f"{text!r} is not a setting", fix="write name=value")
    name = name.strip().replace("-", "_")
    if name in RESERVED_OPTIONS:
        raise Error(f"{name} is not a setting of the objective", fix=RESERVED_OPTIONS[name])
    try:
        return name, parse_yaml(value)
    except ValueError:
        raise Error(f"{value!r} is not a value", where=name, fix="write a number, a word, true or false") from None


def render_example(
    question: str | None, raw: RawExamples, batch: Batch, row: int, tokenizer: Tokenizer
) -> Iterator[Text]:
    """Render one example: the text, what the model sees, what it predicts; `question` is what is asked of a pair."""
    low, high = (int(i) for i in batch.starts[row : row + 2])
    ids = batch.labels if batch.ids.ndim > 1 else batch.ids
    if batch.source is not None:
        yield from render_encoder_decoder(raw, batch, row, tokenizer)
    elif batch.order is not None:
        yield from render_permutation(batch, low, high, tokenizer)
    elif batch.ids.ndim > 1:
        yield from render_bidirectional(ids[low:high], tokenizer)
    elif batch.chosen is None:
        yield from render_causal(ids[low:high], batch.labels[low:high], tokenizer)
    else:
        yield from render_masked(batch, low, high, tokenizer)
    if batch.document_labels is not None and question is not None:
        from ..inspection.objective_words import PAIR_QUESTIONS

        words, replies = PAIR_QUESTIONS[question]
        yield render_line("question", [(words.en, ""), (replies[int(batch.document_labels[row])].en, TARGET_STYLE)])


def render_task(
    goal: ContinualTasks, raw: RawExamples, batch: Batch, row: int, tokenizer: Tokenizer, seed: int
) -> Iterator[Text]:
    """Render an example of ERNIE 2.0's tasks: which one it belongs to, and the classes that it asks for in words."""
    from ..objectives.continual import CLASS_NAMES, FIRST_LABELS, TASKS, TEXT_TASKS, TOKEN_TASKS

    low, high = (int(i) for i in batch.starts[row : row + 2])
    task = TASKS[int(batch.tasks[low])]
    yield render_line("task", [(task, "bold")])
    hidden = batch.replace(labels=goal.hide_units(raw, seed).labels)
    if task in TOKEN_TASKS:
        names = [CLASS_NAMES[task][int(i)] for i in batch.labels[(batch.chosen >= low) & (batch.chosen < high)]]
        yield from render_masked(hidden, low, high, tokenizer, names)
        return
    yield from render_masked(hidden, low, high, tokenizer)
    if task in TEXT_TASKS:
        number = int(raw.label[row] - FIRST_LABELS[TASKS.index(task)])
        yield render_line("answer", [(f"{number}: {CLASS_NAMES[task][number]}", TARGET_STYLE)])


def render_line(title: str, words: Sequence[tuple[str, str]]) -> Text:
    """Render a title and some words, each in its style."""
    line = Text(f"  {title:<12}", style="cyan")
    for number, (word, style) in enumerate(words):
        line.append(" " if number else "")
        line.append(word, style=style or "default")
    return line


def format_token(tokenizer: Tokenizer, index: int) -> str:
    """Format a token on one line; a space in front of it shows as ▁."""
    token = tokenizer.get_token_text(int(index))
    token = "▁" + token[1:] if token.startswith(" ") else token
    return token.replace("\n", "⏎").replace("\t", "⇥") or "?"


def get_special_ids(tokenizer: Tokenizer) -> set[int]:
    """Return the ids of the special tokens."""
    return {i for role in tokenizer.special if (i := tokenizer.id(role)) is not None}


def style_tokens(tokenizer: Tokenizer, ids: Iterable[int]) -> list[tuple[str, str]]:
    """Return tokens with their styles, special ones dim."""
    marks = get_special_ids(tokenizer)
    return [(format_token(tokenizer, i), SPECIAL_STYLE if int(i) in marks else "") for i in ids]


def render_masked(
    batch: Batch, low: int, high: int, tokenizer: Tokenizer, classes: Sequence[str] | None = None
) -> Iterator[Text]:
    """Render the original text, what the model sees, and each target with what stands in its place, or with its class
    where `classes` are asked for."""
    from ..batch import IGNORE_INDEX

    mine = (batch.chosen >= low) & (batch.chosen < high) & (batch.labels != IGNORE_INDEX)
    right = dict(zip((batch.chosen[mine] - low).tolist(), batch.labels[mine].tolist(), strict=True))
    seen = style_tokens(tokenizer, batch.ids[low:high])
    hidden = {at: (f"«{format_token(tokenizer, label)}»", HIDDEN_STYLE) for at, label in right.items()}
    text = [hidden.get(at, word) for at, word in enumerate(seen)]
    shown = [(word, REPLACED_STYLE) if at in right else (word, style) for at, (word, style) in enumerate(seen)]
    yield render_line("text", text)
    if batch.segments is None:
        yield render_line("model sees", shown)
    else:  # one line for each stretch of a segment
        part = batch.segments[low:high]
        cuts = [0, *((part[1:] != part[:-1]).nonzero()[0] + 1).tolist(), len(part)]
        for a, b in itertools.pairwise(cuts):
            yield render_line(f"sees, {'AB'[int(part[a])]}" if part.max() < 2 else "sees", shown[a:b])
    answers = []
    for number, (at, label) in enumerate(right.items()):
        now, was = seen[at][0], format_token(tokenizer, label)
        how = classes[number] if classes is not None else "stays" if now == was else f"shown as {now}"
        answers.append((f"{was} ({how}),", TARGET_STYLE))
    yield render_line("predicts", answers or [("nothing: no token was drawn", SPECIAL_STYLE)])


def render_encoder_decoder(raw: RawExamples, batch: Batch, row: int, tokenizer: Tokenizer) -> Iterator[Text]:
    """Render the original text, the encoder's input and the decoder's targets."""
    low, high = (int(i) for i in batch.starts[row : row + 2])
    first, last = (int(i) for i in batch.source.starts[row : row + 2])  # type: ignore[union-attr]
    source, target = batch.source.ids[first:last], batch.labels[low:high]  # type: ignore[union-attr]
    whole = raw.ids[int(raw.starts[row]) : int(raw.starts[row + 1])]
    fresh = set(source.tolist()) - set(whole.tolist())
    yield render_line("text", style_tokens(tokenizer, whole))
    marks = get_special_ids(tokenizer) - {tokenizer.id("mask")}

    def style_ids(ids: np.ndarray, usual: str) -> list[tuple[str, str]]:
        styles = (SPECIAL_STYLE if int(i) in marks else REPLACED_STYLE if int(i) in fresh else usual for i in ids)
        return [(format_token(tokenizer, i), style) for i, style in zip(ids, styles, strict=True)]

    yield render_line("encoder", style_ids(source, ""))
    yield render_line("decoder", style_ids(target, TARGET_STYLE))


def render_permutation(batch: Batch, low: int, high: int, tokenizer: Tokenizer) -> Iterator[Text]:
    """Render the targets, numbered in order, and what the first and the last of them are predicted from."""
    mine = batch.chosen[(batch.chosen >= low) & (batch.chosen < high)]
    turn = {int(slot) - low: n + 1 for n, slot in enumerate(mine[batch.order[mine].argsort(kind="stable")])}
    words = style_tokens(tokenizer, batch.ids[low:high])
    yield render_line("text", [
        (f"«{word}»{str(turn[at]).translate(SUPERSCRIPT_DIGITS)}", HIDDEN_STYLE) if at in turn else (word, style)
        for at, (word, style) in enumerate(words)
    ])  # fmt: skip
    order = batch.order[low:high]
    for at in [a for a, n in turn.items() if n in (1, len(turn))]:
        seen = [(w, s) if order[i] < order[at] else ("·", SPECIAL_STYLE) for i, (w, s) in enumerate(words)]
        seen[at] = ("?", REPLACED_STYLE)
        yield render_line(f"sees, {turn[at]}.", seen)
        yield render_line("predicts", [(words[at][0], TARGET_STYLE)])


def render_causal(ids: np.ndarray, labels: np.ndarray, tokenizer: Tokenizer) -> Iterator[Text]:
    """Render what is read, and from which token on each next one is predicted."""
    from ..batch import IGNORE_INDEX

    words = style_tokens(tokenizer, ids)
    targets = (labels != IGNORE_INDEX).nonzero()[0]
    begin = int(targets[0]) + 1 if len(targets) else len(words)
    yield render_line("reads", words[:begin])
    yield render_line("predicts", [(word, TARGET_STYLE) for word, _ in words[begin:]])
    yield render_line("", [("each from all that comes before it", SPECIAL_STYLE)])


def render_bidirectional(words: np.ndarray, tokenizer: Tokenizer) -> Iterator[Text]:
    """Render the predictions of both directions."""
    text = style_tokens(tokenizer, words)
    yield render_line("forward", [(f"{a} → {b},", TARGET_STYLE) for (a, _), (b, _) in itertools.pairwise(text)])
    yield render_line("backward", [(f"{b} → {a},", TARGET_STYLE) for (a, _), (b, _) in itertools.pairwise(text)][::-1])
