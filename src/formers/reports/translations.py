"""The words of reports in Korean: one table, by the English words."""

# ruff: noqa: E501
from __future__ import annotations

KOREAN = {
    # the run in numbers
    "parameters": "파라미터",
    "text": "텍스트",
    "steps": "스텝",
    "speed": "속도",
    "peak memory": "최대 메모리",
    "of the machine's peak": "하드웨어 최고 성능 대비",
    "machine": "하드웨어",
    "versions": "버전",
    "tokenizer": "토크나이저",
    "store": "토큰 저장소",
    "steps left out": "건너뛴 스텝",
    "note": "알림",
    "{tokens:,} tokens in {documents:,} documents": "문서 {documents:,}개, 토큰 {tokens:,}개",
    "{step:,} of {steps:,}; best checkpoint {best}": "{steps:,}스텝 중 {step:,}스텝; 최고 체크포인트 {best}",
    "none: the model reads characters": "없음: 문자를 읽는 모델",
    "{speed:,.0f} tokens/s, {tokens:,} tokens in {seconds:,.0f} s": "초당 {speed:,.0f}토큰, {seconds:,.0f}초 동안 {tokens:,}토큰",
    "{name} ({device}), {processes} process(es), {threads} threads": "{name} ({device}), 프로세스 {processes}개, 스레드 {threads}개",
    "{parameters:,} parameters; {tokens:,} tokens in {seconds:.0f} s.": "파라미터 {parameters:,}개, {seconds:.0f}초 동안 {tokens:,}토큰 학습.",
    # a run that is stuck (training/plateau_monitor.py)
    "the model has learned little: its validation loss of {loss:.2f} after step {step:,} is hardly better than token frequencies alone (unigram {unigram:.2f}) and has stopped falling.":
        "모델이 거의 학습하지 못했습니다. {step:,}스텝에서 검증 손실({loss:.2f})이 토큰 빈도만 사용한 유니그램({unigram:.2f})보다 거의 낮지 않고, 더 이상 줄지 않습니다.",
    "the model has learned little: its validation loss of {loss:.2f} after step {step:,} is no better than token frequencies alone (unigram {unigram:.2f}) and has stopped falling.":
        "모델이 거의 학습하지 못했습니다. {step:,}스텝에서 검증 손실({loss:.2f})이 토큰 빈도만 사용한 유니그램({unigram:.2f})보다 낮지 않고, 더 이상 줄지 않습니다.",
    "the validation loss is {loss:.2f} after step {step:,}; its best was {best:.2f} at step {best_step:,}.":
        "{step:,}스텝의 검증 손실은 {loss:.2f}이며, 가장 낮았던 값은 {best_step:,}스텝의 {best:.2f}입니다.",
    "The training loss still falls, so the model learns its text by heart: give more text, fewer steps (--train.steps) or more dropout (--model.dropout). The best checkpoint is kept.":
        "학습 손실은 계속 줄고 있으므로 과적합입니다. 텍스트를 늘리거나, 스텝을 줄이거나(--train.steps), 드롭아웃을 높이십시오(--model.dropout). 최고 체크포인트는 보존됩니다.",
    "The training loss rises too: the learning rate is too high. Try {settings}.":
        "학습 손실도 커지고 있습니다. 학습률이 너무 높습니다. {settings} 설정을 시도해 보십시오.",
    "The learning rate may not suit {optimizer}, or the optimizer this model: try {settings}.":
        "학습률이 {optimizer}에 맞지 않거나, 옵티마이저가 이 모델에 맞지 않을 수 있습니다. {settings} 설정을 시도해 보십시오.",
    "The learning rate is low for this size: try {settings}, or train for more steps.":
        "이 크기의 모델에는 학습률이 낮습니다. {settings} 설정을 시도하거나 더 많은 스텝을 학습하십시오.",
    "The usual cause is a learning rate that is too high or rises too fast: try {settings}.":
        "대개 학습률이 너무 높거나 너무 빨리 오르기 때문입니다. {settings} 설정을 시도해 보십시오.",
    "1 layer with the norms after the sums (post-norm) stalls when the learning rate is too high or rises too fast: try {settings}.":
        "잔차 합 뒤에 정규화하는(post-norm) 레이어는 학습률이 너무 높거나 너무 빨리 오르면 학습이 멈춥니다. {settings} 설정을 시도해 보십시오.",
    "{layers} layers with the norms after the sums (post-norm) stall when the learning rate is too high or rises too fast: try {settings}, or fewer layers.":
        "잔차 합 뒤에 정규화하는(post-norm) 레이어 {layers}개는 학습률이 너무 높거나 너무 빨리 오르면 학습이 멈춥니다. {settings} 설정을 시도하거나 레이어 수를 줄이십시오.",
    # scores and curves
    "validation text": "검증 텍스트",
    "accuracy": "정확도",
    "unigram (token frequencies alone)": "유니그램(토큰 빈도만 사용)",
    "this {title}": "이 {title} 모델",
    "training": "학습",
    "validation": "검증",
    "unigram, validation": "유니그램, 검증",
    "{title}: loss over steps": "{title}: 스텝별 손실",
    "{title}: loss over steps ({part})": "{title}: 스텝별 손실({part})",
    "Validation loss": "검증 손실",
    "step": "스텝",
    "loss": "손실",
    # samples
    "After step {step:,}": "{step:,}스텝 학습 후",
    "given: {text}": "입력: {text}",
    "target: {text}": "정답: {text}",
    "model: {text}": "모델: {text}",
    # tables of a fine-tuned model
    "Metrics": "지표",
    "test": "테스트",
    "TF-IDF + linear, validation": "TF-IDF + 선형 모델, 검증",
    "TF-IDF + linear, test": "TF-IDF + 선형 모델, 테스트",
    "task": "과제",
    "examples": "예제 수",
    "rate": "혼합 비율",
    "average": "평균",
    "How they were computed": "계산 방법",
    "metric": "지표",
    "signature": "시그니처",
    "Truth (rows) and guess (columns)": "혼동 행렬: 정답(행)과 예측(열)",
    "Worst examples": "가장 크게 틀린 예제",
    "Examples": "예제",
    "truth": "정답",
    "guess": "예측",
    "written": "생성 결과",
    "probability of the truth": "정답의 확률",
    "share of right tags": "맞은 태그의 비율",
    "error": "오차",
    "Settings": "설정",
    # attention
    "Attention of the {kind}: each row is a token, the darker squares are what it reads from. This shows where, not why.":
        "{kind}의 어텐션: 각 행은 토큰이고, 진한 칸이 그 토큰이 참조하는 위치입니다. 어디를 보는지를 나타낼 뿐 이유를 나타내지는 않습니다.",
    "layer {layer}, head {head}": "레이어 {layer}, 헤드 {head}",
    "encoder": "인코더",
    "decoder": "디코더",
    # the demo
    "Two language models, trained while you waited": "기다리는 동안 학습한 두 언어 모델",
    "Corpus: {documents:,} bundled documents.": "말뭉치: 함께 제공되는 문서 {documents:,}개.",
    "Continuing “{text}”:": "“{text}”에 이어서 생성:",
    "Filling “{text}”:": "“{text}”의 빈칸 채우기:",
}  # fmt: skip


def translate_report(words: str, language: str = "en", **values: object) -> str:
    """Return words of a report in a language, with values filled in; words that the table does not have stay."""
    words = KOREAN.get(words, words) if language == "ko" else words
    return words.format(**values) if values else words
