"""Write docs/en/family.md and docs/ko/family.md out of the model files: python scripts/make_family.py"""

# ruff: noqa: E501
from __future__ import annotations

from pathlib import Path

import formers

DOCS = Path(__file__).parents[1] / "docs"
TITLES = {"en": "The family", "ko": "모델 계열"}
NOTES = {
    "en": "Made from the model files by `python scripts/make_family.py`; do not edit.",
    "ko": "`python scripts/make_family.py`가 모델 파일에서 만든 페이지입니다. 직접 고치지 마십시오. 텐서의 모양과 참조 구현과의"
    " 차이는 [영어 페이지](../en/family.md)에 있습니다.",
}
KOREAN_PARENTS = {"convolution": "합성곱", "recurrence": "순환 신경망", "lstm": "LSTM", "–": "단어 벡터"}
# What is new in each model, in Korean; the English words are in the model files.
KOREAN_SUMMARIES = {
    "vectors": "단어를 문맥과 무관한 벡터 하나로 나타냅니다. word2vec은 주변 단어를 예측하고(skip-gram) 주변 단어로 예측하며(CBOW), 소프트맥스 대신 네거티브 샘플링을 씁니다. GloVe는 동시 출현 횟수의 로그를 최소제곱으로 맞추고, fastText는 문자 n-gram의 합을 써서 처음 보는 단어에도 벡터를 줍니다.",
    "seq2seq": "인코더가 텍스트를 고정 크기의 상태로 읽고 디코더가 그 상태에서 텍스트를 생성합니다. GRU(Cho), 덧셈 어텐션과 양방향 인코더(Bahdanau), 내적 어텐션과 입력 피딩(Luong)을 고를 수 있습니다.",
    "textcnn": "단어 벡터 위에 너비가 다른 여러 필터를 적용하고 필터마다 최댓값을 취합니다. 미리 학습한 단어 벡터를 고정하거나 함께 학습합니다.",
    "gnmt": "인코더와 디코더에 LSTM 레이어 여덟 개씩을 잔차 연결로 쌓습니다. 인코더의 첫 레이어만 양방향이고, 어텐션의 결과를 디코더의 모든 레이어가 받습니다. 빔 탐색에 길이 페널티와 커버리지 페널티를 씁니다.",
    "transformer": "순환 없이 멀티 헤드 어텐션만 씁니다. 위치는 사인 함수로 나타내고, 임베딩을 양쪽과 출력이 공유하며, 레이블 스무딩과 워밍업을 씁니다.",
    "bert": "양쪽 문맥을 모두 보는 마스크 언어 모델입니다. 다음 문장 예측을 함께 학습하고, 세그먼트 A와 B, [CLS] 토큰, 30k WordPiece를 씁니다.",
    "elmo": "단어 임베딩과 소프트맥스를 공유하는 순방향·역방향 언어 모델입니다. 단어의 벡터는 모든 레이어의 가중합이며, 가중치는 과제에서 학습합니다.",
    "gpt": "언어 모델로 사전 학습한 뒤, 언어 모델 손실을 보조 손실로 두고 미세 조정합니다. 과제마다 시작, 구분, 추출 토큰을 넣어 시퀀스 하나로 만듭니다. 위치는 학습하고 어휘는 40k BPE입니다.",
    "albert": "임베딩의 차원을 줄여 사영하고, 모든 레이어가 블록 하나를 공유합니다. 다음 문장 예측 대신 문장 순서 예측을 학습합니다.",
    "bart": "BERT의 인코더와 GPT의 디코더를 합칩니다. 마스킹, 삭제, 채우기, 문장 섞기, 문서 회전으로 손상한 텍스트에서 원문을 복원하도록 학습합니다.",
    "ernie": "구와 개체를 통째로 가리며 세 단계로 학습합니다. 대화 언어 모델을 더하고, 2.0은 과제 임베딩을 두고 여러 과제를 차례로 학습합니다.",
    "gpt2": "정규화를 각 하위 블록의 앞으로 옮기고 마지막 블록 뒤에 하나를 더합니다. 잔차 사영의 초깃값을 1/√(2·레이어 수)만큼 줄이고, 50,257개의 바이트 단위 BPE와 길이 1,024의 문맥을 씁니다.",
    "roberta": "다음 문장 예측을 없애고 에포크마다 마스크를 새로 뽑습니다. 50k 바이트 단위 BPE를 씁니다.",
    "t5": "모든 과제를 텍스트에서 텍스트로 바꾸는 문제로 다룹니다. 구간 복원으로 사전 학습하고, 위치 대신 상대 거리의 버킷별 편향을, 레이어 정규화 대신 RMS 정규화를 씁니다. 1.1은 게이트가 있는 GELU와 분리된 출력 레이어를 씁니다.",
    "transformer_xl": "앞 세그먼트의 은닉 상태를 기울기 없이 기억해 이어서 읽습니다. 상대 위치와 적응형 임베딩·소프트맥스를 씁니다.",
    "xlnet": "토큰을 임의의 순서로 예측하는 순열 언어 모델입니다. 토큰을 아는 내용 스트림과 위치만 아는 쿼리 스트림, 상대 세그먼트를 씁니다.",
    "gpt3": "전체 어텐션과 국소 어텐션을 번갈아 쓰고 문맥은 2,048입니다. 과제를 프롬프트로 줍니다.",
    "mbart": "한국어를 포함한 25개 언어로 학습한 BART입니다. 정규화를 하위 블록의 앞으로 옮기고, 언어 토큰으로 텍스트를 시작합니다.",
    "mt5": "한국어를 포함한 101개 언어로 학습한 T5 1.1입니다. 어휘는 250k입니다.",
    "gpt_neo": "전체 어텐션과 256 토큰의 국소 어텐션을 번갈아 씁니다. 점수를 1/√head_dim으로 나누지 않고, 쿼리·키·값에 편향이 없습니다.",
    "gptj": "회전 위치 임베딩(RoPE)을 씁니다. 어텐션과 피드포워드가 정규화 하나를 공유하며 나란히 계산되고, 출력 레이어가 따로 있습니다.",
    "switch": "일부 피드포워드 레이어에 전문가를 여럿 두고 토큰마다 하나만 씁니다. 전문가에는 용량이 있고, 균형 손실이 전문가를 고르게 쓰게 합니다.",
    "bloom": "위치 임베딩 대신 거리에 비례하는 페널티(ALiBi)를 쓰고, 임베딩 바로 뒤에 정규화를 둡니다. 자연어 46개와 프로그래밍 언어 13개의 250k 바이트 단위 BPE를 씁니다.",
    "gpt_neox": "각 헤드의 4분의 1에 회전 위치 임베딩을 적용합니다. 어텐션과 피드포워드가 나란히 있지만 정규화를 따로 쓰고, 출력 레이어에 편향이 없습니다.",
}


def make_page(language: str) -> str:
    """The page as text: the tree, then one section for each member."""
    members = {row["name"]: row for row in formers.tree()}
    lines = [f"# {TITLES[language]}", "", NOTES[language], ""]
    roots = sorted({row["parent"] for row in members.values()} - set(members))

    def add_branch(name: str, depth: int) -> None:
        row = members.get(name)
        root = KOREAN_PARENTS[name] if language == "ko" and row is None else name
        label = f"[{row['title']}](#{name}) ({row['year']})" if row else root
        lines.append(f"{'  ' * depth}- {label}")
        for child in sorted((r for r in members.values() if r["parent"] == name), key=lambda r: (r["year"], r["name"])):
            add_branch(child["name"], depth + 1)

    for root in roots:
        add_branch(root, 0)
    for name, row in sorted(members.items(), key=lambda item: (item[1]["year"], item[0])):
        lines += ["", f"## {name}", ""]
        lines += describe_in_korean(row) if language == "ko" else describe_in_english(row)
        if row["presets"]:
            lines.append("| 프리셋 | 파라미터 | 헤드 |" if language == "ko" else "| preset | parameters | with |")
            lines.append("|---|---|---|")
            for preset, size in row["presets"].items():
                head = "no head" if size["head"] == "none" else f"head {size['head']}"
                head = head if language == "en" else {"none": "없음"}.get(size["head"], f"`{size['head']}`")
                lines.append(f"| `{preset}` | {size['parameters']:,} | {head} |")
    return "\n".join(lines) + "\n"


def describe_in_english(row: dict[str, str]) -> list[str]:
    """A member's paper, parent and differences, as its model file has them."""
    return [
        f"**{row['title']}** ({row['paper']}). Parent: {row['parent']}.", "",
        f"New: {row['new']}", "", f"Shapes: {row['shapes']}", "", f"Differs from the reference: {row['differs']}", "",
    ]  # fmt: skip


def describe_in_korean(row: dict[str, str]) -> list[str]:
    """A member's paper, parent and summary."""
    parent = KOREAN_PARENTS.get(row["parent"], row["parent"])
    return [f"**{row['title']}** ({row['paper']}). 부모: {parent}.", "", KOREAN_SUMMARIES[row["name"]], ""]


if __name__ == "__main__":
    for language in TITLES:
        (DOCS / language / "family.md").write_text(make_page(language), encoding="utf-8")
