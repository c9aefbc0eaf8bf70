"""Zero-, one- and few-shot evaluation: a task is put to a language model as text, with K solved examples before each
question (Brown et al. 2020, §2.4 and §3), and no weight changes.

A template turns a row into text. Of several answers, the likeliest is chosen: by the sum of its tokens'
log-probabilities, by their mean, and by P(answer | prompt) / P(answer | "Answer:"); or the model writes an answer,
which must be the right one word for word.
"""

from __future__ import annotations

import random
import re
import statistics
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Unpack

from ..config import ProgressCallback, check_sizes, count_noun
from ..errors import Error
from ..former import Former
from ..tasks.encoding import tokenize_texts
from ..tasks.example_tables import COLUMN_NAMES, FileOptions, read_table
from ..tasks.examples import Columns, Examples, Row, parse_columns, read_examples
from ..text.normalise import normalise
from ..verbs import LM_PARTS, can_generate
from .likelihood import Ending, Likelihood, compute_ending_likelihoods, get_begin_ids
from .metrics import HANGUL, compute_metrics, run_majority_baseline
from .synthetic_sets import find_set_prompt

LABEL_TASKS = ("classify", "choose")  # one of several answers is right
TEXT_TASKS = ("complete", "answer", "translate", "summarise")  # an answer is written
SHOT_TASKS = LABEL_TASKS + TEXT_TASKS
SCORINGS = ("likelihood", "generation")
PLACEHOLDER = re.compile(r"\{(\w+)\}")
ANSWER_NAMES = ("answer", "label", "target", "choice")  # what a template may call the answer
NO_ANSWER = {"en": "no answer", "ko": "답 없음"}  # written where a question has none
MAX_SHOTS, MAX_DRAWS = 1000, 1000
# By task and language; "pair" is classify with two texts. Complete is GPT-3's arithmetic (§3.9.1), summarise GPT-2's.
TEMPLATES: dict[str, dict[str, str]] = {
    "en": {
        "classify": "Text: {text}\nLabel: {answer}",
        "pair": "Text 1: {text}\nText 2: {other}\nLabel: {answer}",
        "choose": "{text} {answer}",
        "complete": "Q: {text}\nA: {answer}",
        "answer": "{context}\nQ: {question}\nA: {answer}",
        "translate": "Text: {text}\nTranslation: {answer}",
        "summarise": "{text}\nTL;DR: {answer}",
    },
    "ko": {
        "classify": "문장: {text}\n분류: {answer}",
        "pair": "문장 1: {text}\n문장 2: {other}\n분류: {answer}",
        "choose": "{text} {answer}",
        "complete": "질문: {text}\n답: {answer}",
        "answer": "{context}\n질문: {question}\n답: {answer}",
        "translate": "원문: {text}\n번역: {answer}",
        "summarise": "{text}\n요약: {answer}",
    },
}


@dataclass(frozen=True)
class PromptTemplate:
    """How a row becomes text: what stands before the answer and after it, and what parts the examples. `instruction`
    stands once, before everything; `null_context` is what an answer follows when nothing is known of its question."""

    before: str
    after: str = ""
    separator: str = "\n\n"
    instruction: str = ""
    null_context: str = ""

    def fill(self, row: Row) -> str:
        """Return the text before the answer of a row."""
        return PLACEHOLDER.sub(lambda match: str(row[match[1]] or ""), self.before)

    def solve(self, row: PromptRow) -> str:
        """Return a row as a solved example."""
        return self.fill(row.fields) + row.right_text + self.after

    def join(self, shots: Sequence[PromptRow], row: PromptRow) -> str:
        """Return a prompt: the instruction, solved examples, and the question up to its answer."""
        solved = [self.solve(one) for one in shots]
        return self.separator.join([*filter(None, [self.instruction]), *solved, self.fill(row.fields)])


@dataclass(frozen=True)
class PromptRow:
    """A row as a prompt shows it: its fields, its right answer as text, all answers to choose from and the number of
    the right one, or all texts that are right."""

    fields: Row
    right_text: str
    answers: tuple[str, ...] = ()
    right: int = -1
    references: tuple[str, ...] = ()


@dataclass(frozen=True)
class ShotScores:
    """The metrics of one number of shots, one dictionary for each draw of the examples."""

    shots: int
    draws: list[dict[str, float]]
    shortened: int = 0  # prompts that had room for fewer shots, over all draws

    @property
    def mean(self) -> dict[str, float]:
        """The mean of each metric over the draws."""
        return {name: statistics.fmean(draw[name] for draw in self.draws) for name in self.draws[0]}

    @property
    def spread(self) -> dict[str, float]:
        """The standard deviation of each metric over the draws (n - 1); 0 for one draw."""
        if len(self.draws) < 2:
            return dict.fromkeys(self.draws[0], 0.0)
        return {name: statistics.stdev(draw[name] for draw in self.draws) for name in self.draws[0]}


@dataclass(frozen=True)
class FewShotResult:
    """What was asked of how many rows, with which prompt, the metrics by number of shots, and how often the commonest
    label is right."""

    task: str
    num_examples: int
    summary: str
    prompt: str  # of the first row, as the model read it with the fewest shots
    scores: list[ShotScores]
    majority: float | None = None
    notes: list[str] = field(default_factory=list)


def parse_template(
    text: str, *, instruction: str = "", separator: str = "\n\n", null_context: str | None = None
) -> PromptTemplate:
    """Parse a template such as "Review: {text}\\nSentiment: {answer}"; the answer may also be called label, target or
    choice. By default an answer without a question follows the last line before it: "Sentiment:"."""
    names = [match[1] for match in PLACEHOLDER.finditer(text)]
    places = [match for match in PLACEHOLDER.finditer(text) if match[1] in ANSWER_NAMES]
    if len(places) != 1:
        what = f"the template names its answer {len(places)} times: {text!r}"
        raise Error(what, fix="write {answer} once, for example template='Review: {text}\\nSentiment: {answer}'")
    before, after = text[: places[0].start()], text[places[0].end() :]
    if PLACEHOLDER.search(after) or len(names) < 2:
        what = f"the template has {'its question behind' if len(names) > 1 else 'no question before'} its answer"
        raise Error(what, fix="put fields such as {text} before {answer}")
    if null_context is None:
        null_context = PLACEHOLDER.sub("", before[before.rstrip().rfind("\n") + 1 :]).strip() or "Answer:"
    return PromptTemplate(before, after, separator, instruction, null_context)


def evaluate_shots(
    former: Former, data: object, shots: Sequence[int] | int | str = 0, *, task: str | None = None,
    columns: Columns = None, train: object = None, template: str | None = None, instruction: str = "",
    separator: str = "\n\n", label_words: Mapping[str, str] | str | None = None, null_context: str | None = None,
    scoring: Sequence[str] | str | None = None, draws: int = 3, same_shots: bool = False, seed: int = 0,
    limit: int | None = None, batch_size: int = 16, max_new_tokens: int | None = None,
    share_prefixes: bool = True, tell: ProgressCallback | None = None, **reading: Unpack[FileOptions],
) -> FewShotResult:  # fmt: skip
    """Evaluate a language model on a task without training it: with no, one or several solved examples in the prompt.

    `task` is classify, choose, complete (a text and its target), answer, translate or summarise; found by the columns
    if it is not named. Each row draws its own examples from `train`, or else from the other rows of `data`, never a row
    equal to itself; with `same_shots` all rows of a draw share theirs, which a decoder then reads once. `draws`
    repeats this with other examples. `label_words` are the words that stand for labels, {"0": "bad", "1": "good"} or
    "0=bad,1=good". `scoring` is likelihood (default where there are answers to choose from), generation (default
    elsewhere), or both. A prompt that is longer than the context loses examples, the first ones first, with a warning
    that counts them; a row that does not fit even alone is left out. Masked models fill the answer in, each of its
    tokens hidden in turn; they cannot generate.
    """
    if LM_PARTS.get(former.head) not in former.model.parts or former.task:
        trained = f"was trained to {former.task['name']}" if former.task else f"has the head {former.head!r}"
        raise Error(
            f"shots are for a language model, and this {former.family} {trained}",
            fix="leave shots out, or load a pretrained model with head='lm' or head='mlm'",
        )
    counts = parse_shots(shots)
    if not 1 <= draws <= MAX_DRAWS or batch_size < 1:
        raise Error("draws and batch_size must be at least 1", fix="leave them out")
    check_sizes(SimpleNamespace(limit=limit, max_new_tokens=max_new_tokens), "limit", "max_new_tokens")
    if (prompt := find_set_prompt(data)) is not None:  # a table of `formers synthetic` brings its prompt
        template, task = template or prompt.template, task or prompt.task
        instruction = instruction or prompt.instruction
    examples, pool = read_shot_examples(data, train, task, columns, reading)
    task = "complete" if task == "complete" else examples.task
    language = detect_language(examples.rows)
    pairs = task == "classify" and any(row.get("other") for row in examples.rows)
    text = template or TEMPLATES[language]["pair" if pairs else task]
    form = parse_template(text, instruction=instruction, separator=separator, null_context=null_context)
    check_fields(form, examples.rows[0])
    make_row = build_row_maker(task, examples, pool, parse_label_words(label_words), language)
    rows = [make_row(row) for row in examples.rows[:limit]]
    sources = rows if pool is None and limit is None else [make_row(row) for row in (pool or examples).rows]
    how = choose_scorings(former, task, scoring)
    runner = ShotRunner(former, form, task, how, batch_size, share_prefixes, max_new_tokens, NO_ANSWER[language], tell)
    fits = runner.find_fitting(rows)
    kept = [row for row, fit in zip(rows, fits, strict=True) if fit]
    if not kept:
        raise Error("no row fits into the context of the model", fix="shorten the texts, or the template")
    scores, shown = [], ""
    for count in counts:
        metrics, shortened = [], 0
        for draw in range(draws if count else 1):
            drawn = draw_shots(kept, sources, count, f"{seed}/{draw}", same_shots)
            prompts, fewer = runner.build_prompts(kept, drawn)
            shown = shown or prompts[0]
            shortened += fewer
            metrics.append(runner.score(kept, prompts, f"{count_noun(count, 'shot')}, draw {draw + 1}"))
        scores.append(ShotScores(count, metrics, shortened))
    notes = describe_short_context(former.context, len(rows), len(kept), scores)
    majority = None
    if task == "classify":
        labels = [[{"label": one.right_text} for one in some] for some in (sources, kept)]
        majority = run_majority_baseline(*labels)["accuracy"]
    for note in notes:
        warnings.warn(note, stacklevel=2)
    summary = examples.summary.removeprefix(f"{examples.task}: ")  # which is another one of `complete`
    return FewShotResult(task, len(kept), summary, shown, scores, majority, notes)


def describe_short_context(context: int | None, num_rows: int, num_kept: int, scores: list[ShotScores]) -> list[str]:
    """Say in one line what a context is too short for: rows that were left out, and prompts with fewer examples than
    were asked for; nothing if all fit."""
    parts = []
    if num_kept < num_rows:
        parts.append(f"{num_rows - num_kept:,} of {count_noun(num_rows, 'row')} left out, even without examples")
    for score in scores:
        if score.shortened:
            total = num_kept * len(score.draws)
            shots = count_noun(score.shots, "shot")
            parts.append(f"at {shots}, {score.shortened:,} of {total:,} prompts have fewer")
    if not parts:
        return []
    return [f"the context of {context:,} tokens is short for these texts: {'; '.join(parts)}"]


def parse_shots(shots: Sequence[int] | int | str) -> list[int]:
    """Parse numbers of shots: 8, [0, 1, 8] or "0,1,8"."""
    try:
        listed = [int(part) for part in shots.split(",")] if isinstance(shots, str) else shots
    except ValueError:
        listed = []
    counts = list(dict.fromkeys([listed] if isinstance(listed, int) else listed))
    if not counts or any(type(k) is not int or not 0 <= k <= MAX_SHOTS for k in counts):
        raise Error(f"shots are numbers from 0 to {MAX_SHOTS:,}, not {shots!r}", fix="for example shots='0,1,8'")
    return counts


def parse_label_words(words: Mapping[str, str] | str | None) -> dict[str, str]:
    """Parse the words of labels: a mapping, or "0=bad,1=good"."""
    if not isinstance(words, str):
        return {str(label): word for label, word in (words or {}).items()}
    pairs = [part.partition("=") for part in words.split(",")]
    if malformed := ["".join(pair) for pair in pairs if not (pair[0].strip() and pair[1])]:
        raise Error(f"{malformed[0]!r} is not of the form label=word", fix="for example label_words='0=bad,1=good'")
    return {label.strip(): word.strip() for label, _, word in pairs}


def read_shot_examples(
    data: object, train: object, task: str | None, columns: Columns, reading: FileOptions
) -> tuple[Examples, Examples | None]:
    """Read the rows of a task, and those that its examples are drawn from, if they are others."""
    if task is not None and task not in SHOT_TASKS:
        raise Error(f"{task} cannot be put as a prompt", fix="choose " + ", ".join(SHOT_TASKS))
    both: list[Examples | None] = []
    for source in (data, train):
        if source is None:
            both.append(None)
            continue
        known_columns: Columns = columns
        if task == "complete" and columns is None:  # targets may be numbers, which would be labels elsewhere
            names = read_table(source, parse_columns(columns)[1], **reading).column_names
            known = {name.lower(): name for name in names}
            target = next((known[name] for name in COLUMN_NAMES["target"] if name in known), None)
            known_columns = None if target is None else {"target": target}
        both.append(read_examples(source, "translate" if task == "complete" else task, known_columns, **reading))
    examples, pool = both
    assert examples is not None
    if examples.task not in SHOT_TASKS:
        what = f"these rows are of the task {examples.task}, which cannot be put as a prompt"
        raise Error(what, fix="name another: task='classify', one of " + ", ".join(SHOT_TASKS))
    if examples.multilabel:
        raise Error("rows with several labels cannot be put as a prompt", fix="give rows with one label each")
    if pool is not None and pool.task != examples.task:
        raise Error(f"the rows are of {examples.task}, those of train of {pool.task}", fix="name the task")
    return examples, pool


def detect_language(rows: Sequence[Row]) -> str:
    """Return ko if most of the first rows have Hangul, else en."""
    some = [" ".join(str(v) for v in row.values() if isinstance(v, str)) for row in rows[:100]]
    return "ko" if 2 * sum(bool(HANGUL.search(text)) for text in some) > len(some) else "en"


def check_fields(form: PromptTemplate, row: Row) -> None:
    """Refuse a template with a field that rows do not have."""
    for match in PLACEHOLDER.finditer(form.before):
        if match[1] not in row:
            names = ", ".join(f"{{{name}}}" for name, value in row.items() if isinstance(value, str))
            raise Error(f"the template has {match[0]}, and rows have {names}", fix="name one of these")


def build_row_maker(
    task: str, examples: Examples, pool: Examples | None, label_words: Mapping[str, str], language: str
) -> Callable[[Row], PromptRow]:
    """Return the function that makes a PromptRow of a row of the task."""
    labels = tuple(dict.fromkeys((*examples.labels, *(pool.labels if pool else ()))))
    if odd := [name for name in label_words if name not in labels]:
        fix = "there are " + ", ".join(map(repr, labels)) if labels else "leave label_words out"
        raise Error(f"no row has the label {odd[0]!r}", fix=fix)
    words = tuple(normalise(label_words.get(label, label)).strip() for label in labels)
    if task == "classify" and (len(set(words)) < len(words) or not all(words)):
        raise Error(f"each label needs a word of its own: {', '.join(map(repr, words))}", fix="change label_words")
    if task == "classify" and not label_words and all(label.isdecimal() for label in labels):
        shown = ",".join(f"{label}=WORD" for label in labels[:3])
        note = f"the labels are numbers, which say little to a language model; give them words: --label-words {shown}"
        warnings.warn(note, stacklevel=3)

    def make_row(row: Row) -> PromptRow:
        if task == "classify":
            right = labels.index(str(row["label"]))
            return PromptRow(row, words[right], words, right)
        if task == "choose":
            answers = tuple(normalise(choice).strip() for choice in row["choices"])
            fields = {**row, "text": " ".join(filter(None, (row["text"], row.get("other"))))}
            return PromptRow(fields, answers[row["label"]], answers, row["label"])
        if task == "answer":
            texts = tuple(normalise(answer["text"]).strip() for answer in row["answers"])
            return PromptRow(row, texts[0] if texts else NO_ANSWER[language], references=texts)
        target = normalise(row["target"]).strip()
        return PromptRow(row, target, references=(target,))

    return make_row


def choose_scorings(former: Former, task: str, scoring: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return how answers are scored; refuse what the model cannot do."""
    how = (scoring,) if isinstance(scoring, str) else tuple(scoring or ())
    if odd := [one for one in how if one not in SCORINGS]:
        raise Error(f"answers cannot be scored by {odd[0]!r}", fix="choose " + " or ".join(SCORINGS))
    how = how or (("likelihood",) if task in LABEL_TASKS or not can_generate(former) else ("generation",))
    if "generation" in how and not can_generate(former):
        what = f"{former.family} with head {former.head!r} does not write answers"
        raise Error(what, fix="score them by likelihood: scoring='likelihood'")
    return how


def draw_shots(
    rows: Sequence[PromptRow], sources: Sequence[PromptRow], count: int, seed: str, same: bool
) -> list[list[PromptRow]]:
    """Draw `count` solved examples for each row, by the seed alone; none of them is equal to the row. With `same`, all
    rows get one set, in which a spare example takes the place of one that is equal to the row."""
    if not count:
        return [[] for _ in rows]
    spare = 1 if same else 0
    drawn = []
    common = random.Random(f"{seed}/{count}").sample(sources, min(len(sources), count + spare)) if same else []
    for number, row in enumerate(rows):
        if same:
            usable = [one for one in common if one.fields != row.fields]
        else:
            rng = random.Random(f"{seed}/{count}/{number}")
            # one more than wanted for each row that may be equal to this one
            some = rng.sample(sources, min(len(sources), count + 1))
            usable = [one for one in some if one.fields != row.fields]
            if len(usable) < count:  # there are several that are equal to it
                usable = [one for one in sources if one.fields != row.fields]
                rng.shuffle(usable)
        if len(usable) < count:
            what = f"there are {len(usable):,} examples to draw {count:,} shots from"
            raise Error(what, fix="ask for fewer shots, or give a training file with more rows: train=FILE")
        drawn.append(usable[:count])
    return drawn


@dataclass
class ShotRunner:
    """A model, a template and how answers are scored: builds prompts that fit, and computes metrics."""

    former: Former
    form: PromptTemplate
    task: str
    scorings: tuple[str, ...]
    batch_size: int
    share_prefixes: bool
    max_new_tokens: int | None
    no_answer: str
    tell: ProgressCallback | None
    null_scores: dict[str, float] = field(default_factory=dict)

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Count the tokens of texts without marks."""
        return [len(one.ids) for one in tokenize_texts(self.former, texts)] if texts else []

    def list_texts(self, row: PromptRow, prompt: str) -> list[str]:
        """List what the model reads at once for a row: the prompt with each answer, or with room for a new one."""
        if self.former.is_encoder_decoder:
            return [prompt.rstrip()]
        answers = row.answers or (row.right_text,)
        return [prompt + answer + self.form.after for answer in answers]

    def find_overflow(self, rows: Sequence[PromptRow], prompts: Sequence[str]) -> list[int]:
        """Return how many tokens too many each prompt has, with its longest answer."""
        context = self.former.context
        if context is None:
            return [0] * len(rows)
        texts = [self.list_texts(row, prompt) for row, prompt in zip(rows, prompts, strict=True)]
        counts = iter(self.count_tokens([text for some in texts for text in some]))
        frame = self.former.tokenizer.get_template() if self.former.tokenizer is not None else None
        if LM_PARTS[self.former.head] == "mlm" or self.former.is_encoder_decoder:
            marks = len(frame.before) + len(frame.after) if frame is not None else 0
        else:
            marks = len(get_begin_ids(self.former)) - 1  # the last token is predicted, not read
        if "generation" in self.scorings and not self.former.is_encoder_decoder:
            marks = max(marks, 0) + self.get_answer_room(rows)
        return [max(next(counts) for _ in some) + marks - context for some in texts]

    def get_answer_room(self, rows: Sequence[PromptRow]) -> int:
        """Return how many tokens a written answer may have: one and a half times the longest right one, and four."""
        if self.max_new_tokens is None:
            longest = max(self.count_tokens([" " + row.right_text + self.form.after for row in rows]))
            self.max_new_tokens = 4 + longest * 3 // 2
        return self.max_new_tokens

    def find_fitting(self, rows: Sequence[PromptRow]) -> list[bool]:
        """Return for each row whether its prompt without examples fits into the context."""
        overflow = self.find_overflow(rows, [self.form.join([], row) for row in rows])
        return [excess <= 0 for excess in overflow]

    def build_prompts(self, rows: Sequence[PromptRow], drawn: Sequence[Sequence[PromptRow]]) -> tuple[list[str], int]:
        """Build the prompt of each row with as many of its examples as fit, the last ones; returns how many have room
        for fewer."""
        shots = [list(some) for some in drawn]
        prompts = [self.form.join(some, row) for some, row in zip(shots, rows, strict=True)]
        sizes: dict[str, int] = {}
        shortened: set[int] = set()
        waiting = [i for i, some in enumerate(shots) if some]
        while waiting:
            overflow = self.find_overflow([rows[i] for i in waiting], [prompts[i] for i in waiting])
            excess = {i: over for i, over in zip(waiting, overflow, strict=True) if over > 0 and shots[i]}
            waiting = list(excess)
            solved = {self.form.solve(one) for i in waiting for one in shots[i]} - sizes.keys()
            ordered = sorted(solved)
            sizes |= zip(ordered, self.count_tokens([text + self.form.separator for text in ordered]), strict=True)
            for i in waiting:
                freed = 0
                while shots[i] and freed < excess[i]:
                    first = shots[i].pop(0)
                    freed += sizes[self.form.solve(first)]
                prompts[i] = self.form.join(shots[i], rows[i])
                shortened.add(i)
        return prompts, len(shortened)

    def score(self, rows: Sequence[PromptRow], prompts: Sequence[str], what: str) -> dict[str, float]:
        """Compute the metrics of answers to prompts."""
        tell = self.tell and (lambda _, done, total, unit: self.tell and self.tell(what, done, total, unit))
        metrics: dict[str, float] = {}
        if "likelihood" in self.scorings:
            score = self.score_choices if self.task in LABEL_TASKS else self.score_targets
            metrics |= score(rows, prompts, tell)
        if "generation" in self.scorings:
            metrics |= self.score_generated(rows, prompts, tell)
        return metrics

    def compute_likelihoods(
        self, prompts: Sequence[str], answers: Sequence[Sequence[str]], tell: ProgressCallback | None
    ) -> list[list[Likelihood]]:
        """Compute the likelihood of each answer after its prompt."""
        after = self.form.after
        groups = [
            [Ending(prompt + one + after, len(prompt.rstrip()), len(prompt) + len(one)) for one in some]
            for prompt, some in zip(map(normalise, prompts), answers, strict=True)
        ]
        return compute_ending_likelihoods(
            self.former, groups, share_prefixes=self.share_prefixes, batch_size=self.batch_size, tell=tell
        )

    def score_choices(
        self, rows: Sequence[PromptRow], prompts: Sequence[str], tell: ProgressCallback | None
    ) -> dict[str, float]:
        """Choose the likeliest answer: by its sum, by its mean per token, and compared with the answer alone."""
        likelihoods = self.compute_likelihoods(prompts, [row.answers for row in rows], tell)
        new = [one for one in dict.fromkeys(a for row in rows for a in row.answers) if one not in self.null_scores]
        context = self.form.null_context + " " * (not self.form.null_context.endswith((" ", "\n")))
        nulls = self.compute_likelihoods([context], [new], None)[0] if new else []
        self.null_scores |= {one: null.total_log_prob for one, null in zip(new, nulls, strict=True)}
        rules: dict[str, Callable[[Likelihood, str], float]] = {
            "": lambda one, _: one.total_log_prob,
            "_token": lambda one, _: one.total_log_prob / max(1, len(one.log_probs)),
            "_ratio": lambda one, answer: one.total_log_prob - self.null_scores[answer],
        }
        metrics: dict[str, float] = {}
        for suffix, rule in rules.items():
            predictions = []
            for row, some in zip(rows, likelihoods, strict=True):
                scores = [rule(one, answer) for one, answer in zip(some, row.answers, strict=True)]
                predictions.append(scores.index(max(scores)))
            results = compute_metrics("choose", [row.right for row in rows], predictions)
            names = ("accuracy", "f1_macro") if self.task == "classify" and not suffix else ("accuracy",)
            metrics |= {f"{name}{suffix}": results[name] for name in names}
        return metrics

    def score_targets(
        self, rows: Sequence[PromptRow], prompts: Sequence[str], tell: ProgressCallback | None
    ) -> dict[str, float]:
        """Compute how likely the right text is: its loss per token, and how often all its tokens are the likeliest."""
        likelihoods = [some[0] for some in self.compute_likelihoods(prompts, [[row.right_text] for row in rows], tell)]
        tokens = sum(len(one.log_probs) for one in likelihoods)
        top = sum(bool(one.is_top.all()) for one in likelihoods) / len(likelihoods)
        return {"all_top": top, "loss": -sum(one.total_log_prob for one in likelihoods) / max(1, tokens)}

    def score_generated(
        self, rows: Sequence[PromptRow], prompts: Sequence[str], tell: ProgressCallback | None
    ) -> dict[str, float]:
        """Let the model write answers greedily, and compare them with the right ones."""
        texts = self.write_answers(rows, prompts, tell)
        right = [row.references or (row.right_text,) for row in rows]
        exact = sum(text in some for text, some in zip(texts, right, strict=True)) / len(rows)
        if self.task == "answer":
            texts = ["" if text == self.no_answer else text for text in texts]
            return compute_metrics("answer", [list(row.references) for row in rows], texts)
        metrics = {"exact": exact}
        if self.task in ("translate", "summarise"):
            metrics |= compute_metrics(self.task, [row.right_text for row in rows], texts)
        return metrics

    def write_answers(
        self, rows: Sequence[PromptRow], prompts: Sequence[str], tell: ProgressCallback | None
    ) -> list[str]:
        """Write the answer to each prompt greedily, up to what parts examples, or follows an answer."""
        former, room = self.former, self.get_answer_room(rows)
        tokenizer, output = former.tokenizer, former.output_tokenizer
        if tokenizer is None or output is None:
            raise Error(f"this {former.family} has no tokenizer", fix="load it with its tokenizer")
        stops = [stop for stop in (self.form.after, self.form.separator, "\n") if stop.strip(" ")]
        ids: list[list[int]] = []
        for prompt in prompts:
            text = normalise(prompt).rstrip()
            if former.is_encoder_decoder:
                ids.append(tokenizer.encode(text, parse_special=False))
            else:
                ids.append([*get_begin_ids(former), *tokenizer.encode(text, special=False, parse_special=False)])
        texts = [""] * len(ids)
        order = sorted(range(len(ids)), key=lambda i: -len(ids[i]))
        for low in range(0, len(order), self.batch_size):
            some = order[low : low + self.batch_size]
            for i, new in zip(some, former.continue_ids([ids[i] for i in some], room, temperature=0), strict=True):
                text = output.decode(new).lstrip()
                places = [place for stop in stops if (place := text.find(stop)) >= 0]
                texts[i] = normalise(text[: min(places)] if places else text).strip()
            if tell is not None:
                tell("answers", min(low + self.batch_size, len(order)), len(order), "answers")
        return texts
