"""docs/en/claims.md and docs/ko/claims.md, written from the results file of benchmarks/claims.py."""

from __future__ import annotations

import json
from typing import Any

from benchmarks.claims import CLAIMS, ROOT, Claim, collect_values, format_arm

SCALE_NAMES = {
    "gpu": ("GPU (6 layers of 256)", "GPU(256차원, 레이어 6개)"),
    "cpu": ("CPU (4 layers of 96)", "CPU(96차원, 레이어 4개)"),
}  # fmt: skip
KOREAN_VERDICTS = {
    "held": "성립", "did not hold": "성립하지 않음", "unclear": "불분명", "not yet measured": "아직 측정하지 않음",
    "one seed: no verdict": "시드 하나: 판정 없음",
}  # fmt: skip
MIN_SEEDS = 2  # for a verdict
ENGLISH = """# Claims of the papers, tried at small scale

Made from `benchmarks/raw/claims.jsonl` by `python -m benchmarks.claims --pages`; do not edit.

One claim of each member's paper, with two arms that differ in the one thing that it is about; where whole members are
compared (GPT-Neo, GPT-J, XLNet, BLOOM), they differ in their other parts as well. The rule of each verdict was fixed
before the run. Models are small and train for minutes, so that a verdict is about this scale: a claim that
did not hold here is not refuted, and one that held is not proven at the paper's size. One rule is younger than a trial:
with a linear head both arms of ELMo stayed at chance (49.6 to 49.8 %), so its head became a BiLSTM, and every rule on
accuracy got a floor of 55 % below which it says nothing.

```sh
python -m benchmarks.claims --list
python -m benchmarks.claims --dry
python -m benchmarks.claims --scale cpu
python -m benchmarks.claims --scale gpu --at-once 12 --minutes 9.5 --text CORPORA/wikipedia.train.txt.xz
```

Values are means over the seeds ± half the distance between the largest and the smallest; a verdict needs two seeds. On
a CPU a model reads 0.4 million tokens for a text loss and 1.6 million before a task, on a GPU 16 and 65 million: where
the two differ, trust the GPU.

"""
KOREAN = """# 논문의 주장을 작은 규모로 확인하기

`benchmarks/raw/claims.jsonl`에서 `python -m benchmarks.claims --pages`로 만든 문서입니다. 직접 고치지 마십시오.

모델마다 논문의 주장 하나를 고르고, 그 주장이 말하는 한 가지만 다른 두 모델을 비교합니다. 모델끼리 비교하는
항목(GPT-Neo, GPT-J, XLNet, BLOOM)에서는 나머지 부분도 서로 다릅니다. 판정 규칙은 실행하기 전에 정했습니다. 모델이 작고
학습 시간이 몇 분이므로 판정은 이 규모에만 해당합니다. 여기서 성립하지 않았다고 주장이 반증된 것은 아니며, 성립했다고
논문의 규모에서 증명된 것도 아닙니다. 시험 실행 뒤에 바꾼 규칙이 하나 있습니다. ELMo는 선형 헤드로는 두 모델이 모두
우연 수준(49.6~49.8 %)에 머물러 헤드를 BiLSTM으로 바꾸었고, 정확도로 판정하는 모든 규칙에 하한 55 %를 두어 그
아래에서는 판정하지 않습니다.

```sh
python -m benchmarks.claims --list
python -m benchmarks.claims --dry
python -m benchmarks.claims --scale cpu
python -m benchmarks.claims --scale gpu --at-once 12 --minutes 9.5 --text CORPORA/wikipedia.train.txt.xz
```

값은 시드별 평균 ± (최댓값과 최솟값 차이의 절반)이며, 시드가 둘 이상일 때만 판정합니다. CPU에서는 손실을 잴 때
40만 토큰, 과제에 앞서 160만 토큰을 읽고, GPU에서는 1,600만과 6,500만 토큰을 읽습니다. 두 결과가 다르면
GPU 쪽을 믿으십시오.

"""


def write_pages(rows: list[dict[str, Any]]) -> None:
    """Write both pages."""
    for language in ("en", "ko"):
        path = ROOT / "docs" / language / "claims.md"
        path.write_text(render_page(rows, korean=language == "ko"), encoding="utf-8")


def render_page(rows: list[dict[str, Any]], korean: bool) -> str:
    """Render the table of all claims, and how each was tried."""
    head = ("member", "claim", "first arm", "second arm", "seeds", "scale", "verdict")
    head_ko = ("모델", "주장", "첫 번째", "두 번째", "시드", "규모", "판정")
    lines = [f"| {' | '.join(head_ko if korean else head)} |", "|---|---|---|---|---|---|---|"]
    for name, claim in CLAIMS.items():
        lines += render_rows(name, claim, rows, korean)
    lines += ["", "## " + ("실행 방법" if korean else "How each was tried"), ""]
    for name, claim in CLAIMS.items():
        lines += describe_claim(name, claim, rows, korean)
    return (KOREAN if korean else ENGLISH) + "\n".join(lines).rstrip() + "\n"


def render_rows(name: str, claim: Claim, rows: list[dict[str, Any]], korean: bool) -> list[str]:
    """Render a row for each scale that a claim was tried at, or one that says that it was not."""
    text, lines = claim.korean if korean else claim.text, []
    for scale, names in SCALE_NAMES.items():
        first, second, seeds = collect_values(rows, name, scale)
        if not seeds:
            continue
        verdict = claim.rule.judge(first, second) if len(seeds) >= MIN_SEEDS else "one seed: no verdict"
        shown = KOREAN_VERDICTS[verdict] if korean else verdict
        values = [
            f"{label}: {format_arm(some)}" for label, some in zip(claim.get_labels(), (first, second), strict=True)
        ]
        lines.append(
            f"| {claim.member} | {text} | {' | '.join(values)} | {len(seeds)} | {names[korean]} | **{shown}** |"
        )
    missing = KOREAN_VERDICTS["not yet measured"] if korean else "not yet measured"
    labels = " | ".join(claim.get_labels())
    return lines or [f"| {claim.member} | {text} | {labels} | – | – | {missing} |"]


def describe_claim(name: str, claim: Claim, rows: list[dict[str, Any]], korean: bool) -> list[str]:
    """Describe the source, the quantity, the rule, the settings of both arms and the machines of a claim."""
    words = (
        ("출처", "측정", "규칙", "명령", "설정", "측정한 곳") if korean
        else ("source", "measured", "rule", "command", "settings", "measured on")
    )  # fmt: skip
    machines = sorted({f"{r['device']}, torch {r['torch']}, {r['commit']}" for r in rows if r["claim"] == name})
    lines = [f"### {claim.member}", "", f"- {words[0]}: {claim.source}"]
    lines.append(f"- {words[1]}: {claim.measure_korean if korean else claim.measure} (`{claim.work}`)")
    lines.append(f"- {words[2]}: {claim.rule.describe(korean)}")
    lines.append(f"- {words[3]}: `python -m benchmarks.claims {name}`")
    for arm in claim.arms:
        settings = {key: value for key, value in arm.items() if key != "label"}
        lines.append(f"- {words[4]}, {arm['label']}: `{json.dumps(settings, ensure_ascii=False)}`")
    return [*lines, *([f"- {words[5]}: {'; '.join(machines)}"] if machines else []), ""]
