"""Bank and bank: contextual vectors of one word in several senses in two dimensions, and its one static vector."""

from __future__ import annotations

import itertools
import random
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import Error
from ..former import Former
from ..inspection.embed import embed_in_context, find_occurrences
from ..interop.model_directory import load
from ..reports.pictures import MAX_NAMES, draw_points
from ..tasks.word_vectors import get_unit_vectors, look_up_words
from ..training.runs.pretrain import pretrain
from .page import Page
from .small_models import encode_corpus, train_small

EXPLANATION = (
    ("Every point is the vector of the same word in another sentence; its colour is the sense that it has there.",
     "각 점은 같은 단어가 다른 문장에서 갖는 벡터이며, 색은 그 문장에서의 뜻입니다."),
    ("In the embeddings the points differ by their position in the sentence alone, because the word is one row of a table.",
     "임베딩에서는 단어가 표의 한 행이므로 점들이 문장 내 위치에 따라서만 다릅니다."),
    ("See whether the senses lie apart in the last layer: if so, the words around it have moved the vector.",
     "마지막 레이어에서 뜻별로 나뉘는지 보십시오. 나뉜다면 주변 단어가 벡터를 움직인 것입니다."),
    ("A static vector (word2vec) is one point for all senses: the mean cosines tell which sense has the words that it is nearest to.",
     "정적 벡터(word2vec)는 모든 뜻이 한 점입니다. 평균 코사인을 보면 어느 뜻의 단어들과 가장 가까운지 알 수 있습니다."),
    ("The accuracy by layer is how often the nearest other sentence has the same sense: compare it with chance in the table.",
     "레이어별 정확도는 가장 가까운 다른 문장의 뜻이 같은 비율입니다. 표의 우연 수준과 비교하십시오."),
)  # fmt: skip
# By language: the word, and for each sense its name, the beginnings and the ends of sentences about it.
GRAMMARS: dict[str, tuple[str, dict[str, tuple[tuple[str, ...], ...]]]] = {
    "en": ("bank", {
        "river": (("the boat reached the", "the fisherman slept on the", "willows grow along the", "the flood rose over the", "children swam to the"),
                  ("bank of the river", "muddy bank near the water", "green bank of the stream", "bank where the water is deep"),
                  ("and caught some fish", "at low tide", "under the trees", "before the rain came", "in the summer")),
        "money": (("the merchant paid the", "she asked the clerk of the", "the company owes the", "investors trust the", "the clerk opened the"),
                  ("bank a large sum", "bank for a loan", "bank with high interest", "national bank of the city", "bank in the market street"),
                  ("and saved some money", "at a low rate", "with a cheque", "before the crisis came", "in dollars")),
    }),
    "ko": ("배", {
        "선박": (("항구에서", "어부가", "선장이", "바다에서", "섬으로 가는"), ("큰 배 를 타고", "배 에 올라", "낡은 배 를 고쳐", "배 가 떠나고"),
                ("바다로 나갔다", "파도를 넘었다", "고기를 잡았다", "섬에 닿았다")),
        "과일": (("시장에서", "할머니가", "과수원에서", "가을에", "농부가"), ("달콤한 배 를 깎아", "배 를 따서", "노란 배 를 골라", "배 가 익어"),
                ("접시에 담았다", "나누어 먹었다", "상자에 넣었다", "즙을 짰다")),
        "신체": (("아침부터", "아이가", "환자가", "밤새", "점심을 먹고"), ("배 가 아파서", "아픈 배 를 만지며", "배 가 불러서", "배 에 통증이 있어"),
                ("병원에 갔다", "약을 먹었다", "의사를 만났다", "자리에 누웠다")),
    }),
}  # fmt: skip
MIN_COUNT = 3  # sentences that have a word of a sense: fewer say nothing
OWN_COPIES = 20  # of the user's sentences in the training text


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment. --file gives sentences of your own: the sense, a tab and a sentence in each line.

    Attributes:
        word: The word that is looked at.
        model: A model of your own, such as a published BERT; a small one is trained on sentences made by templates without it.
        steps: Training steps of the small model.
        points: Sentences of each sense that are drawn.
        sentences: Training sentences of each sense.
        epochs: Epochs of the static vectors.
    """

    word: str | None = None
    model: str | None = None
    steps: int = 300
    points: int = 24
    sentences: int = 1500
    epochs: int = 100


def make_sentences(language: str, count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Make sentences with the word in each sense: (sense, sentence), in random order."""
    draw, rows = random.Random(seed), []
    for sense, parts in GRAMMARS[language][1].items():
        every = [" ".join(words) for words in itertools.product(*parts)]
        rows += [(sense, draw.choice(every)) for _ in range(count)]
    draw.shuffle(rows)
    return rows


def collect_vectors(former: Former, rows: list[tuple[str, str]], word: str, layer: int) -> Tensor:
    """Collect the vector of the word (n, dim) in each sentence, from one layer."""
    texts = [sentence for _, sentence in rows]
    occurrences = embed_in_context(former, texts, [find_occurrences(text, word)[:1] for text in texts], layers=layer)
    return torch.stack([vector for _, vector in occurrences])


def project(vectors: Tensor) -> Tensor:
    """Project vectors (n, dim) to the two directions in which they differ most (n, 2)."""
    centred = vectors - vectors.mean(0)
    _, _, directions = torch.linalg.svd(centred, full_matrices=False)
    return centred @ directions[:2].T


def measure_separation(vectors: Tensor, senses: list[str]) -> float:
    """Measure how often the nearest other sentence has the same sense; sentences of equal vectors count by chance."""
    unit = torch.nn.functional.normalize(vectors - vectors.mean(0), dim=-1)
    table = unit @ unit.T
    table.fill_diagonal_(-torch.inf)
    right = 0.0
    for i, row in enumerate(table):
        nearest = (row >= row.max() - 1e-6).nonzero().flatten().tolist()
        right += sum(senses[j] == senses[i] for j in nearest) / len(nearest)
    return right / len(senses)


def find_marks(rows: list[tuple[str, str]], word: str, count: int) -> dict[str, list[str]]:
    """Find the words that mark each sense: the most frequent ones that occur in sentences of this sense alone, in
    several of them."""
    counts: dict[str, Counter[str]] = {}
    for sense, sentence in rows:
        counts.setdefault(sense, Counter()).update(set(sentence.split()))
    marks = {}
    for sense, words in counts.items():
        others = {name for other, some in counts.items() if other != sense for name in some}
        often = sorted((-times, name) for name, times in words.items() if times >= MIN_COUNT)
        marks[sense] = [name for _, name in often if name not in others and name != word][:count]
    return marks


def train_static(page: Page, texts: list[str], epochs: int) -> Former:
    """Train word2vec on sentences."""
    with tempfile.TemporaryDirectory() as folder:
        page.tell("word2vec", 0, 1, "")
        train = {"epochs": epochs, "threads": 1}
        return pretrain("word2vec", texts, out=Path(folder) / "run", model={"dim": 48}, train=train).former


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Draw the word's vectors of the first and the last layer, and print its static neighbours."""
    local, s = page.localise, settings
    word = s.word or GRAMMARS[page.language][0]
    training_rows = make_sentences(page.language, s.sentences)
    tests = make_sentences(page.language, s.points, seed=1)
    if page.documents is not None:
        rows = (line.partition("\t") for document in page.documents for line in document.split("\n"))
        tests = [(sense, sentence) for sense, tab, sentence in rows if tab]
        training_rows += tests * OWN_COPIES
    tests = [(sense, sentence) for sense, sentence in tests if find_occurrences(sentence, word)]
    if len(tests) < 4 or len({sense for sense, _ in tests}) < 2:
        what = f"there are {len(tests)} sentences with {word!r}, and two senses with two each are needed"
        raise Error(what, fix="give --word, and a --file with lines of sense, tab, sentence")
    texts = [sentence for _, sentence in training_rows]
    if s.model is None:
        cut = len(texts) // 20
        data = encode_corpus("bert", texts[cut:], texts[:cut], 400)
        former = train_small(
            page,
            "bert",
            data,
            s.steps,
            model={"dim": 64, "layers": 2, "heads": 4, "ff": 256, "context": 64},
            objective={"name": "mlm"},
            train={"seq_length": 24},
        ).former
    else:
        former = load(s.model)
    usual_note = local(
        "The sentences and the training text are made by templates.", "문장과 학습 텍스트는 템플릿으로 만든 것입니다."
    )
    own_note = local(f"The training text: sentences made by templates, and yours {OWN_COPIES} times; the points are yours alone.",
                f"학습 텍스트는 템플릿으로 만든 문장과 {OWN_COPIES}번 반복한 여러분의 문장이며, 점은 여러분의 문장만 나타냅니다.")  # fmt: skip
    page.add_note(usual_note if page.documents is None else own_note, shown=True)
    layers = range(former.config.layers + 1)
    names = [sense for sense, _ in tests]
    by_layer = [collect_vectors(former, tests, word, layer) for layer in layers]
    accuracy = [measure_separation(vectors, names) for vectors in by_layer]
    for layer, title in ((0, local("embeddings; equal points of several senses show as rings", "임베딩. 뜻이 다른 점들이 겹치면 고리로 보입니다")),
                         (len(by_layer) - 1, local("last layer", "마지막 레이어"))):  # fmt: skip
        groups: dict[str, list[tuple[float, float, str]]] = {}
        for (sense, sentence), (x, y) in zip(tests, project(by_layer[layer]).tolist(), strict=True):
            groups.setdefault(sense, []).append((x, y, sentence))
        page.add_picture(draw_points(groups, f"“{word}” (PCA): {title}"))
    chance = sum(count * (count - 1) for count in Counter(names).values()) / (len(names) * (len(names) - 1))
    levels = [local("embeddings", "임베딩"), *(f"{local('layer', '레이어')} {i}" for i in layers[1:])]
    page.add_table(local("How often the nearest other sentence has the same sense", "가장 가까운 다른 문장의 뜻이 같은 비율"), (local("layer", "레이어"), local("accuracy", "정확도")),
                   [(local("chance", "우연 수준"), f"{chance:.0%}"),
                    *((level, f"{v:.0%}") for level, v in zip(levels, accuracy, strict=True))])  # fmt: skip
    static = train_static(page, texts, s.epochs)
    known = [(sense, " ".join(w for w in text.split() if look_up_words(static, [w])[1].all())) for sense, text in tests]
    marks = find_marks(known, word, (MAX_NAMES - 1) // len(set(names)))
    chosen = [*((sense, mark) for sense in dict.fromkeys(names) for mark in marks[sense]), (word, word)]
    if len(chosen) < 3:
        page.add_note(local(f"No static vectors are shown: hardly any word occurs in {MIN_COUNT} sentences of one sense and in none of another.",
                            f"정적 벡터는 표시하지 않습니다. 한 뜻의 문장 {MIN_COUNT}개 이상에만 나오는 단어가 거의 없습니다."), shown=True)  # fmt: skip
        return {"embeddings": accuracy[0], "last": accuracy[-1], "chance": chance, "marks": float(len(chosen) - 1)}
    vectors = get_unit_vectors(static, [mark for _, mark in chosen])
    plane: dict[str, list[tuple[float, float, str]]] = {}
    for (group, mark), (x, y) in zip(chosen, project(vectors).tolist(), strict=True):
        plane.setdefault(group, []).append((x, y, mark))
    page.add_picture(draw_points(plane, local(f"static vectors (word2vec): one “{word}”, and words of each sense",
                                              f"정적 벡터(word2vec): “{word}” 하나와 뜻별 단어들")))  # fmt: skip
    close = {
        sense: float((get_unit_vectors(static, some) @ vectors[-1]).mean()) for sense, some in marks.items() if some
    }
    page.add_table(local(f"Static “{word}” and the words of each sense", f"정적 벡터 “{word}”와 뜻별 단어"),
                   (local("sense", "뜻"), local("words", "단어"), local("mean cosine", "평균 코사인")),
                   [(sense, ", ".join(some), close.get(sense, "")) for sense, some in marks.items()])  # fmt: skip
    return {
        "embeddings": accuracy[0],
        "last": accuracy[-1],
        "chance": chance,
        "marks": float(sum(map(len, marks.values()))),
    }
