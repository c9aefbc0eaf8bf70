"""One sentence, eight objectives: what each hides and asks for; mask rates; static and dynamic masks; NSP and SOP."""

from __future__ import annotations

import html
import itertools
import math
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import numpy as np

from ..batch import IGNORE_INDEX, Batch
from ..data.loader import load_batches
from ..data.plans import RawExamples, TextObjective, TokenSource, gather_examples
from ..data.store import Store
from ..errors import Error
from ..inspection.objective_steps import explain_objectives
from ..inspection.objective_words import KOREAN_HELP
from ..objectives.masking import MaskedLM
from ..objectives.registry import OBJECTIVES, build_objective
from ..reports.pictures import draw_bars, draw_curves
from ..training.runs.prepare_data import PreparedData
from ..training.validation import evaluate
from .page import JOINED_NOTE, Page, render_chips
from .small_models import SMALL_SIZES, prepare_corpus, train_small

EXPLANATION = (
    ("Blue tokens are what the model is asked for, dashed ones what is hidden from it, orange ones what was put in their place.",
     "파란색 토큰은 모델이 예측할 것, 점선으로 두른 토큰은 가린 것, 주황색 토큰은 그 자리에 대신 넣은 것입니다."),
    ("A causal model learns from every token, a masked one from 15% of them, but sees both sides.",
     "인과 모델은 모든 토큰에서 학습하고, 마스크 모델은 15%에서만 학습하지만 양쪽을 모두 봅니다."),
    ("Few masks give few labels to learn from, many leave little to read: look for the rate with the lowest loss.",
     "마스크가 적으면 학습할 레이블이 적고, 많으면 읽을 문맥이 적습니다. 손실이 가장 낮은 비율을 찾아보십시오."),
    ("Static masks hide the same tokens in every epoch, dynamic masks draw anew: compare how many tokens each has hidden after ten, and the losses of a model trained with each.",
     "정적 마스크는 에포크마다 같은 토큰을 가리고, 동적 마스크는 매번 새로 뽑습니다. 열 에포크 뒤 가려진 토큰의 비율과, 각각으로 학습한 모델의 손실을 비교하십시오."),
    ("A swapped text (SOP) has the same words, so that shared words cannot tell it; see how far above chance they tell a random next text (NSP).",
     "순서가 바뀐 텍스트(SOP)는 단어가 같으므로 공통 단어로는 알아낼 수 없습니다. 무작위로 고른 다음 텍스트(NSP)는 공통 단어로 우연보다 얼마나 잘 알아내는지 보십시오."),
)  # fmt: skip
CHIP_KINDS = {"kept": "", "special": "off", "target": "on", "hidden": "hidden", "dropped": "hidden", "masked": "warm",
              "sentinel": "warm", "replaced": "warm", "random": "warm", "moved": "warm"}  # fmt: skip
LENGTH, PAIR_LENGTH, VOCAB_SIZE = 24, 128, 512  # tokens of an example of masks, and of one of pairs
SIZES = {**SMALL_SIZES, "layers": 1, "context": LENGTH}  # one layer leaves the plateau of token frequencies soonest
USUAL_RATE = 0.15
PACKING = {"across_documents": True, "whole_sentences": True}  # every epoch has the same examples


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        steps: Training steps of the model of each mask rate, and of each kind of masks.
        rates: Mask rates that are compared.
        epochs: Epochs over which static and dynamic masks are compared.
        pairs: Pairs of texts that NSP and SOP are compared on.
        characters: Characters of the training text.
        seed: Random seed of what is hidden.
    """

    steps: int = 1200
    rates: tuple[float, ...] = (0.05, 0.15, 0.3, 0.45, 0.6)
    epochs: int = 10
    pairs: int = 600
    characters: int = 300_000
    seed: int = 0


def show_objectives(page: Page, text: str, seed: int) -> list[str]:
    """Show what every objective makes of a text, as chips; return the names."""
    names = []
    for explanation in explain_objectives(text, seed=seed):
        names.append(explanation.name)
        page.add_heading(explanation.name)
        english = OBJECTIVES[explanation.name].help
        page.add_note(page.localise(f"{english[0].upper()}{english[1:]}.", KOREAN_HELP[explanation.name]))
        for step in explanation.steps:
            kinds = ("off" if token.text == "·" else CHIP_KINDS[token.state] for token in step.tokens)
            chips = render_chips(
                [
                    (page.localise(token.text, token.korean or token.text), kind)
                    for token, kind in zip(step.tokens, kinds, strict=True)
                ]
            )
            title, note = page.localise(step.title, step.korean_title), page.localise(step.note, step.korean_note)
            page.body.append(f"<p class='soft'>{html.escape(f'{title}: {note}')}</p>{chips}")
        if any(token.text == "·" for token in explanation.steps[0].tokens):
            page.add_note(page.localise(*JOINED_NOTE))
    return names


@dataclass(frozen=True)
class StaticMaskedLM(MaskedLM):
    """Hide the same tokens of an example in every epoch: its draws follow from its tokens, not from its number."""

    def corrupt(self, raw: RawExamples, seed: int) -> Batch:
        """Hide tokens by the checksum of each example."""
        rows = (raw.ids[low:high] for low, high in itertools.pairwise(raw.starts.tolist()))
        return super().corrupt(replace(raw, sample=np.array([zlib.crc32(row.tobytes()) for row in rows])), seed)


def make_static(objective: TextObjective) -> TextObjective:
    """Return a masked language model's objective with static masks."""
    assert isinstance(objective, MaskedLM)
    settings = {one.name: getattr(objective, one.name) for one in fields(objective)}  # dynamic: its own fields
    return StaticMaskedLM(**settings)


def measure_hidden_share(
    store: Store, objective: TextObjective, epochs: int, dynamic: bool, seed: int = 0
) -> list[float]:
    """Measure the share of tokens that were hidden at least once after each epoch; with static masks, the draws are
    those of the first epoch."""
    plan = objective.plan(store, seed, 0)
    numbers = np.arange(min(64, len(plan)))
    seen: np.ndarray | None = None
    shares = []
    for epoch in range(epochs):
        samples = numbers + (len(plan) * epoch if dynamic else 0)
        batch = objective.corrupt(gather_examples(store, plan, numbers, samples), seed)
        hidden = np.zeros(len(batch.ids), bool)
        hidden[batch.chosen[batch.labels != IGNORE_INDEX]] = True
        seen = hidden if seen is None else seen | hidden
        shares.append(float(seen.mean()))
    return shares


def measure_overlap(name: str, data: PreparedData, pairs: int, seed: int = 0) -> tuple[float, int]:
    """Measure how well shared tokens, rare ones counting more, answer a question about pairs: how often a pair that is
    as it was shares more than one that is not (the area under the ROC curve; 50% is chance), and the pairs."""
    objective = build_objective(name, data.tokenizer, PAIR_LENGTH)
    plan = objective.plan(data.store, seed, 0)
    count = min(pairs, len(plan))
    batch = TokenSource(data.store, objective).make_batch(plan.slice_examples(0, count), np.arange(count), seed)
    tokens, starts = np.asarray(data.store.tokens), data.store.starts
    documents = Counter(i for low, high in itertools.pairwise(starts.tolist()) for i in set(tokens[low:high].tolist()))
    shares = []
    for low, high in itertools.pairwise(batch.starts.tolist()):
        ids, segments = batch.ids[low:high], batch.segments[low:high]
        first, second = set(ids[segments == 0].tolist()), set(ids[segments == 1].tolist())
        shares.append(sum(math.log(len(starts) / documents[i]) for i in first & second if documents[i]))
    overlap, labels = np.array(shares), np.asarray(batch.document_labels)
    whole, other = overlap[labels == 0], overlap[labels == 1]
    if not len(whole) or not len(other):
        return math.nan, count
    wins = (whole[:, None] > other[None]).mean() + 0.5 * (whole[:, None] == other[None]).mean()
    return float(wins), count


def measure_frequency_loss(data: PreparedData) -> float:
    """Measure the loss on validation text of a guess that knows the frequencies of the tokens and nothing else."""
    assert data.valid_store is not None
    train, valid = (np.asarray(store.tokens) for store in (data.store, data.valid_store))
    counts = np.bincount(train, minlength=len(data.tokenizer)) + 1.0
    return float(-np.log(counts / counts.sum())[valid].mean())


def load_judge(data: PreparedData) -> tuple[TextObjective, list[Batch]]:
    """Load what all models are compared on: validation text with 15% masked, in examples as long as those of the
    training, since a model knows no later positions."""
    assert data.valid_store is not None
    judge = build_objective("mlm", data.tokenizer, LENGTH, mask_rate=USUAL_RATE, **PACKING)
    batches = load_batches(TokenSource(data.valid_store, judge), 2048, 1, epochs=1)
    return judge, [batch for batch, _ in itertools.islice(batches, 12)]


def measure_mask_losses(page: Page, data: PreparedData, settings: Settings) -> tuple[dict[float, float], float]:
    """Train a small BERT with each mask rate, and one with static masks at the usual rate; return the loss of each on
    validation text. The masks of a rate are dynamic."""
    judge, batches = load_judge(data)

    def measure_loss(rate: float, title: str, change: Callable[[TextObjective], TextObjective] | None = None) -> float:
        trained_model = train_small(
            page,
            "bert",
            data,
            settings.steps,
            title=title,
            model=SIZES,
            objective={"name": "mlm", "mask_rate": rate, **PACKING},
            train={"seq_length": LENGTH},
            change_objective=change,
        )
        return evaluate(trained_model.former.model, judge, batches).loss

    losses = {rate: measure_loss(rate, f"{rate:.0%}") for rate in sorted({*settings.rates, USUAL_RATE})}
    return losses, measure_loss(USUAL_RATE, page.localise("static masks", "정적 마스크"), make_static)


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Show the objectives on the text, then compare mask rates, static and dynamic masks, NSP and SOP."""
    local, s = page.localise, settings
    if wrong := [rate for rate in s.rates if not 0 < rate < 1]:
        raise Error(f"--rates takes shares between 0 and 1, got {wrong[0]:g}", fix="15 % is 0.15")
    text = page.choose_text(
        "The President shall give the Congress information of the State of the Union. He shall receive ambassadors and other public ministers.",
        "현행법은 공공기관의 정보 공개에 관하여 필요한 사항을 정하고 있음. 그러나 정보 공개의 범위가 좁다는 지적이 있음.",
    )
    names = show_objectives(page, text, s.seed)
    data = prepare_corpus(page, "bert", VOCAB_SIZE, s.characters)
    masked = build_objective("mlm", data.tokenizer, LENGTH)
    shares = {
        kind: measure_hidden_share(data.store, masked, s.epochs, kind == "dynamic") for kind in ("static", "dynamic")
    }
    overlap = {name: measure_overlap(name, data, s.pairs) for name in ("nsp", "sop")}
    (losses, static_loss), frequency = measure_mask_losses(page, data, s), measure_frequency_loss(data)
    dynamic_loss, epochs = losses[USUAL_RATE], s.steps * 1024 / len(data.store.tokens)
    page.add_heading(local("Compared on the whole text", "전체 텍스트에서의 비교"))
    page.add_table(
        local("Mask rates: validation loss, always with 15% masked", "마스크 비율: 항상 15%를 가린 검증 텍스트의 손실"), (local("rate", "비율"), local("loss", "손실")),
        [*((f"{rate:.0%}", loss) for rate, loss in losses.items()), (local("token frequencies alone", "토큰 빈도만"), frequency)],
    )  # fmt: skip
    page.add_picture(
        draw_curves(
            {local("loss", "손실"): [(100 * r, v) for r, v in losses.items()]},
            local("validation loss by the mask rate of the training", "학습할 때의 마스크 비율별 검증 손실"),
            local("mask rate of the training, %", "학습할 때의 마스크 비율(%)"),
            local("loss", "손실"),
        )
    )
    page.add_table(
        local("Static and dynamic masks: tokens hidden at least once", "정적·동적 마스크: 한 번 이상 가려진 토큰"), (local("epochs", "에포크"), local("static", "정적"), local("dynamic", "동적")),
        [(i + 1, f"{a:.0%}", f"{b:.0%}") for i, (a, b) in enumerate(zip(shares["static"], shares["dynamic"], strict=True))],
    )  # fmt: skip
    named = {local("static", "정적"): shares["static"], local("dynamic", "동적"): shares["dynamic"]}
    page.add_picture(
        draw_curves(
            {k: [(i + 1, 100 * v) for i, v in enumerate(row)] for k, row in named.items()},
            local("tokens hidden at least once", "한 번 이상 가려진 토큰"),
            local("epochs", "에포크"),
            "%",
        )
    )
    page.add_table(
        local(f"Static and dynamic masks: validation loss after {epochs:.0f} epochs of the text", f"정적·동적 마스크: 텍스트를 {epochs:.0f} 에포크 학습한 뒤의 검증 손실"), (local("masks", "마스크"), local("loss", "손실")),
        [(local("static", "정적"), static_loss), (local("dynamic", "동적"), dynamic_loss)],
    )  # fmt: skip
    page.add_note(
        local("The model with dynamic masks is the one of 15% above.", "동적 마스크의 모델은 위의 15% 모델과 같습니다.")
    )
    page.add_table(
        local("How often a true pair shares more words than a false one (50% is chance)", "참인 쌍이 거짓인 쌍보다 단어를 더 많이 공유하는 비율(50%가 우연)"), (local("question", "질문"), local("share", "비율"), local("pairs", "쌍의 수")),
        [(name.upper(), f"{gain:.1%}", count) for name, (gain, count) in overlap.items()],
    )  # fmt: skip
    page.add_picture(
        draw_bars(
            {name.upper(): 100 * gain for name, (gain, _) in overlap.items()},
            local(
                "true pairs that share more words than false ones, %",
                "거짓인 쌍보다 단어를 더 많이 공유하는 참인 쌍의 비율(%)",
            ),
            1,
            limit=100.0,
        )
    )
    return {"objectives": len(names), "static": shares["static"][-1], "dynamic": shares["dynamic"][-1],
            "static loss": static_loss, "dynamic loss": dynamic_loss, "frequency": frequency, "nsp": overlap["nsp"][0], "sop": overlap["sop"][0], **{f"rate {r:g}": v for r, v in losses.items()}}  # fmt: skip
