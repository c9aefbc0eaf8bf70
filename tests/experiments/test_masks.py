from __future__ import annotations

import torch

from formers.experiments.masks import Settings, draw_order, list_masks


def test_masks_are_those_of_the_models(run_experiment):
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    page, found = run_experiment("masks", text=" ".join(words))
    assert found == {"masks": 8, "wrong": 0}
    assert page.tables[0].rows[0][1] == "49"
    turns = page.notes[0].rstrip(".").split(": ")[1].split(", ")
    assert sorted(turns) == sorted(words)
    order = draw_order(7, 0)
    assert turns[0] == words[int(order.argmin())], "the first predicted"


def test_a_text_that_is_cut_is_said(run_experiment):
    page, _ = run_experiment("masks", "ko", text="하나 둘 셋 넷 " * 5)
    assert page.notes[0] == "단어 20개 가운데 앞의 16개로 만든 마스크입니다."


def test_matrices_have_the_shapes_of_the_papers():
    masks = {name: matrix for name, (matrix, _) in list_masks(7, Settings(window=2, prefix=3)).items()}
    lower = torch.ones(7, 7).tril().bool()
    assert torch.equal(masks["causal"], lower)
    assert masks["two-sided"].all()
    assert torch.equal(masks["band"], lower & torch.ones(7, 7).triu(-1).bool())
    assert masks["prefix"][0].tolist() == [True] * 3 + [False] * 4
    assert not masks["padding"][:, 4:].any()
    content, query = masks["permutation, content"], masks["permutation, query"]
    assert torch.equal(content, query | torch.eye(7).bool())
    assert not query.diagonal().any()
