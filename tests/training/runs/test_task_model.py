"""The model of a task: word vectors of published files become its embeddings."""

from __future__ import annotations

import pytest
import torch

import formers
from formers import Error
from formers.interop.word_vectors import build_vectors_model, write_word_vectors
from formers.training.runs.task_model import initialise_embeddings, load_word_vectors

WORDS = ["the", "고양이", "cat"]
TABLE = torch.randn(3, 4, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("form", ["text", "glove", "binary", "fasttext"])
def test_vectors_of_a_published_file(form, tmp_path):
    more = {"kind": "fasttext", "buckets": 10, "min_n": 2, "max_n": 3} if form == "fasttext" else {}
    table = torch.cat((TABLE, torch.zeros(10, 4))) if more else TABLE
    written = build_vectors_model(WORDS, table, **more)
    write_word_vectors(written, tmp_path / "v.bin", form)
    vectors = load_word_vectors(str(tmp_path / "v.bin"), lambda *_: None)
    former = formers.build("textcnn", head="classify", vocab=len(written.tokenizer), embed=4)
    former.tokenizer = written.tokenizer
    notes = []
    initialise_embeddings(former, vectors, frozen=True, say=notes.append)
    weight = former.model.body.embed.token.weight
    torch.testing.assert_close(weight[:3].detach(), TABLE, atol=1e-6, rtol=1e-6)
    assert not weight.requires_grad
    assert notes[0].startswith("vectors: ")


def test_a_damaged_file_of_vectors(tmp_path):
    (tmp_path / "v.txt").write_text("the 1 2\ncat 1\n")
    with pytest.raises(Error, match=r"v\.txt, line 2: 1 numbers instead of 2"):
        load_word_vectors(str(tmp_path / "v.txt"), lambda *_: None)
