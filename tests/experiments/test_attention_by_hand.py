from __future__ import annotations

import re

import pytest
import torch

import formers
from formers.experiments.attention_by_hand import choose_row, compare_random_heads, compute_head
from formers.inspection.sides import Token
from formers.nn.attention.attention import Attention


def test_the_formula_gives_the_models_own_weights(run_experiment):
    page, found = run_experiment("attention-by-hand", layer=1, head=2)
    assert found["error"] < 1e-5
    assert found["entropy"] > found["unscaled_entropy"]
    assert found["plain_likeness"] > found["likeness"], "without the residual, tokens become alike"
    *parts, sums = page.tables[0].rows
    assert all(re.fullmatch(r"-?\d+\.\d{3}|", cell) for row in page.tables[0].rows for cell in row[1:])
    assert float(sums[4]) == pytest.approx(1, abs=2e-3), "weights"
    assert float(sums[6]) == pytest.approx(sum(float(row[6]) for row in parts), abs=0.01), "the output's first number"
    text = "".join(page.body)
    assert "-0.00<" not in text
    assert all(title in text for title in ("Queries q", "1. scores q·k", "2. scaled", "3. weights", "4. Output"))
    assert any("model's own weights" in row[0] for block in page.tables for row in block.rows)


def test_rows_of_weights_sum_to_one_and_hidden_keys_have_none():
    torch.manual_seed(0)
    attn, x = Attention(16, 2), torch.randn(5, 16)
    visible = torch.ones(5, 5).tril().bool()
    with torch.no_grad():
        hand = compute_head(attn, x, 1, visible)
    torch.testing.assert_close(hand.weights.sum(-1), torch.ones(5))
    assert not hand.weights[~visible].any()


def test_large_scores_do_not_overflow():
    """A bundled model had a cosine of nan."""
    torch.manual_seed(0)
    attn, x = Attention(16, 2), 100 * torch.randn(5, 16)
    with torch.no_grad():
        hand = compute_head(attn, x, 0, torch.ones(5, 5).tril().bool(), scaled=False)
    assert hand.scores.max() > 100
    torch.testing.assert_close(hand.weights.sum(-1), torch.ones(5))


def test_wide_heads_need_the_scaling():
    lines = compare_random_heads((4, 256))
    scaled, plain = ([y for _, y in lines[name]] for name in ("q·k / √d", "q·k"))
    assert abs(scaled[1] - scaled[0]) < 1
    assert plain[1] < 1 < scaled[1]


def test_attention_with_more_than_the_plain_formula_is_refused(run_experiment, tmp_path, monkeypatch):
    former = formers.build("bloom", vocab=64, dim=32, heads=2, layers=1)
    monkeypatch.setattr("formers.experiments.attention_by_hand.load_or_train", lambda *_: former)
    with pytest.raises(formers.Error, match="more than plain attention"):
        run_experiment("attention-by-hand")


def test_the_worked_row_is_that_of_a_whole_word():
    rare = [Token(1, "", "밖"), Token(2, "", "", is_joined=True), Token(3, "", "", is_joined=True)]
    assert choose_row([Token(0, "", " law"), *rare, Token(4, "", ".")]) == 0
    assert choose_row([*rare, Token(4, "", "법")]) == 3
    assert choose_row(rare) == 2, "there is none"
    names = [" of", " the", " m", "ast", "ers"]
    assert choose_row([Token(i, "", name) for i, name in enumerate(names)]) == 4, "a word in the first half says little"
    assert choose_row([Token(i, "", name) for i, name in enumerate([" we", " are", *names[:4]])]) == 3


def test_the_terminal_tells_what_was_cut(run_experiment):
    page, _ = run_experiment("attention-by-hand", text="The law of the land is the will of the people. " * 12)
    assert any("cut to" in note for note in page.notes)
    assert any("first 12 of" in note for note in page.notes)
