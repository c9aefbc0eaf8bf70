"""docs/en/claims.md and docs/ko/claims.md, written from the results file of benchmarks/claims.py."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.claims import CLAIMS, ROOT, Claim, Measurement, collect_measurement, format_arm

SCALE_NAMES = {
    "gpu": ("GPU (6 layers of 256)", "GPU(256차원, 레이어 6개)"),
    "cpu": ("CPU (4 layers of 96)", "CPU(96차원, 레이어 4개)"),
}  # fmt: skip
KOREAN_VERDICTS = {
    "held": "성립", "did not hold": "성립하지 않음", "unclear": "불분명", "not yet measured": "아직 측정하지 않음",
    "one seed: no verdict": "시드 하나: 판정 없음",
}  # fmt: skip
# The names of the arms; those that are names of models stay.
KOREAN_ARMS = {
    "plain RNN with attention": "어텐션이 있는 RNN", "plain RNN without": "어텐션이 없는 RNN",
    "with input feeding": "입력 피딩 있음", "without": "입력 피딩 없음",
    "residual from layer 3": "레이어 3부터 잔차 연결", "no residuals": "잔차 연결 없음",
    "mix of layers": "레이어의 가중합", "last layer": "마지막 레이어",
    "pretrained": "사전 학습함", "not pretrained": "사전 학습하지 않음",
    "bands of 16 in every other layer": "한 레이어 걸러 너비 16의 띠", "dense": "모두 밀집",
    "GPT-Neo, window 16": "GPT-Neo, 창 16", "GPT-J (rotary, parallel)": "GPT-J(회전 위치, 병렬)",
    "GPT-2 (learned positions)": "GPT-2(학습된 위치)", "parallel": "병렬", "one after the other": "순차",
    "full sentences, no NSP": "온전한 문장, NSP 없음", "segment pairs, NSP": "세그먼트 쌍, NSP",
    "infilling": "텍스트 채우기", "permutation": "문장 순서 바꾸기",
    "all shared": "모두 공유", "not shared": "공유하지 않음", "span corruption": "구간 손상",
    "deshuffling": "토큰 순서 복원", "8 experts": "전문가 8개", "three stages": "세 단계", "tokens": "토큰",
    "BLOOM (ALiBi)": "BLOOM(ALiBi)", "GPT-NeoX (rotary)": "GPT-NeoX(회전 위치)",
}  # fmt: skip
MIN_SEEDS = 2  # for a verdict
ENGLISH = """# Claims of the papers, tried at small scale

Made from `benchmarks/raw/claims.jsonl` by `python -m benchmarks.claims --pages`; do not edit.

One claim of each model's paper, tested with two arms that differ only in what the claim is about; where whole models
are compared (GPT-Neo, GPT-J, XLNet, BLOOM), they differ in their other parts as well. Models are small and train for
minutes, so a verdict holds for this scale only: a claim that did not hold here is not refuted, and one that held is not
proven at the paper's size. The rules were fixed before the first run; some were changed after results had been seen,
as told at the end of this page.

```sh
python -m benchmarks.claims --list
python -m benchmarks.claims --dry
python -m benchmarks.claims --scale cpu
python -m benchmarks.claims --scale gpu --at-once 12 --minutes 9.5 --text CORPORA/wikipedia.train.txt.xz
```

Values are means over the seeds ± half the distance between the largest and the smallest; a verdict needs two seeds. On
a CPU a model reads 0.4 million tokens for a text loss and 1.6 million before a task, on a GPU 16 and 65 million
(ALBERT and BLOOM: as their settings say). Where the two disagree, trust the GPU.

For every claim, a verdict also needs a difference between the means (or a distance to the limit of a rule with a limit)
larger than "repeats differ by": the largest difference between runs of the same configuration and seed, among all
claims of the same kind at that scale. Arms of two claims with the same configuration are such repeats and share their
rows: GPT-2 of GPT-Neo and GPT-J, and BERT of RoBERTa and XLNet. On a CPU with one thread, repeats do not differ at all.
Where nothing of a kind was repeated, the largest distance between the seeds of one arm stands in, marked "seeds". A
text loss must be 0.5 nats below what token frequencies alone give (sentinels, which no text has, cost nothing there).

"""
KOREAN = """# 논문의 주장을 작은 규모로 확인하기

`benchmarks/raw/claims.jsonl`에서 `python -m benchmarks.claims --pages`로 만든 문서입니다. 직접 고치지 마십시오.

모델마다 논문의 주장 하나를 고르고, 그 주장이 다루는 한 가지만 다른 두 모델을 비교합니다. 서로 다른 모델을 통째로
비교하는 항목(GPT-Neo, GPT-J, XLNet, BLOOM)에서는 나머지 부분도 다릅니다. 모델이 작고 몇 분만 학습하므로 판정은 이
규모에만 해당합니다. 여기서 성립하지 않았다고 주장이 반증된 것은 아니며, 성립했다고 논문의 규모에서 증명된 것도
아닙니다. 판정 규칙은 첫 실행 전에 정했지만, 일부는 결과를 본 뒤에 바꾸었습니다. 무엇을 바꾸었는지는 이 문서의 끝에
적었습니다.

```sh
python -m benchmarks.claims --list
python -m benchmarks.claims --dry
python -m benchmarks.claims --scale cpu
python -m benchmarks.claims --scale gpu --at-once 12 --minutes 9.5 --text CORPORA/wikipedia.train.txt.xz
```

값은 시드별 값의 평균 ± (최댓값과 최솟값 차이의 절반)이며, 시드가 둘 이상일 때만 판정합니다. CPU에서는 텍스트의 손실을
잴 때 40만 토큰, 과제를 학습하기 전에 160만 토큰을 읽고, GPU에서는 각각 1,600만, 6,500만 토큰을 읽습니다(ALBERT와
BLOOM은 설정에 적힌 대로입니다). 두 결과가 다르면 GPU의 결과를 믿으십시오.

어떤 주장이든 판정하려면 두 평균의 차이(한도가 있는 규칙에서는 한도까지의 거리)가 "반복 실행의 차이"보다 커야 합니다.
이 값은 같은 규모에서 같은 방식으로 측정하는 모든 주장을 통틀어, 설정과 시드가 같은 실행들의 값이 가장 크게 벌어진
차이입니다. 두 주장에 같은 설정의 모델이 있으면 그 실행들이 곧 반복 실행이며 결과를 함께 씁니다. GPT-Neo와 GPT-J의
GPT-2, RoBERTa와 XLNet의 BERT가 그렇습니다. 스레드 하나를 쓰는 CPU에서는 반복 실행의 결과가 똑같습니다. 같은 방식의
반복 실행이 없으면 한 모델의 시드 사이에서 가장 큰 차이를 대신 쓰고 "시드"라고 표시합니다. 텍스트의 손실은 토큰
빈도만으로 예측할 때의 손실보다 0.5 nats 이상 낮아야 합니다(텍스트에 없는 센티널 토큰은 그 손실에 넣지 않습니다).

"""
CHANGES = """## What was changed after results had been seen

Each change makes a verdict harder to reach, or gives a claim a test that it can fail; a change that is made with the
results known is weaker evidence all the same.

1. ELMo's head, after a trial run. With a linear head both arms stayed at chance on SST-2 (49.6 to 49.8 %), so the
   head became a BiLSTM, and every rule on accuracy got a floor of 55 %, below which there is no verdict.
2. ELMo a second time, after its CPU results: with the BiLSTM both arms stayed at chance again (49.6 to 52.5 %), so
   the task became TREC's six kinds of questions, with a floor of 35 % (the most frequent kind has 27.6 %). The rows
   of SST-2 were deleted.
3. The comparison with repeats, after all results. Before, a difference of the same sign with every seed was enough.
   This changed RoBERTa on a GPU from held to unclear, ERNIE on a GPU and BART on a CPU from did not hold to unclear.
4. The comparison of text losses with token frequencies, after all results. This changed ALBERT on a CPU from held to
   unclear (5.87 and 5.86 against 5.97), and Switch at both scales from did not hold to unclear. ALBERT was then
   changed to predict the next token, with twice the steps, which was settled with the unshared arm alone. Its older
   rows (masked tokens; on a GPU 6.24 and 6.23, which held) no longer count.
5. BLOOM, after its CPU results. Held became unclear, because neither arm got worse at 4 times windows of 64 tokens
   (ALiBi 5.53 → 5.48, rotary 5.35 → 5.33). The rule now requires that the rotary arm gets worse, and the setting
   became 8 times windows of 16, with twice the steps; it was settled with the rotary arm alone. The claim is about
   how much worse an arm gets: the rotary arm's loss itself is the lower one at both lengths.

Rows up to November 18, and those of a GPU, did not record their settings. They got those of today where the history
of `benchmarks/claims.py` shows that nothing had changed. The text of the GPU's rows is taken to be the one of the
command above; losses of token frequencies were computed afterwards, for the GPU from the first 4 million characters
of that text.
"""
KOREAN_CHANGES = """## 결과를 본 뒤에 바꾼 것

변경은 모두 판정을 더 어렵게 하거나, 주장이 틀릴 수도 있는 시험으로 바꾸는 것입니다. 그래도 결과를 알고 바꾼 것이므로
증거로서는 약합니다.

1. ELMo의 헤드(시험 실행 뒤): 선형 헤드를 쓰면 두 모델 모두 SST-2에서 우연 수준(49.6~49.8%)에 머물러 헤드를
   BiLSTM으로 바꾸었고, 정확도로 판정하는 모든 규칙에 하한 55%를 두어 그보다 낮으면 판정하지 않습니다.
2. ELMo의 두 번째 변경(CPU 결과를 본 뒤): BiLSTM을 써도 두 모델 모두 우연 수준(49.6~52.5%)에 머물러 과제를 여섯 가지
   질문을 분류하는 TREC으로 바꾸고 하한을 35%로 두었습니다(가장 많은 종류의 비율은 27.6%). SST-2로 측정한 행은
   지웠습니다.
3. 반복 실행과의 비교(모든 결과를 본 뒤): 전에는 모든 시드에서 차이의 부호가 같기만 하면 판정했습니다. 이 변경으로
   GPU의 RoBERTa는 '성립'에서 '불분명'으로, GPU의 ERNIE와 CPU의 BART는 '성립하지 않음'에서 '불분명'으로 바뀌었습니다.
4. 텍스트 손실과 토큰 빈도의 비교(모든 결과를 본 뒤): 이 변경으로 CPU의 ALBERT는 '성립'에서 '불분명'으로(손실 5.87과
   5.86, 토큰 빈도만의 손실 5.97), 두 규모의 Switch는 '성립하지 않음'에서 '불분명'으로 바뀌었습니다. 그 뒤 ALBERT는
   다음 토큰을 예측하고 스텝을 두 배로 학습하도록 바꾸었으며, 이 설정은 공유하지 않는 모델만 실행해 보고 정했습니다.
   예전 행(가린 토큰 예측, GPU에서 6.24와 6.23으로 '성립')은 더 이상 세지 않습니다.
5. BLOOM(CPU 결과를 본 뒤): 64토큰으로 학습하고 네 배 길이에서 잴 때는 두 모델 모두 나빠지지 않아(ALiBi 5.53 → 5.48,
   회전 위치 5.35 → 5.33) '성립'이 '불분명'이 되었습니다. 이제 규칙은 회전 위치 모델이 나빠질 것을 요구하며, 설정은
   16토큰으로 두 배의 스텝을 학습하고 여덟 배 길이에서 재는 것으로 바꾸었습니다. 이 설정은 회전 위치 모델만 실행해
   보고 정했습니다. 비교하는 것은 나빠지는 정도이며, 손실 자체는 두 길이 모두에서 회전 위치 모델이 더 낮습니다.

11월 18일까지의 행과 GPU에서 얻은 행에는 설정이 기록되지 않았습니다. `benchmarks/claims.py`의 이력에서 설정이
그대로임을 확인한 행에 현재 설정을 적었습니다. GPU에서 얻은 행의 텍스트는 위 명령의 텍스트로 간주했습니다. 토큰
빈도만의 손실은 나중에 계산했으며, GPU 규모에서는 그 텍스트의 처음 400만 자로 계산했습니다.
"""


def write_pages(rows: list[dict[str, Any]]) -> None:
    """Write both pages."""
    for language in ("en", "ko"):
        path = ROOT / "docs" / language / "claims.md"
        path.write_text(render_page(rows, korean=language == "ko"), encoding="utf-8")


def render_page(rows: list[dict[str, Any]], korean: bool) -> str:
    """Render the table of all claims, what a GPU has not run, and how each claim was tried."""
    head = ("model", "claim", "first arm", "second arm", "seeds", "repeats differ by", "scale", "verdict")
    head_ko = ("모델", "주장", "첫 번째 모델", "두 번째 모델", "시드 수", "반복 실행의 차이", "규모", "판정")
    lines = [f"| {' | '.join(head_ko if korean else head)} |", "|---|---|---|---|---|---|---|---|"]
    for name, claim in CLAIMS.items():
        lines += render_rows(name, claim, rows, korean)
    lines += ["", list_missing_gpu_runs(rows, korean)]
    lines += ["", "## " + ("실행 방법" if korean else "How each was tested"), ""]
    for name, claim in CLAIMS.items():
        lines += describe_claim(name, claim, rows, korean)
    head_text, changes = (KOREAN, KOREAN_CHANGES) if korean else (ENGLISH, CHANGES)
    return head_text + "\n".join(lines) + "\n" + changes


def list_missing_gpu_runs(rows: list[dict[str, Any]], korean: bool) -> str:
    """Say which claims have no verdict from a GPU yet."""
    counts = {claim.member: len(collect_measurement(rows, name, "gpu").seeds) for name, claim in CLAIMS.items()}
    none = ", ".join(member for member, count in counts.items() if not count)
    one = ", ".join(member for member, count in counts.items() if count == 1)
    if korean:
        none, one = none or "없음", one or "없음"
        return f"**GPU에서 두 모델을 모두 실행하지 않은 주장:** {none}. **시드 하나만 실행한 주장:** {one}."
    return f"**Not yet run on a GPU with both arms:** {none or 'none'}. **With one seed only:** {one or 'none'}."


def render_rows(name: str, claim: Claim, rows: list[dict[str, Any]], korean: bool) -> list[str]:
    """Render a row for each scale that a claim was tried at, or one that says that it was not."""
    text, lines = claim.korean if korean else claim.text, []
    for scale, names in SCALE_NAMES.items():
        found = collect_measurement(rows, name, scale)
        if not found.seeds:
            continue
        verdict = found.judge(claim.rule) if len(found.seeds) >= MIN_SEEDS else "one seed: no verdict"
        shown = KOREAN_VERDICTS[verdict] if korean else verdict
        values = [
            f"{label}: {format_arm(found.average(arm))}{render_details(claim, found, arm, korean)}"
            for arm, label in enumerate(name_arms(claim, korean))
        ]
        cells = [claim.member, text, *values, str(len(found.seeds)), render_spread(found, korean), names[korean]]
        lines.append(f"| {' | '.join(cells)} | **{shown}** |")
    missing = KOREAN_VERDICTS["not yet measured"] if korean else "not yet measured"
    labels = " | ".join(name_arms(claim, korean))
    return lines or [f"| {claim.member} | {text} | {labels} | – | – | – | {missing} |"]


def render_details(claim: Claim, found: Measurement, arm: int, korean: bool) -> str:
    """Render the further values of an arm that the claim shows."""
    parts = [f"{field[korean]} {format_arm(found.average(arm, field[0]))}" for field in claim.details]
    return f" ({', '.join(parts)})" if parts else ""


def render_spread(found: Measurement, korean: bool) -> str:
    """Render how far repeats of one configuration differ, or what stands in for it."""
    if not found.has_repeats and len(found.seeds) < MIN_SEEDS:
        return "–"
    mark = "" if found.has_repeats else " (시드)" if korean else " (seeds)"
    return f"{found.spread:.4f}{mark}"


def name_arms(claim: Claim, korean: bool) -> list[str]:
    """Name both arms of a claim in the language of the page."""
    return [KOREAN_ARMS.get(label, label) if korean else label for label in claim.get_labels()]


def describe_claim(name: str, claim: Claim, rows: list[dict[str, Any]], korean: bool) -> list[str]:
    """Describe the source, the quantity, the rule, the settings of both arms and the machines of a claim."""
    words = (
        ("출처", "측정", "규칙", "명령", "설정", "측정한 곳") if korean
        else ("source", "measured", "rule", "command", "settings", "measured on")
    )  # fmt: skip
    measurements = {scale: collect_measurement(rows, name, scale) for scale in SCALE_NAMES}
    counted = [r for m in measurements.values() for arm in m.arms for some in arm.values() for r in some]
    machines = sorted({f"{r['device']}, torch {r['torch']}, {r['commit']}" for r in counted})
    lines = [f"### {claim.member}", "", f"- {words[0]}: {claim.source}"]
    lines.append(f"- {words[1]}: {claim.measure_korean if korean else claim.measure} (`{claim.work}`)")
    lines.append(f"- {words[2]}: {claim.rule.describe(korean)}")
    lines.append(f"- {words[3]}: `python -m benchmarks.claims {name}`")
    for arm, label in zip(claim.arms, name_arms(claim, korean), strict=True):
        settings = {key: value for key, value in arm.items() if key != "label"}
        lines.append(f"- {words[4]}, {label}: `{json.dumps(settings, ensure_ascii=False)}`")
    unigrams = [
        f"{SCALE_NAMES[scale][korean]} {found.unigram:.3f}"
        for scale, found in measurements.items() if found.unigram is not None
    ]  # fmt: skip
    if unigrams:
        lines.append(f"- {'토큰 빈도만의 손실' if korean else 'loss of token frequencies'}: {', '.join(unigrams)}")
    return [*lines, *([f"- {words[5]}: {'; '.join(machines)}"] if machines else []), ""]
