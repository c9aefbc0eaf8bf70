"""Metrics of tasks, and the baselines that a model is compared with.

METRICS has one function for each task, which returns its main metric first; a new metric is a key of that result, and
an entry of LOWER_IS_BETTER if it is an error. All are between 0 and 1 (correlations between -1 and 1), but BLEU and
chrF, which are points out of 100 as sacrebleu prints them, and the errors of regress. Texts are compared by what they
share with the right ones: as SQuAD's and KorQuAD's scripts do, by BLEU and chrF, by ROUGE. The baseline is what n-grams
and a linear model make of a task (extra `eval`): the number that a pretrained model has to beat.
"""

from __future__ import annotations

import importlib.util
import inspect
import itertools
import math
import operator
import re
import string
import unicodedata
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from ..config import ProgressCallback
from ..errors import Error
from ..tasks.examples import Row
from ..tasks.tagging import find_entities, find_scheme
from ..text.normalise import compose_nfc

Answer = Any  # dynamic: by the task a label, labels, a number, tags, right answers or a text
Label = TypeVar("Label", bound=Hashable)
Tree = Sequence[tuple[int, str]]  # of each word the number of its head, from 1 on (0: the root), and its relation
TextReference = str | Sequence[str]  # what is right, or several right ones
LOWER_IS_BETTER = ("loss", "perplexity", "mse", "mae")


def to_cost(name: str, value: float) -> float:
    """Return a metric as a cost: the lower, the better."""
    return value if name in LOWER_IS_BETTER else -value


def compute_metrics(
    task: str, references: Sequence[Answer], predictions: Sequence[Answer], **more: object
) -> dict[str, float]:
    """Compute the metrics of a task; checkpoints are chosen by the first. classify, choose: `positive`, the label that
    binary F1 is of. tag: lists of tags. answer: references are the right answers, empty where there is none; `language`
    is "en" or "ko", detected if not given. translate: `tokenize`, `lowercase` of sacrebleu. summarise: `units`, words,
    characters or morphemes."""
    if task not in METRICS:
        raise Error(f"there is no metric for the task {task!r}", fix="choose " + ", ".join(METRICS))
    references, predictions = list(references), list(predictions)
    if len(references) != len(predictions):
        raise Error(
            f"there are {len(references)} references and {len(predictions)} predictions",
            fix="give one guess for each truth",
        )
    if not references:
        raise Error("there is nothing to score", fix="give at least one example")
    known = list(inspect.signature(METRICS[task]).parameters)[2:]
    if odd := [name for name in more if name not in known]:
        raise Error(f"the metrics of {task} do not take {odd[0]!r}", fix="leave it out")
    return METRICS[task](references, predictions, **more)


def score_labels(references: list[Answer], predictions: list[Answer], positive: object = None) -> dict[str, float]:
    """Compute accuracy, F1 and Matthews' correlation of one label each; of several each, F1 and exact matches."""
    if any(is_label_list(v) for v in (*references, *predictions)):
        return score_multilabel(references, predictions)
    right = Counter(t for t, g in zip(references, predictions, strict=True) if t == g)
    scores = f1_by_label(Counter(references), Counter(predictions), right)
    scores_by_metric = {"accuracy": right.total() / len(references), "f1_macro": sum(scores.values()) / len(scores)}
    if positive is not None:
        if positive not in scores:
            raise Error(f"no example has the label {positive!r}", fix="there are " + ", ".join(map(repr, scores)))
        scores_by_metric["f1"] = scores[positive]
    return {**scores_by_metric, "matthews": matthews(references, predictions)}


def is_label_list(value: object) -> bool:
    """Return whether a value is a list of labels."""
    return isinstance(value, list | tuple | set | frozenset)


def score_multilabel(references: list[Answer], predictions: list[Answer]) -> dict[str, float]:
    """Score several labels for each example: F1 over all of them, the mean over labels, and how often all are right."""
    if not all(is_label_list(v) for v in (*references, *predictions)):
        raise Error("some examples have one label, others a list", fix="give a list for each")
    pairs = [(set(t), set(g)) for t, g in zip(references, predictions, strict=True)]
    triples = [(t, g, t & g) for t, g in pairs]
    true, guesses, both = (Counter(label for row in rows for label in row) for rows in zip(*triples, strict=True))
    scores = f1_by_label(true, guesses, both)
    macro = sum(scores.values()) / len(scores) if scores else 1.0
    micro = f1(both.total(), guesses.total(), true.total())
    return {"f1_micro": micro, "f1_macro": macro, "exact": sum(t == g for t, g in pairs) / len(pairs)}


def f1(both: float, guess_total: float, true: float) -> float:
    """Return the harmonic mean of precision and recall; 0 where there is nothing at all."""
    return 2 * both / (guess_total + true) if guess_total + true else 0.0


def f1_by_label(true: Counter[Label], guess_counts: Counter[Label], both: Counter[Label]) -> dict[Label, float]:
    """Compute F1 of each label that is there or was predicted."""
    return {label: f1(both[label], guess_counts[label], true[label]) for label in {**true, **guess_counts}}


def matthews(references: Sequence[Hashable], predictions: Sequence[Hashable]) -> float:
    """Return the correlation of two labellings, of any number of labels (Gorodkin 2004); 0 where one never varies."""
    true, predicted_counts, n = Counter(references), Counter(predictions), len(references)
    right = sum(bool(t == g) for t, g in zip(references, predictions, strict=True))
    covariance = right * n - sum(true[label] * predicted_counts[label] for label in true)
    spread = (n * n - sum(c * c for c in predicted_counts.values())) * (n * n - sum(c * c for c in true.values()))
    return covariance / math.sqrt(spread) if spread else 0.0


def score_numbers(references: list[float], predictions: list[float]) -> dict[str, float]:
    """Compute Spearman's and Pearson's correlation, mean squared and mean absolute error."""
    gaps = [t - g for t, g in zip(references, predictions, strict=True)]
    mse, mae = (math.fsum(values) / len(gaps) for values in ([g * g for g in gaps], map(abs, gaps)))
    spearman = pearson(rank_values(references), rank_values(predictions))
    return {"spearman": spearman, "pearson": pearson(references, predictions), "mse": mse, "mae": mae}


def pearson(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Pearson's correlation; 0 where one side never varies."""
    if min(a) == max(a) or min(b) == max(b):
        return 0.0
    x, y = ([v - math.fsum(side) / len(side) for v in side] for side in (a, b))
    sizes = math.hypot(*x) * math.hypot(*y)
    return max(-1.0, min(1.0, math.fsum(p * q for p, q in zip(x, y, strict=True)) / sizes)) if sizes else 0.0


def rank_values(values: Sequence[float]) -> list[float]:
    """Return the rank of each value; equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return ((2 * ends - counts - 1) / 2)[inverse].tolist()


def score_tags(references: list[Sequence[str]], predictions: list[Sequence[str]]) -> dict[str, float]:
    """Score whole entities by F1, precision and recall, words by accuracy; tags without entities by accuracy and F1."""
    for number, (true, predicted_tags) in enumerate(zip(references, predictions, strict=True), 1):
        if len(true) != len(predicted_tags):
            what = f"example {number} has {len(true)} tags, its guess {len(predicted_tags)}"
            raise Error(what, fix="give one tag for each word")
    flat = [t for row in references for t in row], [g for row in predictions for g in row]
    if not flat[0]:
        raise Error("there is nothing to score", fix="give at least one word")
    if (scheme := find_scheme({*flat[0], *flat[1]})) is None:  # parts of speech
        return score_labels(*flat)
    suffix = scheme == "suffix"
    there, seen = (
        {(n, *e) for n, row in enumerate(r) for e in find_entities(row, suffix)} for r in (references, predictions)
    )
    both = len(there & seen)
    precision, recall = (both / len(part) if part else 0.0 for part in (seen, there))
    accuracy = sum(map(operator.eq, *flat)) / len(flat[0])
    return {"f1": f1(both, len(seen), len(there)), "precision": precision, "recall": recall, "accuracy": accuracy}


ARTICLE = re.compile(r"\b(a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
# The signs that KorQuAD's script takes for spaces.
KORQUAD_BRACKETS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))
HANGUL = re.compile("[가-힣ㄱ-ㅣᄀ-ᇿ]")
ROUGE_UNITS = ("words", "characters", "morphemes")


def score_answers(
    references: list[TextReference], predictions: list[str], language: str | None = None, version: int | None = None
) -> dict[str, float]:
    """Compute F1 and exact match as SQuAD's scripts count them; `language` ko is KorQuAD's, by characters. `version` 2
    has questions without an answer (an empty list, the guess ""), and their shares beside the whole."""
    rows = [[t] if isinstance(t, str) else list(t) for t in references]
    if language is None:
        some = [t for row in rows for t in row[:1]]
        language = "ko" if 2 * sum(bool(HANGUL.search(t)) for t in some) > len(some) else "en"
    if language not in ("en", "ko"):
        raise Error(f"there is no way to compare answers in {language!r}", fix="choose en or ko")
    plain = normalise_english if language == "en" else normalise_korean
    parts = str.split if language == "en" else lambda text: list("".join(text.split()))
    version = version or (2 if any(not row for row in rows) else 1)
    if version == 2:  # the script leaves out right answers of which nothing is left
        rows = [[t for t in row if plain(t)] or [""] for row in rows]
    elif empty := [i for i, row in enumerate(rows, 1) if not row]:
        raise Error(f"question {empty[0]} has no right answer", fix="version=2 knows such questions")
    scores = [score_best_match(row, guess, plain, parts, version) for row, guess in zip(rows, predictions, strict=True)]
    groups = {"": scores}
    if version == 2:
        groups["_has_answer"] = [s for s, row in zip(scores, rows, strict=True) if row != [""]]
        groups["_no_answer"] = [s for s, row in zip(scores, rows, strict=True) if row == [""]]
    return {
        f"{name}{group}": sum(score[i] for score in part) / len(part)
        for group, part in groups.items()
        if part
        for i, name in enumerate(("f1", "exact"))
    }


def score_best_match(
    row: list[str], guess: str, plain: Callable[[str], str], parts: Callable[[str], list[str]], version: int
) -> tuple[float, float]:
    """Compute F1 and exact match with the right answer that is nearest."""
    answer = plain(guess)
    return max(compute_bag_f1(parts(plain(t)), parts(answer), version) for t in row), float(answer in map(plain, row))


def compute_bag_f1(true: Sequence[Hashable], guess: Sequence[Hashable], version: int = 1) -> float:
    """Compute F1 of two bags of parts; two empty ones are equal since SQuAD 2.0."""
    if version == 2 and not (true and guess):
        return float(true == guess)
    return f1((Counter(true) & Counter(guess)).total(), len(guess), len(true))


def normalise_english(text: str) -> str:
    """Return SQuAD's plain form: lower case, no punctuation, no articles."""
    return " ".join(ARTICLE.sub(" ", text.lower().translate(PUNCTUATION)).split())


def normalise_korean(text: str) -> str:
    """Return KorQuAD's plain form: brackets and quotes are spaces, other punctuation goes."""
    return " ".join(compose_nfc(text).translate(KORQUAD_BRACKETS).lower().translate(PUNCTUATION).split())


def bleu(
    references: list[TextReference], predictions: list[str], tokenize: str | None = None, lowercase: bool = False
) -> dict[str, float]:
    """Compute BLEU and chrF by sacrebleu; a truth is one right translation or a list of them."""
    scorers, streams = make_bleu_scorers(tokenize, lowercase), to_reference_streams(references)
    return {name: scorer.corpus_score(predictions, streams).score for name, scorer in scorers.items()}


def get_signatures(
    references: list[TextReference], predictions: list[str], tokenize: str | None = None, lowercase: bool = False
) -> dict[str, str]:
    """Return how BLEU and chrF were computed, in sacrebleu's words; to be quoted with the numbers."""
    signatures = {}
    for name, scorer in make_bleu_scorers(tokenize, lowercase).items():
        scorer.corpus_score(predictions, to_reference_streams(references))
        signatures[name] = str(scorer.get_signature())
    return signatures


def to_reference_streams(references: list[TextReference]) -> list[list[str | None]]:
    """Arrange right translations as sacrebleu takes them: the first of every text, the second of every text …."""
    rows = [[t] if isinstance(t, str) else list(t) for t in references]
    if empty := [i for i, row in enumerate(rows, 1) if not row]:
        raise Error(f"text {empty[0]} has no right translation", fix="leave it out")
    return [[row[i] if i < len(row) else None for row in rows] for i in range(max(map(len, rows)))]


def make_bleu_scorers(tokenize: str | None, lowercase: bool) -> dict[str, Any]:  # dynamic: sacrebleu has no types
    """Make the scorers of BLEU and chrF."""
    try:
        from sacrebleu.metrics import BLEU, CHRF
    except ImportError as e:
        raise Error("BLEU needs the package sacrebleu", fix='pip install "formers[eval]"') from e
    try:
        return {"bleu": BLEU(tokenize=tokenize, lowercase=lowercase), "chrf": CHRF(lowercase=lowercase)}
    except (ValueError, KeyError, RuntimeError, AssertionError) as e:
        raise Error(f"sacrebleu does not cut texts by {tokenize!r} ({e})", fix="take 13a, char or intl") from None


def rouge(references: list[TextReference], predictions: list[str], units: str = "words") -> dict[str, float]:
    """Compute ROUGE-L, -1 and -2 (F1, mean over texts) by words of any script, by characters or by Korean morphemes."""
    if units not in ROUGE_UNITS:
        raise Error(f"ROUGE has no units {units!r}", fix="choose " + ", ".join(ROUGE_UNITS))
    scores: list[Sequence[float]] = []
    for right, guess in zip(references, predictions, strict=True):
        words = split_units(guess, units)
        rows = [split_units(t, units) for t in ([right] if isinstance(right, str) else right)]
        scores.append([max(values) for values in zip(*(score_rouge_pair(row, words) for row in rows), strict=True)])
    return {f"rouge{n}": sum(s[i] for s in scores) / len(scores) for i, n in enumerate(("L", "1", "2"))}


def score_rouge_pair(true: list[str], guess: list[str]) -> tuple[float, float, float]:
    """Compute ROUGE-L, -1 and -2 of one text."""
    pairs = compute_bag_f1(list(itertools.pairwise(true)), list(itertools.pairwise(guess)))
    return f1(compute_lcs_length(true, guess), len(guess), len(true)), compute_bag_f1(true, guess), pairs


def compute_lcs_length(a: list[str], b: list[str]) -> int:
    """Return the length of the longest common subsequence, a whole row of the table at once as bits (Hyyrö 2004)."""
    places: dict[str, int] = {}
    for i, part in enumerate(a):
        places[part] = places.get(part, 0) | 1 << i
    everything = (1 << len(a)) - 1
    row = everything
    for part in b:
        hit = row & places.get(part, 0)
        row = ((row + hit) | (row - hit)) & everything
    return len(a) - row.bit_count()


def split_units(text: str, units: str) -> list[str]:
    """Split a text into units: runs of letters, numbers and their marks, single characters, or morphemes."""
    text = compose_nfc(text).lower()
    if units == "morphemes":
        from ..text.korean import tag_morphemes

        return [text[begin:end] for begin, end, _ in tag_morphemes(text)]
    kept = "".join(c if unicodedata.category(c)[0] in "LNM" else " " for c in text).split()
    words = [word for word in kept if any(unicodedata.category(c)[0] != "M" for c in word)]  # not ️ of an emoji
    return words if units == "words" else list("".join(words))


KLUE_TAGS = (*(f"{mark}-{kind}" for kind in ("PS", "LC", "OG", "DT", "TI", "QT") for mark in "BI"), "O")
KLUE_RELATIONS = (  # those that LAS tells apart
    "NP", "NP_AJT", "VP", "NP_SBJ", "VP_MOD", "NP_OBJ", "AP", "NP_CNJ", "NP_MOD", "VNP", "DP", "VP_AJT", "VNP_MOD",
    "NP_CMP", "VP_SBJ",
)  # fmt: skip
SIMILAR_FROM = 3.0  # the score from which on KLUE-STS takes two sentences for similar


def score_klue_tags(references: list[Sequence[str]], predictions: list[Sequence[str]]) -> dict[str, float]:
    """Score KLUE-NER as its baseline does: F1 of entities, the mean over their kinds, where an entity begins with B-
    (IOB2, strict), and F1 of characters, the mean over all tags, O among them; a tag that never occurs counts as 1."""
    entities = [
        Counter((n, *e) for n, row in enumerate(rows) for e in find_strict_entities(row))
        for rows in (references, predictions)
    ]
    both = entities[0] & entities[1]
    by_kind = [Counter(kind for _, kind, *_ in counts.elements()) for counts in (*entities, both)]
    entity_scores = f1_by_label(*by_kind).values()
    flat = [t for row in references for t in row], [g for row in predictions for g in row]
    right = Counter(t for t, g in zip(*flat, strict=True) if t == g)
    tag_scores = dict.fromkeys(KLUE_TAGS, 1.0) | f1_by_label(Counter(flat[0]), Counter(flat[1]), right)
    return {
        "entity_f1_macro": sum(entity_scores) / len(entity_scores) if entity_scores else 0.0,
        "char_f1_macro": sum(tag_scores.values()) / len(tag_scores),
    }


def find_strict_entities(tags: Sequence[str]) -> list[tuple[str, int, int]]:
    """(kind, first, last) of each entity that begins with B-; an I- that follows nothing of its kind is none."""
    entities: list[tuple[str, int, int]] = []
    for place, tag in enumerate(tags):
        mark, kind = tag[:1], tag[2:]
        if mark == "B":
            entities.append((kind, place, place))
        elif mark == "I" and entities and entities[-1][0] == kind and entities[-1][2] == place - 1:
            entities[-1] = kind, entities[-1][1], place
    return entities


def score_klue_trees(references: list[Tree], predictions: list[Tree]) -> dict[str, float]:
    """Score KLUE-DP as its baseline does, each word with its head and its relation: F1 of heads, the mean over their
    numbers (UAS), and of relations, the mean over their names (LAS). There a word with a wrong head has a relation of
    its own, which is never right, and all rare relations are one."""
    words = [[word for tree in side for word in tree] for side in (references, predictions)]
    right_heads, heads = ([head for head, _ in side] for side in words)
    right, relations = ([name if name in KLUE_RELATIONS else "others" for _, name in side] for side in words)
    counted_relations = [
        one if a == b else "wrong head" for one, a, b in zip(relations, right_heads, heads, strict=True)
    ]
    return {
        "uas_f1_macro": score_labels(right_heads, heads)["f1_macro"],
        "las_f1_macro": score_labels(right, counted_relations)["f1_macro"],
    }


def score_dialogue_states(references: list[Sequence[str]], predictions: list[Sequence[str]]) -> dict[str, float]:
    """Score KLUE-DST (Wizard of Seoul) as its baseline does: the share of turns whose slots are all right and no other
    (joint goal accuracy), and F1 of slots, the mean over turns; of a turn without slots only no slot is right."""
    joint, slots = 0, 0.0
    for right, guess in zip(references, predictions, strict=True):
        joint += set(right) == set(guess)
        both = sum(slot in guess for slot in right)
        wrong = sum(slot not in right for slot in guess)
        slots += f1(both, both + wrong, len(right)) if right else float(not guess)
    return {"joint_goal_accuracy": joint / len(references), "slot_f1": slots / len(references)}


def score_klue_answers(references: list[Sequence[str]], predictions: list[str]) -> dict[str, float]:
    """Score KLUE-MRC as its baseline does: exact matches, and its ROUGE-W, which is F1 of the longest stretch of
    characters that both have; of a question without an answer only "" is right."""
    scores = []
    for right, guess in zip(references, predictions, strict=True):
        answer = normalise_klue(guess)
        rows = [normalise_klue(t) for t in right] or [""]
        rouge = [f1(compute_common_stretch(t, answer), len(answer), len(t)) if t else float(not answer) for t in rows]
        scores.append((float(answer in rows), max(rouge)))
    return {name: sum(s[i] for s in scores) / len(scores) for i, name in enumerate(("exact", "rouge_w"))}


def normalise_klue(text: str) -> str:
    """Return KLUE-MRC's plain form: lower case, no ASCII punctuation."""
    return " ".join(compose_nfc(text).lower().translate(PUNCTUATION).split())


def compute_common_stretch(a: str, b: str) -> int:
    """Return the length of the longest string that is in both."""
    best, row = 0, [0] * (len(b) + 1)
    for char in a:
        row = [0, *(row[i] + 1 if char == other else 0 for i, other in enumerate(b))]
        best = max(best, *row)
    return best


def score_relations(references: list[str], predictions: list[str], no_relation: str = "no_relation") -> float:
    """Return F1 over all relations together, without those that are none (KLUE-RE's micro F1)."""
    right = sum(t == g != no_relation for t, g in zip(references, predictions, strict=True))
    return f1(right, sum(g != no_relation for g in predictions), sum(t != no_relation for t in references))


def compute_auprc(references: Sequence[str], probabilities: np.ndarray, labels: Sequence[str]) -> float:
    """Return the area under the curve of precision over recall, by trapezoids, the mean over labels; `probabilities`
    are (rows, labels). A label that no row has counts 0.5 as in scikit-learn, whose recall is then 1 throughout."""
    areas = []
    for column, label in enumerate(labels):
        order = np.argsort(-probabilities[:, column], kind="stable")
        scores, hits = probabilities[order, column], np.array([references[i] == label for i in order], float)
        last = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)  # the last row of each equal score
        true = np.cumsum(hits)[last]
        precision = np.append(1.0, true / (last + 1))
        recall = np.append(0.0, true / true[-1] if true[-1] else np.ones_like(true))
        areas.append(float((np.diff(recall) * (precision[1:] + precision[:-1])).sum() / 2))
    return sum(areas) / len(areas)


METRICS: dict[str, Callable[..., dict[str, float]]] = {
    "classify": score_labels, "regress": score_numbers, "tag": score_tags, "answer": score_answers,
    "choose": score_labels, "translate": bleu, "summarise": rouge,
}  # fmt: skip


MIN_DF_EXAMPLES = 5000  # examples from which on n-grams that occur once are left out
MAX_NGRAMS = 400_000  # n-grams of each kind


def run_baseline(
    train: Sequence[Row], valid: Sequence[Row], tell: ProgressCallback = lambda *_: None, **more: object
) -> dict[str, float]:
    """Return the metrics that a linear model over n-grams reaches on `valid`; rows are those of classify or regress."""
    model = LinearBaseline(train, tell)
    predictions = model.predict_labels(valid)
    tell("baseline", 3, 3, "TF-IDF + linear")
    return compute_metrics(model.task, [row["label"] for row in valid], predictions, **more)


def run_majority_baseline(train: Sequence[Row], valid: Sequence[Row], **more: object) -> dict[str, float]:
    """Return the metrics on `valid` of the most frequent label in `train`; none where labels are numbers or lists."""
    labels = [row["label"] for row in train]
    if not all(isinstance(label, str) for label in labels):
        return {}
    top = Counter(labels).most_common(1)[0][0]
    return compute_metrics("classify", [row["label"] for row in valid], [top] * len(valid), **more)


def describe_baselines(part: str, measured: Mapping[str, Mapping[str, float]]) -> str:
    """Format the main metric of each baseline in one line, with its part of the data; empty without baselines."""
    if not (baselines := {name: values for name, values in measured.items() if values}):
        return ""
    main = next(iter(next(iter(baselines.values()))))
    shown = "{:.1f} %" if main == "accuracy" else "{:.4f}"
    phrases = (
        f"{name} {shown.format(v[main] * 100 if main == 'accuracy' else v[main])}" for name, v in baselines.items()
    )
    return f"baseline on the {part} part ({main}): {', '.join(phrases)}"


class LinearBaseline:
    """TF-IDF of words (1 and 2) and of characters inside words (2 to 4, which is what Korean particles and verb ends
    need), with logistic regression, or ridge regression for numbers. Of pairs, both sides and what they share."""

    def __init__(self, train: Sequence[Row], tell: ProgressCallback = lambda *_: None):
        if not has_sklearn():
            raise Error("a baseline needs the package scikit-learn", fix='pip install "formers[eval]"')
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.pipeline import make_union

        if not train:
            raise Error("there is nothing to learn from", fix="give at least one example for each label")
        labels = [row["label"] for row in train]
        if any(label is None for label in labels):
            raise Error("some examples have no label", fix="leave them out")
        least = 2 if len(train) > MIN_DF_EXAMPLES else 1
        how = {
            "sublinear_tf": True, "min_df": least, "max_features": MAX_NGRAMS, "preprocessor": normalise_text,
            "dtype": np.float32,
        }  # fmt: skip
        words = TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", **how)
        self.vectorizer = make_union(words, TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), **how))
        self.has_pairs = any(row.get("other") is not None for row in train)
        self.is_multilabel = any(map(is_label_list, labels))
        self.task = "regress" if all(isinstance(v, float | int) for v in labels) else "classify"
        tell("baseline", 0, 3, "TF-IDF: n-grams are counted")
        self.vectorizer.fit([text for row in train for text in self.get_texts(row)])
        tell("baseline", 1, 3, "TF-IDF: a linear model learns")
        features, classifier = self.build_features(train), LogisticRegression(C=10.0, max_iter=300)
        every = {v for label in labels for v in (label if self.is_multilabel else [label])}
        self.labels: list[Answer] = sorted(every) if self.task == "classify" else []
        if self.task == "regress":
            self.model: Any = Ridge(alpha=1.0).fit(features, labels)  # dynamic: scikit-learn has no types
        elif self.is_multilabel:
            truth = np.array([[name in label for name in self.labels] for label in labels], int)
            self.model = OneVsRestClassifier(classifier).fit(features, truth)
        elif len(self.labels) > 1:
            self.model = classifier.fit(features, labels)
        tell("baseline", 2, 3, "TF-IDF: predictions")

    def get_texts(self, row: Row) -> list[str]:
        """Return the texts of a row."""
        return [row["text"], row.get("other") or ""] if self.has_pairs else [row["text"]]

    def build_features(self, rows: Sequence[Row]) -> Any:  # dynamic: a matrix of scipy, which has no types
        """(rows, n-grams), sparse; of pairs both sides, their products, and how near they are."""
        from scipy.sparse import csr_matrix, hstack

        first, *rest = (self.vectorizer.transform(side) for side in zip(*map(self.get_texts, rows), strict=True))
        if not rest:
            return first
        shared = first.multiply(rest[0])
        return hstack([first, rest[0], shared, csr_matrix(shared.sum(1))]).tocsr()

    def predict_labels(self, rows: Sequence[Row]) -> list[Answer]:
        """Predict a label, a list of labels or a number for each row."""
        if not rows:
            return []
        if self.task == "regress":
            return [float(v) for v in self.model.predict(self.build_features(rows))]
        if self.is_multilabel:
            is_chosen = self.predict_probabilities(rows) > 0.5
            return [[name for name, yes in zip(self.labels, row, strict=True) if yes] for row in is_chosen]
        return [self.labels[i] for i in self.predict_probabilities(rows).argmax(1)]

    def predict_probabilities(self, rows: Sequence[Row]) -> np.ndarray:
        """(rows, labels) the probability of each label."""
        if len(self.labels) < 2 and not self.is_multilabel:
            return np.ones((len(rows), 1))
        return self.model.predict_proba(self.build_features(rows)).reshape(len(rows), -1)


def normalise_text(text: str) -> str:
    """Compose a text (NFC) and lower its case: decomposed Hangul would have n-grams of its own."""
    return compose_nfc(text).lower()


def has_sklearn() -> bool:
    """Return whether scikit-learn is installed."""
    return importlib.util.find_spec("sklearn") is not None
