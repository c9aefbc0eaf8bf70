"""The words of the steps of pretraining objectives, in English and Korean."""

from __future__ import annotations

from typing import NamedTuple


class Words(NamedTuple):
    """A text in the languages of the page."""

    en: str
    ko: str

    def fill(self, **values: object) -> Words:
        """Put values into the places of both texts."""
        return Words(self.en.format(**values), self.ko.format(**values))


# The title and the note of each step.
STEPS: dict[str, tuple[Words, Words]] = {
    "framed text": (
        Words("text", "텍스트"),
        Words("The text with its special tokens.", "특수 토큰을 붙인 텍스트입니다."),
    ),
    "chosen": (
        Words("chosen", "선택"),
        Words("{count} tokens are chosen ({share} of the text).", "토큰 {count}개를 고릅니다(텍스트의 {share})."),
    ),
    "model sees": (
        Words("model sees", "모델의 입력"),
        Words(
            "Of these, {masked} masked, {random} replaced by a random token, {kept} left as is.",
            "그중 {masked}개는 마스크로, {random}개는 무작위 토큰으로 바꾸고 {kept}개는 그대로 둡니다.",
        ),
    ),
    "model predicts": (
        Words("model predicts", "모델의 예측"),
        Words("The loss is computed at the chosen positions only.", "손실은 고른 위치에서만 계산합니다."),
    ),
    "question": (Words("question", "질문"), Words("{words}", "{words}")),
    "whole text": (Words("text", "텍스트"), Words("The text as it is.", "원래 텍스트입니다.")),
    "moved": (
        Words("sentences change places", "문장 순서 바꾸기"),
        Words("Whole sentences are moved.", "문장을 통째로 옮깁니다."),
    ),
    "dropped": (
        Words("spans are dropped", "구간 지우기"),
        Words("Each span becomes one sentinel.", "지운 구간마다 센티널 토큰 하나가 들어갑니다."),
    ),
    "encoder": (
        Words("encoder reads", "인코더의 입력"),
        Words("What is left of the text.", "텍스트에서 남은 부분입니다."),
    ),
    "decoder": (
        Words("decoder writes", "디코더의 출력"),
        Words("Token by token, each from those before it.", "앞의 토큰을 보고 한 토큰씩 생성합니다."),
    ),
    "unchanged text": (
        Words("text", "텍스트"),
        Words(
            "The text with its special tokens; nothing is replaced.",
            "특수 토큰을 붙인 텍스트이며, 바꾸는 토큰은 없습니다.",
        ),
    ),
    "targets": (
        Words("targets", "예측 대상"),
        Words("{count} tokens are predicted, in a random order.", "토큰 {count}개를 무작위 순서로 예측합니다."),
    ),
    "turn": (
        Words("turn {number}", "{number}번째 차례"),
        Words(
            "Predicted from the visible tokens and its own position.", "보이는 토큰과 자기 위치만으로 예측합니다."
        ),
    ),
    "read text": (
        Words("text", "텍스트"),
        Words("Nothing is hidden: every token is predicted once.", "숨기는 토큰 없이 모든 토큰을 한 번씩 예측합니다."),
    ),
    "next token": (
        Words("token {number}", "토큰 {number}"),
        Words("Predicted from all tokens before it.", "앞의 모든 토큰으로 예측합니다."),
    ),
    "words": (
        Words("text", "텍스트"),
        Words("Each word is read by its characters.", "단어마다 문자를 읽습니다."),
    ),
    "forward": (
        Words("forward", "순방향"),
        Words("The next word, from those before it.", "앞의 단어들로 다음 단어를 예측합니다."),
    ),
    "backward": (
        Words("backward", "역방향"),
        Words("The word before, from those after it.", "뒤의 단어들로 앞 단어를 예측합니다."),
    ),
}  # fmt: skip
FOLLOWS = Words("does the second text follow the first?", "두 번째 텍스트가 첫 번째 텍스트에 이어집니까?")
# The question of an objective about two texts, and its answers 0 and 1.
PAIR_QUESTIONS: dict[str, tuple[Words, tuple[Words, Words]]] = {
    "nsp": (
        FOLLOWS,
        (Words("0: yes", "0: 예"), Words("1: no, it is of another document", "1: 아니요, 다른 문서의 텍스트입니다")),
    ),
    "sop": (
        Words("are the two texts swapped?", "두 텍스트의 순서가 바뀌었습니까?"),
        (Words("0: no", "0: 아니요"), Words("1: yes", "1: 예")),
    ),
    "unit-pairs": (
        FOLLOWS,
        (Words("0: no, it is of another document", "0: 아니요, 다른 문서의 텍스트입니다"), Words("1: yes", "1: 예")),
    ),
    "dialogue": (
        Words("is this a real conversation?", "실제 대화입니까?"),
        (Words("0: no, one turn is another's", "0: 아니요, 한 발화가 다른 대화의 것입니다"), Words("1: yes", "1: 예")),
    ),
}  # fmt: skip
# What each objective asks for; the English words are the registry's.
KOREAN_HELP = {
    "causal": "앞의 토큰으로 다음 토큰을 예측합니다(GPT).",
    "prefix": "무작위 길이의 앞부분은 읽기만 하고, 그 뒤의 토큰을 차례로 예측합니다.",
    "seq2seq": "원문을 보고 목표문을 예측합니다.",
    "bidirectional": "순방향으로 다음 단어를, 역방향으로 앞 단어를 예측합니다(ELMo).",
    "mlm": "가린 토큰을 양쪽 문맥으로 예측합니다(RoBERTa).",
    "whole-word": "단어를 통째로 가리고 예측합니다.",
    "ngrams": "최대 세 단어까지 이어진 단어를 가리고 예측합니다.",
    "nsp": "가린 토큰을 예측하고, 두 번째 텍스트가 첫 번째에 이어지는지 판단합니다(BERT).",
    "sop": "이어진 단어를 가리고 예측하며, 두 텍스트의 순서가 바뀌었는지 판단합니다(ALBERT).",
    "plm": "무작위 순서로, 그 순서에서 앞선 토큰만 보고 토큰을 예측합니다(XLNet).",
    "denoising": "손상된 텍스트에서 전체 텍스트를 복원합니다(BART).",
    "span-corruption": "지운 구간의 내용을 예측합니다(T5).",
    "switch": "구간 손상에 전문가의 부하를 고르게 하는 손실을 더합니다(Switch).",
    "prefix-spans": "텍스트의 앞부분을 보고 나머지를 예측합니다(T5).",
    "deshuffle": "토큰의 순서를 섞은 텍스트에서 원래 텍스트를 복원합니다(T5).",
    "ernie-units": "토큰, 구, 개체 단위로 가리고 예측합니다(ERNIE).",
    "unit-pairs": "단위로 가린 내용을 예측하고, 두 텍스트가 이어지는지 판단합니다(ERNIE).",
    "continual": "단위로 가린 내용을 예측하고, 여섯 가지 과제를 차례로 더해 함께 학습합니다(ERNIE 2.0).",
    "dialogue": "단위로 가린 내용을 예측하고, 실제 대화인지 판단합니다(ERNIE).",
}
