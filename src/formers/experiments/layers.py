"""What the layers know: linear probes of every layer of a model, and the mix of ELMo's layers that each task learns."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..data.store import Store
from ..errors import Error
from ..former import Former
from ..interop.model_directory import load
from ..nn.layers import ScalarMix
from ..reports.pictures import draw_bars, draw_curves
from ..text.word_level import encode_sentence, split_words
from .page import Page
from .small_models import SMALL_SIZES, SmallModel, prepare_corpus, train_small

EXPLANATION = (
    ("A probe is a linear layer that is trained on frozen states: what it can read off them is what the layer knows.",
     "프로브는 고정된 상태 위에서 학습하는 선형 레이어이며, 프로브가 읽어 낼 수 있는 것이 그 레이어가 아는 것입니다."),
    ("Follow each line to the right, up the layers: where the accuracy for the token or its position falls, the layer has given that up for something else.",
     "선을 왼쪽의 아래 레이어에서 오른쪽의 위 레이어로 따라가 보십시오. 토큰이나 위치의 정확도가 떨어지는 곳에서는 레이어가 그 정보를 다른 정보로 바꾼 것입니다."),
    ("Embeddings have not seen the neighbours, which can only be guessed from the token; a rise in a later layer is what attention has brought in.",
     "임베딩은 이웃 토큰을 보지 못해 토큰 자체로 짐작할 뿐입니다. 뒤 레이어에서 정확도가 오르면 어텐션이 가져온 정보입니다."),
    ("Compare with the majority in the table, the share of the most frequent answer: at or below it a probe has read nothing.",
     "표의 가장 흔한 답의 비율과 비교하십시오. 그보다 높지 않으면 프로브는 아무것도 읽지 못한 것입니다."),
    ("ELMo lets each task learn its mix: see whether spelling (the last letter) takes more of the lowest layer than questions about the context do.",
     "ELMo는 과제마다 레이어의 가중합을 학습합니다. 철자(마지막 글자)가 문맥에 관한 과제보다 가장 아래 레이어를 더 많이 쓰는지 보십시오."),
)  # fmt: skip
CLASSES = 30  # of tokens: the most frequent ones
BERT_VOCAB_SIZE, WINDOW = 512, 32  # few tokens, and short texts: a small BERT leaves their frequencies sooner
MIN_WINDOWS = 3


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        model: A model of your own to probe, such as a published BERT; a small BERT is trained without one.
        steps: Training steps of the small BERT, which learns token frequencies for long before it uses its context.
        elmo_steps: Training steps of ELMo.
        tokens: Tokens that the probes are trained and tested on.
        mix_steps: Training steps of ELMo's mixes.
        characters: Characters of the training text.
    """

    model: str | None = None
    steps: int = 2200
    elmo_steps: int = 150
    tokens: int = 6000
    mix_steps: int = 150
    characters: int = 300_000


def fit_probe(states: Tensor, labels: Tensor, classes: int) -> float:
    """Fit a linear probe by ridge regression on the first two thirds of states (n, dim) with labels (n,); return its
    accuracy on the rest. Labels of -1 do not count."""
    known = labels >= 0
    states, labels = F.layer_norm(states[known], states.shape[-1:]), labels[known]
    x = torch.cat((states, torch.ones(len(states), 1)), -1).double()
    y = F.one_hot(labels, classes).double()
    cut = 2 * len(x) // 3
    weights = torch.linalg.solve(x[:cut].T @ x[:cut] + 1.0 * torch.eye(x.shape[1]).double(), x[:cut].T @ y[:cut])
    return float(((x[cut:] @ weights).argmax(-1) == labels[cut:]).float().mean())


def make_token_labels(rows: Tensor) -> dict[str, tuple[Tensor, int]]:
    """Make the questions of the probes over windows of tokens (rows, length): the token itself, the one before, the one
    after (the most frequent ones), and the eighth of the window that it stands in."""
    common = torch.bincount(rows.flatten()).topk(min(CLASSES, int(rows.max()) + 1)).indices
    table = torch.full((int(rows.max()) + 1,), -1)
    table[common] = torch.arange(len(common))
    own, length = table[rows], rows.shape[1]
    before, after = (
        F.pad(own, pad, value=-1)[:, cut] for pad, cut in (((1, 0), slice(0, length)), ((0, 1), slice(1, None)))
    )
    place = (torch.arange(length) * 8 // length).expand_as(rows)
    return {"token": (own.flatten(), CLASSES), "before": (before.flatten(), CLASSES), "after": (after.flatten(), CLASSES),
            "position": (place.flatten(), 8)}  # fmt: skip


def check_tokens(store: Store, tokens: int) -> None:
    """Refuse validation text, or a number of its tokens, that is too short for windows to learn from and to test on."""
    needed, usable = MIN_WINDOWS * WINDOW, min(tokens, len(store.tokens))
    if usable < needed:
        what = f"the probes would have {usable} tokens of validation text, and {needed} are needed"
        raise Error(what, fix=f"--tokens {needed} or more" if tokens < needed else "give a longer file")


@torch.no_grad()
def probe_layers(
    former: Former, store: Store, tokens: int, length: int = WINDOW
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the accuracy of each probe by layer, and that of the most frequent answer."""
    count = min(tokens, len(store.tokens)) // length
    rows = torch.as_tensor(np.asarray(store.tokens[: count * length]).astype(np.int64)).view(count, length)
    states = torch.cat([former.hidden(part, layer=None) for part in rows.split(64)], 1)  # (L + 1, rows, length, dim)
    accuracies, chance = {}, {}
    for name, (labels, classes) in make_token_labels(rows).items():
        known = labels[labels >= 0]
        chance[name] = float(known[2 * len(known) // 3 :].eq(known.mode().values).float().mean())
        accuracies[name] = [fit_probe(layer.flatten(0, 1), labels, classes) for layer in states]
    return accuracies, chance


def choose_word_questions(words: list[str]) -> tuple[str, str]:
    """Choose what the tasks over words ask for: the letter that most words end in, and the most frequent word."""
    words = [word for word in words if any(map(str.isalnum, word))] or words  # a comma is a word here
    last = max(
        dict.fromkeys(word[-1] for word in words), key=lambda c: min(sum(w[-1] == c for w in words), len(words) // 2)
    )
    return last, max(dict.fromkeys(words), key=words.count)


def make_word_tasks(words: list[str]) -> dict[str, Tensor]:
    """Make tasks over words, yes or no: the last letter (form alone), and the words around it (context)."""
    last, common = choose_word_questions(words)
    marks = {
        "last letter": [word[-1] == last for word in words],
        "next word": [follower == common for follower in [*words[1:], ""]],
        "word before": [earlier == common for earlier in ["", *words[:-1]]],
    }
    return {name: torch.tensor(values).long() for name, values in marks.items()}


def fit_mix(layers: list[Tensor], labels: Tensor, steps: int) -> tuple[list[float], float]:
    """Train a mix of frozen layers, each (n, dim), with a linear classifier; return the share of each layer, and the
    balanced accuracy on the last third."""
    torch.manual_seed(0)
    mix, out = ScalarMix(len(layers), "token"), nn.Linear(layers[0].shape[-1], 2)
    nn.init.zeros_(mix.weight)
    nn.init.ones_(mix.scale)
    optimizer = torch.optim.Adam([*mix.parameters(), *out.parameters()], lr=0.03)
    cut = 2 * len(labels) // 3
    weight = 1 / torch.bincount(labels[:cut], minlength=2).clamp(min=1).float()
    for _ in range(steps):
        loss = F.cross_entropy(out(mix([x[:cut] for x in layers])), labels[:cut], weight)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = out(mix([x[cut:] for x in layers])).argmax(-1) == labels[cut:]
        by_class = [right[labels[cut:] == c].float().mean() for c in (0, 1) if bool((labels[cut:] == c).any())]
        return mix.weight.softmax(0).tolist(), float(torch.stack(by_class).mean())


def read_words(page: Page, count: int) -> list[list[str]]:
    """Read sentences of validation text as words, about `count` words."""
    lines = [split_words(line, lower=False) for text in page.load_documents(400_000)[1] for line in text.split("\n")]
    sizes = itertools.accumulate(len(line) for line in lines)
    return [line[:64] for line, size in zip(lines, sizes, strict=True) if line and size - len(line) < count]


@torch.no_grad()
def compute_word_states(elmo: SmallModel, sentences: list[list[str]]) -> list[Tensor]:
    """Compute the states of words in each layer of an ELMo, (n, dim) each, without those of the sentence marks."""
    slots, parts = elmo.former.config.slots, []
    for sentence in sentences:
        ids = torch.as_tensor(encode_sentence(sentence, slots))
        parts.append(elmo.former.hidden(ids[None], layer=None)[:, 0, 1:-1])
    return list(torch.cat(parts, 1))


def train_bert(page: Page, settings: Settings) -> Former:
    """Train a small BERT; it masks 30%, for more labels in a short training."""
    data = prepare_corpus(page, "bert", BERT_VOCAB_SIZE, settings.characters)
    assert data.valid_store is not None
    check_tokens(data.valid_store, settings.tokens)
    objective, sizes = {"name": "mlm", "mask_rate": 0.3}, {**SMALL_SIZES, "context": 64}
    return train_small(
        page, "bert", data, settings.steps, model=sizes, objective=objective, train={"seq_length": WINDOW}
    ).former


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Train both models, probe the one and mix the layers of the other."""
    local, s = page.localise, settings
    former = train_bert(page, s) if s.model is None else load(s.model)
    if former.tokenizer is None:
        raise Error("this model has no tokenizer", where=s.model, fix="give one that reads text, or leave model out")
    page.add_note(local(f"The probed model: {former.family}, {former.config.layers} layers.",
                        f"프로브를 적용한 모델: {former.family}, 레이어 {former.config.layers}개."))  # fmt: skip
    page.add_note(local(f"Each probe answers one question: which of the {CLASSES} most frequent tokens this one, the one before or the one after is, "
                        f"or in which eighth of its {WINDOW} tokens it stands.",
                        f"프로브마다 질문이 하나입니다. 이 토큰, 앞 토큰, 뒤 토큰이 가장 흔한 토큰 {CLASSES}개 중 무엇인지, "
                        f"또는 토큰 {WINDOW}개를 여덟 구간으로 나누었을 때 몇 번째 구간에 있는지를 묻습니다."), shown=True)  # fmt: skip
    store = Store.from_documents(page.load_documents(s.characters)[1], former.tokenizer)
    check_tokens(store, s.tokens)
    probes, chance = probe_layers(former, store, s.tokens)
    titles = {
        "token": local("the token itself", "토큰 자체"),
        "before": local("the token before", "앞 토큰"),
        "after": local("the token after", "뒤 토큰"),
        "position": local("its position", "위치"),
    }
    rows = [(titles[name], f"{chance[name]:.0%}", *(f"{v:.0%}" for v in values)) for name, values in probes.items()]
    layer_names = [
        local("embeddings", "임베딩"),
        *(f"{local('layer', '레이어')} {i + 1}" for i in range(len(probes["token"]) - 1)),
    ]
    page.add_table(
        local("Accuracy of probes by layer", "레이어별 프로브 정확도"),
        (local("question", "질문"), local("majority", "가장 흔한 답"), *layer_names),
        rows,
    )
    page.add_picture(
        draw_curves(
            {titles[n]: [(i, 100 * v) for i, v in enumerate(values)] for n, values in probes.items()},
            local("accuracy of probes by layer", "레이어별 프로브 정확도"),
            local("layer", "레이어"),
            "%",
        )
    )
    elmo_data = prepare_corpus(page, "elmo", max_characters=s.characters)
    elmo = train_small(page, "elmo", elmo_data, s.elmo_steps, train={"batch_tokens": 512})
    sentences = read_words(page, s.tokens // 2)
    words = [word for line in sentences for word in line]
    states, tasks = compute_word_states(elmo, sentences), make_word_tasks(words)
    names = {
        "last letter": local("last letter", "마지막 글자"),
        "next word": local("next word", "다음 단어"),
        "word before": local("word before", "앞 단어"),
    }
    results = {name: fit_mix(states, labels, s.mix_steps) for name, labels in tasks.items()}
    parts = [local("characters", "문자 CNN"), *(f"LSTM {i + 1}" for i in range(len(states) - 1))]
    letter, word = choose_word_questions(words)
    page.add_note(local(f"ELMo's tasks, yes or no: does the word end in “{letter}”, and is the next word or the word before “{word}”? A guess has a balanced accuracy of 50%.",
                        f"ELMo의 과제(예/아니요): 단어가 “{letter}”(으)로 끝나는지, 다음 단어 또는 앞 단어가 “{word}”인지 묻습니다. 찍을 때의 균형 정확도는 50%입니다."), shown=True)  # fmt: skip
    page.add_table(local("Shares of ELMo's layers by task", "과제별 ELMo 레이어 비율"), (local("task", "과제"), *parts, local("balanced accuracy", "균형 정확도")),
                   [(names[n], *(f"{x:.0%}" for x in shares), f"{right:.0%}") for n, (shares, right) in results.items()])  # fmt: skip
    for name, (shares, _) in results.items():
        page.add_picture(draw_bars(dict(zip(parts, shares, strict=True)), names[name], 2, limit=1.0))
    return {**{f"{n} {i}": v for n, values in probes.items() for i, v in enumerate(values)},
            **{f"mix {n}": shares[0] for n, (shares, _) in results.items()}}  # fmt: skip
