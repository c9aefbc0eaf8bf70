"""What n-grams and a linear model make of a task (extra `eval`): the number that a pretrained model has to beat."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..config import ProgressCallback
from ..errors import Error
from ..text.normalise import compose_nfc
from .task_metrics import compute_metrics, is_label_list

MIN_DF_EXAMPLES = 5000  # examples from which on n-grams that occur once are left out
MAX_NGRAMS = 400_000  # n-grams of each kind
Row = dict[str, Any]


def run_baseline(
    train: Sequence[Row], valid: Sequence[Row], tell: ProgressCallback = lambda *_: None, **more: Any
) -> dict[str, float]:
    """The measures that a linear model over n-grams reaches on `valid`; rows are those of classify or regress."""
    model = LinearBaseline(train, tell)
    guesses = model.predict_labels(valid)
    tell("baseline", 3, 3, "TF-IDF + linear")
    return compute_metrics(model.task, [row["label"] for row in valid], guesses, **more)


def run_majority_baseline(train: Sequence[Row], valid: Sequence[Row], **more: Any) -> dict[str, float]:
    """The measures on `valid` of the label that is most frequent in `train`; none where labels are numbers or lists."""
    labels = [row["label"] for row in train]
    if not all(isinstance(label, str) for label in labels):
        return {}
    top = Counter(labels).most_common(1)[0][0]
    return compute_metrics("classify", [row["label"] for row in valid], [top] * len(valid), **more)


def describe_baselines(part: str, measured: Mapping[str, Mapping[str, float]]) -> str:
    """The main measure of each baseline in one line, with the part of the data it is of; empty without baselines."""
    found = {name: values for name, values in measured.items() if values}
    if not found:
        return ""
    main = next(iter(next(iter(found.values()))))
    shown = "{:.1f} %" if main == "accuracy" else "{:.4f}"
    told = (f"{name} {shown.format(v[main] * 100 if main == 'accuracy' else v[main])}" for name, v in found.items())
    return f"baseline on the {part} part ({main}): {', '.join(told)}"


class LinearBaseline:
    """TF-IDF of words (1 and 2) and of characters inside words (2 to 4, which is what Korean particles and verb ends
    need), with logistic regression, or ridge regression for numbers. Of pairs, both sides and what they share."""

    def __init__(self, train: Sequence[Row], tell: ProgressCallback = lambda *_: None):
        require_sklearn()
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.pipeline import make_union

        if not train:
            raise Error("there is nothing to learn from", fix="give at least one example for each label")
        labels = [row["label"] for row in train]
        if any(label is None for label in labels):
            raise Error("some examples have no label", fix="leave them out")
        least = 2 if len(train) > MIN_DF_EXAMPLES else 1
        how = {
            "sublinear_tf": True,
            "min_df": least,
            "max_features": MAX_NGRAMS,
            "preprocessor": normalise_text,
            "dtype": np.float32,
        }
        self.vectorizer = make_union(
            TfidfVectorizer(ngram_range=(1, 2), token_pattern=r"\w+|[^\w\s]", **how),
            TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), **how),
        )
        self.has_pairs = any(row.get("other") is not None for row in train)
        self.is_multilabel = any(map(is_label_list, labels))
        self.task = "regress" if all(isinstance(v, float | int) for v in labels) else "classify"
        tell("baseline", 0, 3, "TF-IDF: n-grams are counted")
        self.vectorizer.fit([text for row in train for text in self.get_texts(row)])
        self.labels: list[Any] = []
        tell("baseline", 1, 3, "TF-IDF: a linear model learns")
        self.fit_model(self.build_features(train), labels)
        tell("baseline", 2, 3, "TF-IDF: it guesses")

    def fit_model(self, features: Any, labels: list[Any]) -> None:
        """Fit the linear model."""
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multiclass import OneVsRestClassifier

        if self.task == "regress":
            self.model: Any = Ridge(alpha=1.0).fit(features, labels)
            return
        self.labels = sorted({v for label in labels for v in (label if self.is_multilabel else [label])})
        if self.is_multilabel:
            truth = np.array([[name in label for name in self.labels] for label in labels], int)
            self.model = OneVsRestClassifier(LogisticRegression(C=10.0, max_iter=300)).fit(features, truth)
        elif len(self.labels) > 1:
            self.model = LogisticRegression(C=10.0, max_iter=300).fit(features, labels)

    def get_texts(self, row: Row) -> list[str]:
        """The texts of a row."""
        return [row["text"], row.get("other") or ""] if self.has_pairs else [row["text"]]

    def build_features(self, rows: Sequence[Row]) -> Any:
        """(rows, n-grams), sparse; of pairs both sides, their products, and how near they are."""
        from scipy.sparse import csr_matrix, hstack

        first, *rest = (self.vectorizer.transform(side) for side in zip(*map(self.get_texts, rows), strict=True))
        if not rest:
            return first
        shared = first.multiply(rest[0])
        return hstack([first, rest[0], shared, csr_matrix(shared.sum(1))]).tocsr()

    def predict_labels(self, rows: Sequence[Row]) -> list[Any]:
        """A label, a list of labels or a number for each row."""
        if not rows:
            return []
        if self.task == "regress":
            return [float(v) for v in self.model.predict(self.build_features(rows))]
        if self.is_multilabel:
            found = self.predict_probabilities(rows) > 0.5
            return [[name for name, yes in zip(self.labels, row, strict=True) if yes] for row in found]
        return [self.labels[i] for i in self.predict_probabilities(rows).argmax(1)]

    def predict_probabilities(self, rows: Sequence[Row]) -> np.ndarray:
        """(rows, labels) the probability of each label."""
        if len(self.labels) < 2 and not self.is_multilabel:
            return np.ones((len(rows), 1))
        return self.model.predict_proba(self.build_features(rows)).reshape(len(rows), -1)


def normalise_text(text: str) -> str:
    """Composed and in lower case: decomposed Hangul would have n-grams of its own."""
    return compose_nfc(text).lower()


def require_sklearn() -> None:
    """scikit-learn, or the way to get it."""
    if not has_sklearn():
        raise Error("a baseline needs the package scikit-learn", fix='pip install "formers[eval]"')


def has_sklearn() -> bool:
    """Whether scikit-learn is installed."""
    try:
        import sklearn  # noqa: F401
    except ImportError:
        return False
    return True
