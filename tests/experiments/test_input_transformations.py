from __future__ import annotations

import pytest

import formers
from formers.experiments.input_transformations import build_reader, encode_task, list_sequences
from formers.experiments.page import Page

TEXTS, CHOICES = ["the cat sat", "the dog ran"], ["yes", "no", "perhaps"]


def test_every_task_becomes_sequences(run_experiment):
    _, found = run_experiment("input-transformations", text="the cat sat | the dog ran", choices="yes | no")
    assert found["gpt similar"] == 2
    assert found["bert similar"] == found["gpt entail"] == found["gpt classify"] == 1
    assert found["gpt choose"] == found["bert choose"] == 2


def test_gpt_reads_a_similarity_in_both_orders():
    former = build_reader(Page(), "gpt", [*TEXTS, *CHOICES])
    first, second = list_sequences(former, encode_task(former, "similar", TEXTS, CHOICES))
    name = former.tokenizer.get_token_text
    assert [name(first.ids[0]), name(first.ids[-1])] == ["<start>", "<classify>"]
    cut = first.ids.index(former.tokenizer.encode("<delimiter>", special=False)[0])
    assert second.ids == [first.ids[0], *first.ids[cut + 1 : -1], first.ids[cut], *first.ids[1:cut], first.ids[-1]]
    assert first.parts[0] == 0
    assert first.parts[cut] == 2
    assert first.parts[-2] == 3


def test_bert_has_segments_and_gpt_has_none():
    bert, gpt = (build_reader(Page(), family, [*TEXTS, *CHOICES]) for family in ("bert", "gpt"))
    (pair,) = list_sequences(bert, encode_task(bert, "entail", TEXTS, CHOICES))
    cut = pair.parts.index(3)  # the first token of the second text
    assert pair.segments == "A" * cut + "B" * (len(pair.ids) - cut)
    assert list_sequences(gpt, encode_task(gpt, "entail", TEXTS, CHOICES))[0].segments == ""


@pytest.mark.parametrize("text", ["only one", "one | two | a third, which was ignored"])
def test_a_row_that_is_no_pair_is_refused(text, run_experiment):
    with pytest.raises(formers.Error, match="two texts"):
        run_experiment("input-transformations", text=text)
