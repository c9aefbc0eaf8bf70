"""A claim of every member's paper at small scale: two arms, some seeds, and a rule that was stated before the run.

    python -m benchmarks.claims --dry                              # every claim with tiny shapes, a few steps each
    python -m benchmarks.claims --list
    python -m benchmarks.claims --scale gpu --at-once 12 --minutes 9.5 --text CORPORA/wikipedia.train.txt.xz
    python -m benchmarks.claims rnn bloom --scale cpu
    python -m benchmarks.claims --pages                            # docs/en/claims.md and docs/ko/claims.md

Data: FORMERS_DATA; --text takes other English text (a file or folder, *.txt or *.txt.xz, blank lines between documents)
in place of WikiText-2. Works run in processes side by side. A finished arm is one line of the results file, so that the
same command continues where it was cut off.

At the scale of a GPU a text loss takes 2,000 steps of 8,192 tokens, pretraining for a task 4,000 of 16,384, which read
WikiText-2 (2.5 million tokens) 7 and 26 times. So give --text CORPORA/wikipedia.train.txt.xz, of which 40 million
characters are taken. Without rnn, gpt3 and bloom, which a CPU has measured, three seeds are 36 runs of pretraining for
tasks of 65 million tokens each and 30 text losses of 16 million: at 3 million tokens a second (an estimate for an H200)
16 minutes, with the recurrent models beside them. Two calls of ten minutes. ELMo, whose steps of a text follow one
after the other, has three eighths of the steps.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "raw" / "claims.jsonl"
SEEDS = (0, 1, 2)
Verdict = Literal["held", "did not hold", "unclear", "not yet measured"]
Arm = dict[str, Any]  # "label", and settings of benchmarks/claim_works.py


@dataclass(frozen=True)
class Rule:
    """How a verdict is reached. `better`: the first arm is better with every seed (the second with every seed: the
    claim did not hold; else it is unclear). `close`: the mean of the first arm is worse by at most this share. Where
    neither arm is better than `floor` (guessing), nothing was learned and the claim is unclear."""

    kind: Literal["better", "close"]
    lower: bool = True  # lower values are better
    share: float = 0.0
    floor: float | None = None

    def judge(self, first: Sequence[float], second: Sequence[float]) -> Verdict:
        """Judge two arms by their values with the same seeds."""
        if not first or len(first) != len(second):
            return "not yet measured"
        sign = 1 if self.lower else -1
        best = (min if self.lower else max)(statistics.mean(first), statistics.mean(second))
        if self.floor is not None and sign * (self.floor - best) <= 0:
            return "unclear"
        if self.kind == "close":
            worse = sign * (statistics.mean(first) - statistics.mean(second)) / abs(statistics.mean(second))
            return "held" if worse <= self.share else "did not hold"
        gains = [sign * (b - a) for a, b in zip(first, second, strict=True)]
        return "held" if min(gains) > 0 else "did not hold" if max(gains) < 0 else "unclear"

    def describe(self, korean: bool = False) -> str:
        """Say the rule in words."""
        if self.kind == "close":
            if korean:
                return f"첫 번째 모델의 평균이 두 번째보다 {self.share:.0%} 넘게 나쁘지 않을 것"
            return f"the first arm's mean is worse by at most {self.share:.0%}"
        if korean:
            least = "" if self.floor is None else f", 둘 중 하나는 {self.floor:g}보다 좋을 것"
            return f"모든 시드에서 첫 번째 모델의 값이 더 {'낮을' if self.lower else '높을'} 것{least}"
        least = "" if self.floor is None else f", and one of them is better than {self.floor:g}"
        return f"the first arm is {'lower' if self.lower else 'higher'} with every seed{least}"


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
        LOSS, LOSS_KO, Rule("close", share=0.01),
    ),
    "gpt_neo": Claim(
        "GPT-Neo", "Local layers and unscaled scores give a model as good as GPT-2's layers.",
        "국소 레이어와 스케일링하지 않은 점수를 쓰는 모델이 GPT-2의 레이어를 쓰는 모델만큼 좋습니다.",
        "Black et al. 2021, release notes of GPT-Neo (replication of GPT-3's layers)", "text loss",
        ({"label": "GPT-Neo, window 16", "family": "gpt_neo", "tokenizer": "gpt2", "model": {"window": 16}},
         {"label": "GPT-2", "family": "gpt2"}),
        LOSS, LOSS_KO, Rule("close", share=0.01),
    ),
    "gptj": Claim(
        "GPT-J", "Rotary positions reach a lower loss than learned ones after the same steps.",
        "같은 스텝을 학습하면 회전 위치의 손실이 학습된 위치보다 낮습니다.",
        "Su et al. 2021, §4; Biderman et al. 2021, EleutherAI's study of rotary embeddings", "text loss",
        ({"label": "GPT-J (rotary, parallel)", "family": "gptj", "tokenizer": "gpt2",
          "model": {"rotary": 16, "tied": True}},
         {"label": "GPT-2 (learned positions)", "family": "gpt2"}),
        LOSS, LOSS_KO, Rule("better"),
    ),
    "gpt_neox": Claim(
        "GPT-NeoX", "Attention and feed-forward in parallel cost no quality against one after the other.",
        "어텐션과 피드포워드를 병렬로 계산해도 순차 계산에 비해 품질이 떨어지지 않습니다.",
        "Black et al. 2022, §2.1.2", "text loss",
        ({"label": "parallel", "family": "gpt_neox", "tokenizer": "gpt2", "model": {"parallel": True}},
         {"label": "one after the other", "family": "gpt_neox", "tokenizer": "gpt2", "model": {"parallel": False}}),
        LOSS, LOSS_KO, Rule("close", share=0.01),
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
        ({"label": "all shared", "family": "albert", "objective": {"name": "mlm"}, "model": {"share": "all-shared"}},
         {"label": "not shared", "family": "albert", "objective": {"name": "mlm"}, "model": {"share": "not-shared"}}),
        LOSS, LOSS_KO, Rule("close", share=0.05),
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
        LOSS, LOSS_KO, Rule("better"),
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
        "BLOOM", "ALiBi loses less than rotary positions on texts four times as long as in training.",
        "학습 때보다 네 배 긴 텍스트에서 ALiBi는 회전 위치보다 덜 나빠집니다.",
        "Le Scao et al. 2022, §3.2.3; Press et al. 2022, §4 and figure 1", "extrapolation",
        ({"label": "BLOOM (ALiBi)", "family": "bloom", "tokenizer": "gpt2"},
         {"label": "GPT-NeoX (rotary)", "family": "gpt_neox", "tokenizer": "gpt2", "context": 4,
          "model": {"rotary_fraction": 1.0}}),
        "loss at 4 times the length, less that at the length", "네 배 길이의 손실에서 학습 길이의 손실을 뺀 값",
        Rule("better"),
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


def collect_values(rows: list[dict[str, Any]], name: str, scale: str) -> tuple[list[float], list[float], list[int]]:
    """Return the values of both arms by the seeds that both have."""
    found: tuple[dict[int, float], dict[int, float]] = ({}, {})
    for row in rows:
        if row["claim"] == name and row["scale"] == scale:
            found[row["arm"]][row["seed"]] = row["value"]
    seeds = sorted(found[0].keys() & found[1].keys())
    return [found[0][s] for s in seeds], [found[1][s] for s in seeds], seeds


def run_claim(name: str, seed: int, given: argparse.Namespace) -> None:
    """Run both arms of a claim with one seed, in this process; append a line for each."""
    from benchmarks.claim_works import SCALES, WORKS, Work
    from benchmarks.harness import describe_machine

    claim, machine, failed = CLAIMS[name], describe_machine(), list[str]()
    done = {(r["arm"], r["seed"]) for r in read_results(given.out) if (r["claim"], r["scale"]) == (name, given.scale)}
    for number, arm in enumerate(claim.arms):
        if (number, seed) in done:
            continue
        began = time.perf_counter()
        work = Work(SCALES[given.scale], given.scale, seed, given.folder, given.data, given.text, name, arm)
        try:
            values = WORKS[claim.work](work)
        except Exception:  # the other arm is worth its time: a later call does this one alone
            traceback.print_exc()
            failed.append(arm["label"])
            continue
        row = {"claim": name, "scale": given.scale, "seed": seed, "arm": number, "label": arm["label"], **values,
               "seconds": round(time.perf_counter() - began, 1), **machine}  # fmt: skip
        given.out.parent.mkdir(parents=True, exist_ok=True)
        with given.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


def list_jobs(names: list[str], seeds: Sequence[int], rows: list[dict[str, Any]], scale: str) -> list[tuple[str, int]]:
    """List the claims and seeds that are not finished; every claim with its first seed before any second."""
    done = {(r["claim"], r["seed"], r["arm"]) for r in rows if r["scale"] == scale}
    return [(name, seed) for seed in seeds for name in names if not {(name, seed, 0), (name, seed, 1)} <= done]


def start_job(name: str, seed: int, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Begin a claim in a process of its own, whose output goes to a file."""
    return start_process(["--run", name, "--seeds", str(seed)], f"{name}-{seed}", given)


def start_process(words: list[str], log_name: str, given: argparse.Namespace) -> subprocess.Popen[bytes]:
    """Begin this program in a process of its own; its output goes to a file of the folder."""
    command = [sys.executable, "-m", "benchmarks.claims", *words, "--scale", given.scale]
    command += ["--out", str(given.out), "--folder", str(given.folder), "--data", str(given.data)]
    command += [] if given.text is None else ["--text", str(given.text)]
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


def print_table(names: list[str], rows: list[dict[str, Any]], scale: str) -> None:
    """Print what was found at a scale."""
    for name in names:
        claim = CLAIMS[name]
        first, second, seeds = collect_values(rows, name, scale)
        labels = claim.get_labels()
        print(f"{name:9} {labels[0]}: {format_arm(first)} | {labels[1]}: {format_arm(second)} | {claim.measure}"
              f" | seeds {len(seeds)} | {claim.rule.judge(first, second)}", flush=True)  # fmt: skip


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
    from benchmarks.claim_works import SCALES, Work

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
    jobs = list_jobs(names, given.seeds, read_results(given.out), given.scale)
    began = time.monotonic()
    if given.at_once > 1:
        prepare_at_once([name for name in names if any(name == job[0] for job in jobs)], given)
        print(f"text prepared in {time.monotonic() - began:.0f} s", flush=True)
    given.minutes -= (time.monotonic() - began) / 60
    failures = run_jobs(jobs, given)
    print_table(names, read_results(given.out), given.scale)
    for failure in failures:
        print(failure, file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
