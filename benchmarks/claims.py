"""A claim of every member's paper at small scale: two arms, some seeds, and a rule that was stated before the run.

    python -m benchmarks.claims --dry                              # every claim with tiny shapes, a few steps each
    python -m benchmarks.claims --list
    python -m benchmarks.claims --scale gpu --at-once 12 --minutes 9.5 --text CORPORA/wikipedia.train.txt.xz
    python -m benchmarks.claims rnn bloom --scale cpu
    python -m benchmarks.claims --pages                            # docs/en/claims.md and docs/ko/claims.md

Data: FORMERS_DATA; --text takes other English text (a file or folder, *.txt or *.txt.xz, blank lines between documents)
in place of WikiText-2. Works run in processes side by side. A finished arm is one line of the results file, so that the
same command continues where it was cut off. A line holds a digest of the settings that it was measured with, and counts
only for these: who changes a claim runs it again. --again repeats finished arms, to see how far repeats differ.

At the scale of a GPU a text loss takes 2,000 steps of 8,192 tokens, pretraining for a task 4,000 of 16,384, which read
WikiText-2 (2.5 million tokens) 7 and 26 times. So give --text CORPORA/wikipedia.train.txt.xz, of which 40 million
characters are taken. Without rnn, gpt3 and bloom, which a CPU has measured, three seeds are 36 runs of pretraining for
tasks of 65 million tokens each and 30 text losses of 16 million: at 3 million tokens a second (an estimate for an H200)
16 minutes, with the recurrent models beside them. Two calls of ten minutes. ELMo, whose steps of a text follow one
after the other, has three eighths of the steps.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "raw" / "claims.jsonl"
SEEDS = (0, 1, 2)
Verdict = Literal["held", "did not hold", "unclear", "not yet measured"]
Arm = dict[str, Any]  # "label", and settings of benchmarks/claim_works.py
WIKITEXT = "WikiText-2"
# Raise a work's number when its code trains or measures something else than before: its older rows no longer count.
WORK_VERSIONS = {"text loss": 1, "extrapolation": 1, "reversal": 1, "translation": 1, "titles": 1, "transfer": 1}


@dataclass(frozen=True)
class Scale:
    """Sizes of a run. `steps` are those of pretraining, of `rows` examples; before a task it takes `longer` times as
    many of both, because masked models hardly help a task before they have read some tens of millions of tokens
    (benchmarks/RESULTS.md). A task takes `tune_steps` of pairs, or `epochs` over `examples` labelled rows."""

    dim: int
    layers: int
    length: int  # tokens of an example
    rows: int  # examples of a step
    steps: int
    vocab: int
    characters: int  # of the text that is pretrained on
    tune_steps: int
    examples: int
    epochs: float
    tests: int  # labelled rows of the test
    symbols: int  # of the longest sequence to be reversed
    longer: int = 1
    text: str = WIKITEXT  # the English text, as name_text names it

    @property
    def sizes(self) -> dict[str, int]:
        """The settings of a Transformer."""
        return {"dim": self.dim, "layers": self.layers, "heads": max(2, self.dim // 32), "ff": 4 * self.dim}


SCALES = {
    "gpu": Scale(256, 6, 128, 64, 2000, 8192, 40_000_000, 1000, 6000, 3, 1800, 24, longer=2,
                 text="wikipedia.train.txt.xz"),
    "cpu": Scale(96, 4, 64, 16, 400, 2048, 2_000_000, 200, 2000, 3, 1000, 12, longer=2),
    "dry": Scale(32, 2, 24, 4, 3, 600, 60_000, 3, 24, 1, 12, 4),
}  # fmt: skip


@dataclass(frozen=True)
class Rule:
    """How a verdict is reached. `better`: the first arm is better with every seed, and on average by more than repeats
    of one configuration differ (the second arm likewise: the claim did not hold; else it is unclear). `close`: the mean
    of the first arm is worse by at most this share; nearer to that limit than repeats differ it is unclear.

    Three conditions must be met for any verdict: the better arm passes `floor` (guessing); it is `learned` nats below
    the loss of token frequencies; the second arm's value is above `second_above` with every seed."""

    kind: Literal["better", "close"]
    lower: bool = True  # lower values are better
    share: float = 0.0
    floor: float | None = None
    learned: float | None = None
    second_above: float | None = None

    def judge(
        self, first: Sequence[float], second: Sequence[float], spread: float = 0.0, unigram: float | None = None
    ) -> Verdict:
        """Judge two arms by their values with the same seeds, given the spread of repeats of one configuration and the
        loss of token frequencies."""
        if not first or len(first) != len(second):
            return "not yet measured"
        if not self.can_judge(first, second, unigram):
            return "unclear"
        sign = 1 if self.lower else -1
        gains = [sign * (b - a) for a, b in zip(first, second, strict=True)]
        margin = statistics.mean(gains)
        if self.kind == "close":
            margin += self.share * abs(statistics.mean(second))
        if abs(margin) <= spread or (self.kind == "better" and min(gains) <= 0 <= max(gains)):
            return "unclear"
        return "held" if margin > 0 else "did not hold"

    def can_judge(self, first: Sequence[float], second: Sequence[float], unigram: float | None) -> bool:
        """Say whether the arms learned enough, and differ in what the claim is about, for a verdict."""
        sign = 1 if self.lower else -1
        best = (min if self.lower else max)(statistics.mean(first), statistics.mean(second))
        return (
            (self.floor is None or sign * (self.floor - best) > 0)
            and (self.learned is None or (unigram is not None and unigram - best >= self.learned))
            and (self.second_above is None or min(second) > self.second_above)
        )

    def describe(self, korean: bool = False) -> str:
        """Say the rule in words."""
        if self.kind == "close":
            words = (
                f"the first arm's mean is worse by at most {self.share:.0%}",
                f"첫 번째 모델의 평균이 두 번째보다 {self.share:.0%} 넘게 나쁘지 않을 것",
            )
        else:
            words = (
                f"the first arm is {'lower' if self.lower else 'higher'} with every seed",
                f"모든 시드에서 첫 번째 모델의 값이 더 {'낮을' if self.lower else '높을'} 것",
            )
        parts = [words]
        if self.floor is not None:
            parts.append((f"one of them is better than {self.floor:g}", f"둘 중 하나는 {self.floor:g}보다 좋을 것"))
        if self.learned is not None:
            parts.append((
                f"one of them is at least {self.learned:g} nats below the loss of token frequencies",
                f"둘 중 하나는 토큰 빈도만의 손실보다 {self.learned:g} nats 이상 낮을 것",
            ))  # fmt: skip
        if self.second_above is not None:
            parts.append((
                f"the second arm's value is above {self.second_above:g} with every seed",
                f"모든 시드에서 두 번째 모델의 값이 {self.second_above:g}보다 클 것",
            ))  # fmt: skip
        return ", ".join(part[1] for part in parts) if korean else ", and ".join(part[0] for part in parts)


@dataclass(frozen=True)
class Claim:
    """One claim of a paper, as it is tried: `work` names a function of claim_works.py."""

    member: str
    text: str
    korean: str
    source: str
    work: str
    arms: tuple[Arm, Arm]
    measure: str
    measure_korean: str
    rule: Rule
    details: tuple[tuple[str, str], ...] = ()  # other fields of the rows that the page shows, with their Korean names
    seconds: int = 420  # of an arm on a GPU; both together are ended after twice that

    def get_labels(self) -> tuple[str, str]:
        """Return the names of both arms."""
        return self.arms[0]["label"], self.arms[1]["label"]


LOSS, LOSS_KO = "validation loss, nats a token", "검증 손실(토큰당 nats)"
PERPLEXITY, PERPLEXITY_KO = "validation perplexity", "검증 퍼플렉시티"
ACCURACY, ACCURACY_KO = "SST-2 test accuracy, %", "SST-2 테스트 정확도(%)"
CLASSIFIES = Rule("better", lower=False, floor=55.0)  # of two classes, about as many of each
RECURRENT = {"layers": 2, "bidirectional": False}
FROZEN = {"tune.head": "bilstm", "tune.epochs": 6, "train.lr": 3e-3}
QUESTIONS = {"family": "elmo", "step_share": 0.375, "model": {"layers": 2}, "table": "classify/trec"}
# The next token: masked models do not get beyond token frequencies in so few steps.
SHARER = {"family": "albert", "step_share": 2, "objective": {"name": "causal", "part": "mlm"}}
# Chosen with the rotary arm alone: it gets worse at 8 times windows of 16 tokens, but not at 4 times windows of 64.
EXTRAPOLATOR = {"tokenizer": "gpt2", "length_share": 0.25, "factor": 8, "step_share": 2}
REVERSER = RECURRENT | {"layers": 1, "cell": "rnn", "init": 0.15}
CLAIMS = {
    "rnn": Claim(
        "plain RNN",
        "A recurrent encoder-decoder with one fixed vector fails on long sequences; with attention it does not.",
        "고정 벡터 하나만 쓰는 순환 인코더-디코더는 긴 시퀀스에서 무너지지만, 어텐션이 있으면 그렇지 않습니다.",
        "Bahdanau et al. 2015, §5.2.2 and figure 2", "reversal",
        ({"label": "plain RNN with attention", "model": REVERSER | {"attention": "dot"}, "train": {"lr": 3e-3}},
         {"label": "plain RNN without", "model": REVERSER | {"attention": "none"}, "train": {"lr": 3e-3}}),
        "accuracy of reversed symbols at the longest length", "가장 긴 길이에서 뒤집은 기호의 정확도",
        Rule("better", lower=False),
    ),
    "luong": Claim(
        "Luong", "Input feeding lowers the perplexity of global attention.",
        "입력 피딩은 전역 어텐션의 퍼플렉시티를 낮춥니다.",
        "Luong et al. 2015, §3.3 and table 1 (7.3 → 6.4)", "translation",
        ({"label": "with input feeding", "family": "seq2seq",
          "model": RECURRENT | {"attention": "general", "feed": True, "dropout": 0.2}},
         {"label": "without", "family": "seq2seq",
          "model": RECURRENT | {"attention": "general", "feed": False, "dropout": 0.2}}),
        PERPLEXITY, PERPLEXITY_KO, Rule("better"),
    ),
    "gnmt": Claim(
        "GNMT", "Eight LSTM layers train well with residual connections and poorly without.",
        "LSTM 레이어 여덟 개는 잔차 연결이 있으면 잘 학습되고, 없으면 잘 학습되지 않습니다.",
        "Wu et al. 2016, §3.1", "translation",
        ({"label": "residual from layer 3", "family": "gnmt", "model": {"layers": 8, "dropout": 0.1}},
         {"label": "no residuals", "family": "gnmt", "plain_layers": 99,
          "model": {"layers": 8, "dropout": 0.1}}),
        PERPLEXITY, PERPLEXITY_KO, Rule("better"),
    ),
    "elmo": Claim(
        "ELMo", "A learned mix of all layers serves a task better than the last layer alone.",
        "가중치를 학습한 모든 레이어의 가중합이 마지막 레이어만 쓰는 것보다 과제에 더 유용합니다.",
        "Peters et al. 2018, §5.1 and table 2", "transfer",
        (QUESTIONS | {"label": "mix of layers", "tune": FROZEN | {"tune.features": "mix"}},
         QUESTIONS | {"label": "last layer", "tune": FROZEN | {"tune.features": "last"}}),
        "TREC test accuracy, %", "TREC 테스트 정확도(%)",
        Rule("better", lower=False, floor=35.0),  # the most frequent of six classes has 27.6 %
    ),
    "gpt": Claim(
        "GPT-1", "Generative pretraining raises the accuracy of a task over training from scratch.",
        "생성적 사전 학습은 처음부터 학습하는 것보다 과제의 정확도를 높입니다.",
        "Radford et al. 2018, §5 and table 5 (-14.8 % without)", "transfer",
        ({"label": "pretrained", "family": "gpt"}, {"label": "not pretrained", "family": "gpt", "steps": 1}),
        ACCURACY, ACCURACY_KO, CLASSIFIES,
    ),
    "gpt3": Claim(
        "GPT-3", "Alternating dense and banded layers lose next to nothing against dense attention.",
        "밀집 레이어와 띠 레이어를 번갈아 쓰는 구조는 모두 밀집인 구조에 비해 거의 손해가 없습니다.",
        "Brown et al. 2020, §2.1; Child et al. 2019, §7", "text loss",
        ({"label": "bands of 16 in every other layer", "family": "gpt3", "tokenizer": "gpt2",
          "model": {"pattern": ("global", "local"), "window": 16}},
         {"label": "dense", "family": "gpt3", "tokenizer": "gpt2", "model": {"pattern": ("global",)}}),
        LOSS, LOSS_KO, Rule("close", share=0.01, learned=0.5),
    ),
    "gpt_neo": Claim(
        "GPT-Neo", "Local layers and unscaled scores give a model as good as GPT-2's layers.",
        "국소 레이어와 스케일링하지 않은 점수를 쓰는 모델이 GPT-2의 레이어를 쓰는 모델만큼 좋습니다.",
        "Black et al. 2021, release notes of GPT-Neo (replication of GPT-3's layers)", "text loss",
        ({"label": "GPT-Neo, window 16", "family": "gpt_neo", "tokenizer": "gpt2", "model": {"window": 16}},
         {"label": "GPT-2", "family": "gpt2"}),
        LOSS, LOSS_KO, Rule("close", share=0.01, learned=0.5),
    ),
    "gptj": Claim(
        "GPT-J", "Rotary positions reach a lower loss than learned ones after the same steps.",
        "같은 스텝을 학습하면 회전 위치의 손실이 학습된 위치보다 낮습니다.",
        "Su et al. 2021, §4; Biderman et al. 2021, EleutherAI's study of rotary embeddings", "text loss",
        ({"label": "GPT-J (rotary, parallel)", "family": "gptj", "tokenizer": "gpt2",
          "model": {"rotary": 16, "tied": True}},
         {"label": "GPT-2 (learned positions)", "family": "gpt2"}),
        LOSS, LOSS_KO, Rule("better", learned=0.5),
    ),
    "gpt_neox": Claim(
        "GPT-NeoX", "Attention and feed-forward in parallel cost no quality against one after the other.",
        "어텐션과 피드포워드를 병렬로 계산해도 순차 계산에 비해 품질이 떨어지지 않습니다.",
        "Black et al. 2022, §2.1.2", "text loss",
        ({"label": "parallel", "family": "gpt_neox", "tokenizer": "gpt2", "model": {"parallel": True}},
         {"label": "one after the other", "family": "gpt_neox", "tokenizer": "gpt2", "model": {"parallel": False}}),
        LOSS, LOSS_KO, Rule("close", share=0.01, learned=0.5),
    ),
    "roberta": Claim(
        "RoBERTa", "Whole sentences without next-sentence prediction serve tasks better than pairs with it.",
        "다음 문장 예측 없이 온전한 문장으로 채운 입력이, 다음 문장 예측을 하는 문장 쌍보다 과제에 더 유용합니다.",
        "Liu et al. 2019, §4.2 and table 2", "transfer",
        ({"label": "full sentences, no NSP", "family": "bert",
          "objective": {"name": "mlm", "across_documents": True, "whole_sentences": True}},
         {"label": "segment pairs, NSP", "family": "bert", "objective": {"name": "nsp"}}),
        ACCURACY, ACCURACY_KO, CLASSIFIES,
    ),
    "xlnet": Claim(
        "XLNet", "With the same text and sizes, XLNet serves a task better than BERT.",
        "같은 텍스트와 크기에서 XLNet이 BERT보다 과제에 더 유용합니다.",
        "Yang et al. 2019, §3.2 and table 1", "transfer",
        ({"label": "XLNet", "family": "xlnet"}, {"label": "BERT", "family": "bert"}),
        ACCURACY, ACCURACY_KO, CLASSIFIES,
    ),
    "bart": Claim(
        "BART", "Text infilling prepares for summaries better than sentence permutation alone.",
        "요약을 위한 사전 학습으로는 문장 순서 바꾸기만 하는 것보다 텍스트 채우기가 낫습니다.",
        "Lewis et al. 2019, §4.3 and table 1", "titles",
        ({"label": "infilling", "family": "bart", "objective": {"name": "denoising", "permute_ratio": 0.0}},
         {"label": "permutation", "family": "bart", "objective": {"name": "denoising", "infill_ratio": 0.0}}),
        "perplexity of e-mail subjects", "이메일 제목의 퍼플렉시티", Rule("better"),
    ),
    "albert": Claim(
        "ALBERT", "Sharing all layers divides the blocks' parameters and costs little.",
        "모든 레이어를 공유하면 블록의 파라미터 수가 1/(레이어 수)로 줄고, 성능 손해는 작습니다.",
        "Lan et al. 2019, §4.5 and table 4 (81.6 → 80.1 at E = 128)", "text loss",
        (SHARER | {"label": "all shared", "model": {"causal": True, "share": "all-shared"}},
         SHARER | {"label": "not shared", "model": {"causal": True, "share": "not-shared"}}),
        LOSS, LOSS_KO, Rule("close", share=0.05, learned=0.5),
    ),
    "t5": Claim(
        "T5", "Span corruption prepares for tasks better than deshuffling.",
        "과제를 위한 사전 학습으로는 섞인 토큰의 순서를 복원하는 것보다 구간 손상이 낫습니다.",
        "Raffel et al. 2019, §3.3.1 and table 4", "titles",
        ({"label": "span corruption", "family": "t5", "objective": {"name": "span-corruption"}},
         {"label": "deshuffling", "family": "t5", "objective": {"name": "deshuffle"}}),
        "perplexity of e-mail subjects", "이메일 제목의 퍼플렉시티", Rule("better"),
    ),
    "switch": Claim(
        "Switch", "With experts, the loss is lower than T5's at the same computation for each token.",
        "토큰당 계산량이 같을 때 전문가를 둔 모델의 손실이 T5보다 낮습니다.",
        "Fedus et al. 2021, §2.3, table 1 and figure 4", "text loss",
        ({"label": "8 experts", "family": "switch", "tokenizer": "t5", "metric": "lm",
          "objective": {"name": "switch"}, "model": {"experts": 8}},
         {"label": "T5", "family": "t5", "metric": "lm", "objective": {"name": "span-corruption"},
          "model": {"act": "relu"}}),
        LOSS, LOSS_KO, Rule("better", learned=0.5),
    ),
    "ernie": Claim(
        "ERNIE", "Masking phrases and entities serves a Korean task better than masking tokens.",
        "토큰을 가리는 것보다 구와 개체를 가리는 것이 한국어 과제에 더 유용합니다.",
        "Sun et al. 2019, §4.4.1 and table 2", "transfer",
        ({"label": "three stages", "family": "ernie", "corpus": "korean", "objective": {"name": "ernie-units"}},
         {"label": "tokens", "family": "ernie", "corpus": "korean", "objective": {"name": "mlm"}}),
        "NSMC test accuracy, %", "NSMC 테스트 정확도(%)", CLASSIFIES,
    ),
    "bloom": Claim(
        "BLOOM", "ALiBi loses less than rotary positions on texts eight times as long as in training.",
        "학습 때보다 여덟 배 긴 텍스트에서 ALiBi는 회전 위치보다 덜 나빠집니다.",
        "Le Scao et al. 2022, §3.2.3; Press et al. 2022, §4 and figure 1", "extrapolation",
        (EXTRAPOLATOR | {"label": "BLOOM (ALiBi)", "family": "bloom"},
         EXTRAPOLATOR | {"label": "GPT-NeoX (rotary)", "family": "gpt_neox", "context": 8,
          "model": {"rotary_fraction": 1.0}}),
        "loss at 8 times the length, less that at the length", "여덟 배 길이의 손실에서 학습 길이의 손실을 뺀 값",
        Rule("better", second_above=0.0),
        (("loss at the length", "학습 길이의 손실"), ("loss beyond it", "그보다 긴 길이의 손실")),
    ),
}  # fmt: skip


def read_results(path: Path) -> list[dict[str, Any]]:
    """Read the lines of a results file; a line that was cut off is left out."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            print(f"left out a broken line of {path}", file=sys.stderr)
    return rows


def complete_settings(arm: Arm) -> Arm:
    """Return the settings of an arm with the defaults that another arm may spell out, and without its label."""
    from formers.registry import find_family

    family = arm.get("family", "seq2seq")
    objective = {"name": find_family(family).definition.objective} | arm.get("objective", {})
    settings = {key: value for key, value in arm.items() if key != "label"}
    return {"tokenizer": family} | settings | {"family": family, "objective": objective}


def digest_settings(work: str, arm: Arm, scale: str, text: str | None = None) -> str:
    """Return a digest of what is trained and measured: the work, the arm's settings, the sizes of the scale, and the
    English text where one is read (without `text`: that of the scale). Arms of two claims with the same digest are one
    configuration, whose rows are pooled."""
    sizes = asdict(SCALES[scale])
    sizes["text"] = find_text(work, arm, text or sizes["text"])
    whole = [work, WORK_VERSIONS[work], complete_settings(arm), sizes]
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:12]


def find_text(work: str, arm: Arm, text: str) -> str | None:
    """Return the English text, where an arm reads one."""
    return None if work in ("reversal", "translation") or arm.get("corpus") == "korean" else text


def name_text(path: Path | None) -> str:
    """Name the English text that --text gives."""
    return WIKITEXT if path is None else path.name


@dataclass(frozen=True)
class Measurement:
    """What was measured for a claim at a scale: the rows of both arms by the seeds that both have (more than one row
    for a seed: repeats), how far repeats of one configuration differ, and the loss of token frequencies."""

    arms: tuple[dict[int, list[dict[str, Any]]], dict[int, list[dict[str, Any]]]]
    spread: float
    has_repeats: bool  # without any, `spread` is the largest distance between the seeds of an arm

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return sorted(self.arms[0])

    @property
    def unigram(self) -> float | None:
        """The loss of token frequencies on the validation text."""
        rows = [row for arm in self.arms for some in arm.values() for row in some]
        return min((row["unigram loss"] for row in rows if "unigram loss" in row), default=None)

    def average(self, arm: int, field: str = "value") -> list[float]:
        """Return a field of an arm by seed, repeats averaged."""
        return [statistics.mean(row[field] for row in self.arms[arm][seed]) for seed in self.seeds]

    def judge(self, rule: Rule) -> Verdict:
        """Return the verdict of a rule."""
        return rule.judge(self.average(0), self.average(1), self.spread, self.unigram)


def collect_measurement(rows: list[dict[str, Any]], name: str, scale: str, text: str | None = None) -> Measurement:
    """Collect the rows of a claim whose settings are the present ones, of whatever claim they were run for."""
    claim = CLAIMS[name]
    by_run: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for row in rows:
        by_run.setdefault((row.get("settings", ""), row["seed"]), []).append(row)
    digests = [digest_settings(claim.work, arm, scale, text) for arm in claim.arms]
    seeds = sorted(set.intersection(*({seed for digest, seed in by_run if digest == one} for one in digests)))
    first, second = ({seed: by_run[one, seed] for seed in seeds} for one in digests)
    of_work = {
        digest_settings(claim.work, arm, scale, text)
        for other in CLAIMS.values() if other.work == claim.work for arm in other.arms
    }  # fmt: skip
    repeats = [rows for (digest, _), rows in by_run.items() if digest in of_work and len(rows) > 1]
    # One value for each seed of an arm, where no configuration of this kind has been repeated.
    groups = repeats or [[rows[0] for rows in arm.values()] for arm in (first, second) if arm]
    spread = max((measure_spread([row["value"] for row in group]) for group in groups), default=0.0)
    return Measurement((first, second), spread, bool(repeats))


def measure_spread(values: Sequence[float]) -> float:
    """Return the distance between the largest and the smallest value."""
    return max(values) - min(values)


def run_claim(name: str, seed: int, given: argparse.Namespace) -> None:
    """Run both arms of a claim with one seed, in this process; append a line for each."""
    from benchmarks.claim_works import WORKS, Work
    from benchmarks.harness import describe_machine

    claim, machine, failed = CLAIMS[name], describe_machine(), list[str]()
    done, text = find_done(read_results(given.out)), name_text(given.text)
    for number, arm in enumerate(claim.arms):
        digest = digest_settings(claim.work, arm, given.scale, text)
        if (name, number, seed, digest) in done and not given.again:
            continue
        began = time.perf_counter()
        work = Work(SCALES[given.scale], given.scale, seed, given.folder, given.data, given.text, name, arm)
        try:
            values = WORKS[claim.work](work)
        except Exception:  # the other arm is worth its time: a later call does this one alone
            traceback.print_exc()
            failed.append(arm["label"])
            continue
        row = {"claim": name, "scale": given.scale, "seed": seed, "arm": number, "label": arm["label"],
               "settings": digest, "text": find_text(claim.work, arm, text), **values,
               "seconds": round(time.perf_counter() - began, 1), **machine}  # fmt: skip
        given.out.parent.mkdir(parents=True, exist_ok=True)
        with given.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def find_done(rows: list[dict[str, Any]]) -> set[tuple[str, int, int, str]]:
    """Return what the rows are of: claims, arms, seeds and digests of settings."""
    return {(row["claim"], row["arm"], row["seed"], row.get("settings", "")) for row in rows}


def list_jobs(
    names: list[str], seeds: Sequence[int], rows: list[dict[str, Any]], scale: str, text: str | None = None
) -> list[tuple[str, int]]:
    """List the claims and seeds that are not finished with the present settings; every claim with its first seed
    before any second."""
    done = find_done(rows)
    wanted = {
        name: [(i, digest_settings(CLAIMS[name].work, arm, scale, text)) for i, arm in enumerate(CLAIMS[name].arms)]
        for name in names
    }
    return [
        (name, seed) for seed in seeds for name in names
        if not all((name, i, seed, digest) in done for i, digest in wanted[name])
    ]  # fmt: skip


def start_job(name: str, seed: int, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Begin a claim in a process of its own, whose output goes to a file."""
    return start_process(["--run", name, "--seeds", str(seed)], f"{name}-{seed}", given)


def start_process(words: list[str], log_name: str, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Begin this program in a process of its own; its output goes to a file of the folder."""
    command = [sys.executable, "-m", "benchmarks.claims", *words, "--scale", given.scale]
    command += ["--out", str(given.out), "--folder", str(given.folder), "--data", str(given.data)]
    command += [] if given.text is None else ["--text", str(given.text)]
    command += ["--again"] if given.again else []
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "FORMERS_DATA": str(given.data)}
    with open(given.folder / f"{given.scale}-{log_name}.log", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=ROOT)


def run_jobs(jobs: list[tuple[str, int]], given: argparse.Namespace) -> list[str]:
    """Run works side by side until all are done or the time is over; return what failed."""
    began, failures = time.monotonic(), list[str]()
    running: dict[tuple[str, int], tuple[subprocess.Popen[bytes], float]] = {}
    waiting = list(jobs)
    while waiting or running:
        left = 60 * given.minutes - (time.monotonic() - began)
        while waiting and len(running) < given.at_once and left > given.least:
            job = waiting.pop(0)
            running[job] = start_job(*job, given), time.monotonic()
        if not running:
            break
        time.sleep(0.2)
        for job, (process, started) in list(running.items()):
            took = time.monotonic() - started
            limit = (2 if given.scale == "gpu" else 20) * CLAIMS[job[0]].seconds
            if process.poll() is None and (took > limit or left < 0):
                process.kill()
                process.wait()
                failures.append(f"{job[0]} seed {job[1]}: {'took too long' if took > limit else 'out of time'}")
            if process.poll() is None:
                continue
            del running[job]
            log = given.folder / f"{given.scale}-{job[0]}-{job[1]}.log"
            if process.returncode > 0:
                failures.append(f"{job[0]} seed {job[1]}: {log.read_text(errors='replace')[-1500:]}")
            print(f"{job[0]} seed {job[1]}: {took:.0f} s, exit {process.returncode}", flush=True)
    if waiting:
        failures.append(f"not begun: {', '.join(f'{name} seed {seed}' for name, seed in waiting)}")
    return failures


def format_arm(values: Sequence[float]) -> str:
    """Return a mean and its spread: half the distance of the largest and the smallest value."""
    if not values:
        return "–"
    spread = (max(values) - min(values)) / 2
    return f"{statistics.mean(values):.3f}" + (f" ± {spread:.3f}" if len(values) > 1 else "")


def print_table(names: list[str], rows: list[dict[str, Any]], scale: str, text: str | None = None) -> None:
    """Print what was found at a scale."""
    for name in names:
        claim = CLAIMS[name]
        found, labels = collect_measurement(rows, name, scale, text), claim.get_labels()
        print(f"{name:9} {labels[0]}: {format_arm(found.average(0))} | {labels[1]}: {format_arm(found.average(1))}"
              f" | {claim.measure} | seeds {len(found.seeds)} | {found.judge(claim.rule)}", flush=True)  # fmt: skip


def main(words: list[str] | None = None) -> None:
    """Run the claims that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="CLAIM", help=f"of {', '.join(CLAIMS)}; all without one")
    parser.add_argument("--scale", choices=("gpu", "cpu", "dry"), default="cpu")
    parser.add_argument("--dry", action="store_true", help="tiny shapes and one seed, results in a temporary folder")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--at-once", type=int, default=1, help="works side by side")
    parser.add_argument("--minutes", type=float, default=600.0, help="no work goes on after this time")
    parser.add_argument("--least", type=float, default=20.0, help="seconds that must be left for a work to begin")
    parser.add_argument("--out", type=Path, default=RESULTS, help="a line of JSON for each finished arm")
    parser.add_argument("--folder", type=Path, default=Path("runs/claims"), help="prepared text, runs and logs")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("FORMERS_DATA", "data")))
    parser.add_argument("--text", type=Path, help="a file or folder of English text, in place of WikiText-2")
    parser.add_argument("--again", action="store_true", help="repeat finished arms too, to see how far repeats differ")
    parser.add_argument("--list", action="store_true", help="print the claims and end")
    parser.add_argument("--prepare", action="store_true", help="make tokenizers and token stores and end")
    parser.add_argument("--pages", action="store_true", help="write docs/*/claims.md and end")
    parser.add_argument("--run", help=argparse.SUPPRESS)
    given = parser.parse_args(words)
    names = given.names or list(CLAIMS)
    if unknown := [name for name in names if name not in CLAIMS]:
        parser.error(f"there is no claim {unknown[0]}; there are {', '.join(CLAIMS)}")
    given.out, given.folder, given.data = given.out.resolve(), given.folder.resolve(), given.data.resolve()
    if given.list:
        for name in names:
            print(f"{name:9} {CLAIMS[name].text} ({CLAIMS[name].source})")
    elif given.pages:
        from benchmarks.claims_page import write_pages

        write_pages(read_results(given.out))
    elif given.run:
        run_claim(given.run, given.seeds[0], given)
    elif given.prepare:
        prepare_texts(names, given)
    elif given.dry:
        with tempfile.TemporaryDirectory() as folder:
            given.scale, given.seeds, given.folder = "dry", given.seeds[:1], Path(folder)
            given.out = Path(folder) / "claims.jsonl"
            run_and_print(names, given)
    else:
        given.folder.mkdir(parents=True, exist_ok=True)
        run_and_print(names, given)


def prepare_texts(names: list[str], given: argparse.Namespace) -> None:
    """Make the token stores that claims of a scale need, so that a GPU does not wait for them."""
    from benchmarks.claim_works import Work

    for name in names:
        for arm in CLAIMS[name].arms:
            work = Work(SCALES[given.scale], given.scale, 0, given.folder, given.data, given.text, name, arm)
            if CLAIMS[name].work == "translation":
                work.prepare_pairs("seq2seq", "translate/multi30k", swap=True)
            elif CLAIMS[name].work != "reversal":
                print(work.prepare_text(arm.get("tokenizer", arm["family"]), arm.get("corpus", "english")), flush=True)


def prepare_at_once(names: list[str], given: argparse.Namespace) -> None:
    """Make tokenizers and token stores in processes side by side, so that works do not make the same one twice."""
    begun: list[subprocess.Popen[bytes]] = []
    texts: set[tuple[str, str]] = set()
    for name in names:
        arms = {(a.get("tokenizer", a.get("family", "")), a.get("corpus", "english")) for a in CLAIMS[name].arms}
        if not arms <= texts:
            texts |= arms
            begun.append(start_process(["--prepare", name], f"prepare-{name}", given))
    for process in begun:
        process.wait()


def run_and_print(names: list[str], given: argparse.Namespace) -> None:
    """Run what is not finished, print the table, and end with an error if a work failed."""
    rows = [] if given.again else read_results(given.out)
    jobs = list_jobs(names, given.seeds, rows, given.scale, name_text(given.text))
    began = time.monotonic()
    if given.at_once > 1:
        prepare_at_once([name for name in names if any(name == job[0] for job in jobs)], given)
        print(f"text prepared in {time.monotonic() - began:.0f} s", flush=True)
    given.minutes -= (time.monotonic() - began) / 60
    failures = run_jobs(jobs, given)
    print_table(names, read_results(given.out), given.scale, name_text(given.text))
    for failure in failures:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
