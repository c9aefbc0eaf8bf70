"""The experiments by name, with what a list of them shows. Imports no torch, so that `formers try` answers at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from ..config import suggest_name
from ..errors import Error

if TYPE_CHECKING:
    from .page import Page


class ExperimentModule(Protocol):
    """What the file of an experiment has."""

    EXPLANATION: tuple[tuple[str, str], ...]  # what to look at, in five sentences, each in English and Korean
    Settings: type
    run: Callable[[Page, Any], dict[str, float]]  # dynamic: settings of its own class


@dataclass(frozen=True)
class ExperimentEntry:
    """An experiment in a list: its name, title and one line about it, in English and Korean, and an example. What its
    file has: lines of text, or rows of two fields with a tab between them. Whether it looks at a sentence or reads a
    file of the user's, and the help of --text."""

    name: str
    title: tuple[str, str]
    help: tuple[str, str]
    example: str
    file_rows: str = ""
    takes_text: bool = False
    takes_file: bool = True
    text_help: str = "A sentence of your own that the experiment looks at."

    @property
    def module_name(self) -> str:
        """The file that holds it."""
        return self.name.replace("-", "_")

    def load(self) -> ExperimentModule:
        """Import the experiment."""
        return cast(ExperimentModule, importlib.import_module(f"formers.experiments.{self.module_name}"))


ENTRIES = (
    ExperimentEntry(
        "attention-by-hand",
        ("Attention by hand", "손으로 계산하는 어텐션"),
        ("queries, keys, scores, softmax and weighted sum of one head, in numbers",
         "헤드 하나의 쿼리, 키, 점수, 소프트맥스, 가중합을 숫자로 계산합니다"),
        'formers try attention-by-hand --text "The law of the land" --layer 1 --head 2',
        takes_text=True,
    ),
    ExperimentEntry(
        "masks",
        ("Who may see whom", "어떤 토큰이 어떤 토큰을 보는가"),
        ("padding, causal, two-sided, prefix, band and permutation masks as matrices",
         "패딩, 인과, 양방향, 접두사, 띠(band), 순열 마스크를 행렬로 그립니다"),
        'formers try masks --text "The cat sat on the mat" --window 3',
        takes_text=True,
        takes_file=False,
    ),
    ExperimentEntry(
        "positions",
        ("Where a token stands", "토큰의 위치"),
        ("maps of every position scheme, and the loss of a model with each, without positions, and with them concatenated",
         "위치 방식마다 지도를 그리고, 각 방식을 쓴 모델, 위치 정보가 없는 모델, 위치를 이어 붙인 모델의 손실을 비교합니다"),
        "formers try positions --file my.txt --steps 300",
    ),
    ExperimentEntry(
        "objectives",
        ("One sentence, eight objectives", "한 문장, 여덟 가지 학습 목표"),
        ("what each objective hides and asks for; mask rates, static and dynamic masks, NSP and SOP",
         "각 학습 목표가 무엇을 가리고 무엇을 묻는지 보여 주고, 마스킹 비율, 정적·동적 마스킹, NSP와 SOP를 비교합니다"),
        'formers try objectives --text "The cat sat on the mat. It purred."',
        takes_text=True,
    ),
    ExperimentEntry(
        "decoding",
        ("Decoding step by step", "단계별로 보는 디코딩"),
        ("the likeliest tokens of each step, greedy search, the beam tree, top-k, top-p, temperature, label smoothing",
         "단계별로 확률이 높은 토큰, 그리디 디코딩, 빔 트리, top-k, top-p, 온도, 레이블 스무딩을 보여 줍니다"),
        'formers try decoding --text "The Government" --beams 4',
        takes_text=True,
    ),
    ExperimentEntry(
        "complexity",
        ("What a longer text costs", "긴 텍스트의 비용"),
        ("time and memory of attention, recurrence and convolution over the length, with the crossing point",
         "길이에 따른 어텐션, 순환, 합성곱의 시간과 메모리를 측정하고 교차점을 찾습니다"),
        "formers try complexity --dim 128 --longest 2048",
        takes_file=False,
    ),
    ExperimentEntry(
        "input-transformations",
        ("Every task as one sequence", "모든 과제를 하나의 토큰 열로"),
        ("how GPT-1 and BERT turn classification, entailment, similarity and multiple choice into one sequence",
         "GPT-1과 BERT가 분류, 함의, 유사도, 객관식을 하나의 토큰 열로 바꾸는 방법을 보여 줍니다"),
        'formers try input-transformations --text "It rained | The street is wet" --choices "yes | no"',
        takes_text=True,
        text_help="Two texts of your own, with | between them.",
    ),
    ExperimentEntry(
        "why-attention",
        ("Why attention", "어텐션이 필요한 이유"),
        ("an RNN without and with attention by length (copy, reversal, translation), its alignment, gradients over distance",
         "복사, 뒤집기, 번역에서 어텐션이 없는 RNN과 있는 RNN을 길이별로 비교하고, 학습된 정렬과 거리별 기울기를 봅니다"),
        "formers try why-attention --file pairs.tsv --translation-steps 600 --dropout 0.3",
        "source, tab, target",
    ),
    ExperimentEntry(
        "sharing",
        ("Sharing and factorising", "공유와 분해"),
        ("ALBERT's shared block and narrow embedding: what they save, and how much loss they cost",
         "ALBERT의 공유 블록과 좁은 임베딩이 무엇을 절약하고, 그 대가로 손실이 얼마나 커지는지 봅니다"),
        "formers try sharing --layers 6 --narrow 16",
    ),
    ExperimentEntry(
        "experts",
        ("Experts", "전문가"),
        ("Switch: loss, load and dropped tokens by the number of experts, capacity and balance loss",
         "Switch의 전문가 수, 용량, 균형 손실(balance loss)에 따른 손실, 부하, 버려진 토큰을 봅니다"),
        "formers try experts --experts 4 --experts 16",
    ),
    ExperimentEntry(
        "memory",
        ("A memory between segments", "세그먼트 사이의 메모리"),
        ("Transformer-XL: fragmented context against carried memory, and how far the memory reaches",
         "Transformer-XL에서 끊어진 문맥과 이어지는 메모리, 메모리의 도달 거리를 비교합니다"),
        "formers try memory --segment 32 --file my.txt",
    ),
    ExperimentEntry(
        "two-streams",
        ("Two streams", "두 스트림"),
        ("XLNet: what each stream sees, which of them leaks the answer, and the loss by turn",
         "XLNet의 두 스트림이 보는 것, 정답 누출 여부, 예측 차례(turn)별 손실을 봅니다"),
        'formers try two-streams --text "The Government of the United States"',
        takes_text=True,
    ),
    ExperimentEntry(
        "layers",
        ("What the layers know", "레이어가 아는 것"),
        ("what each layer of a BERT knows, by probes, and the mix of ELMo's layers that each task learns",
         "BERT의 레이어마다 무엇을 아는지 프로브(probe)로 확인하고, 과제마다 학습되는 ELMo 레이어의 가중합을 봅니다"),
        "formers try layers --file my.txt",
    ),
    ExperimentEntry(
        "heads",
        ("What a head is worth", "헤드의 가치"),
        ("the cost in loss of removing each attention head, and of removing many",
         "어텐션 헤드를 하나씩, 또 여럿 제거할 때 늘어나는 손실을 측정합니다"),
        "formers try heads --model my-bert --file my.txt",
        takes_text=True,
        text_help="A text of your own to measure the loss on; else validation texts.",
    ),
    ExperimentEntry(
        "word-senses",
        ("Bank and bank", "배와 배"),
        ("contextual vectors of one word in several senses, in two dimensions, beside static vectors",
         "한 단어의 여러 뜻에 대한 문맥 벡터를 2차원에 그리고 정적 벡터와 비교합니다"),
        "formers try word-senses --word 말 --file sentences.tsv",
        "sense, tab, sentence",
    ),
    ExperimentEntry(
        "size-and-quality",
        ("Size against quality", "크기와 품질"),
        ("three sizes of GPT on the same text: loss against parameters and compute, with a fitted line",
         "같은 텍스트에서 세 가지 크기의 GPT를 학습해 파라미터와 연산량에 따른 손실을 봅니다"),
        "formers try size-and-quality --dims 32 --dims 64 --dims 128 --dims 192",
    ),
    ExperimentEntry(
        "activations-norms-schedules",
        ("Activations, norms, schedules", "활성화, 정규화, 스케줄"),
        ("GELU and ReLU, norms before and after by depth, warmup curves and a deep post-norm model",
         "GELU와 ReLU, 깊이별 pre-norm과 post-norm, 워밍업 곡선과 깊은 post-norm 모델을 비교합니다"),
        "formers try activations-norms-schedules --depths 2 --depths 16",
    ),
)  # fmt: skip
EXPERIMENTS = {entry.name: entry for entry in ENTRIES}


def find_experiment(name: str) -> ExperimentEntry:
    """Find an experiment by its name; underscores and spaces are accepted."""
    plain = name.lower().replace("_", "-").replace(" ", "-")
    if plain not in EXPERIMENTS:
        raise Error(f"there is no experiment {name!r}", fix=suggest_name(plain, EXPERIMENTS))
    return EXPERIMENTS[plain]
