from __future__ import annotations

import pytest

import formers
from formers.experiments.decoding import (
    BeamNode,
    Settings,
    build_target,
    follow_beams,
    measure_smoothing,
    name_next,
    score_text,
    trace_beams,
)
from formers.registry import train_tokenizer


def test_temperature_and_top_k_do_what_they_say(run_experiment):
    page, found = run_experiment("decoding", tokens=3)
    assert found["sharp"] < found["flat"]
    assert found["kept"] == 5
    assert found["beam"] >= found["greedy"] - 1e-4
    assert [len(block.rows) for block in page.tables] == [3, 6, 5, 5]


def test_the_tree_has_the_scores_of_its_texts():
    former = formers.build("gpt2", vocab=40, dim=32, heads=2, layers=1, context=32)
    steps = trace_beams(former, [3, 4], Settings(tokens=4, beams=3))
    assert len(steps) == 4, "a column for every token"
    for row in range(3):
        at, ids = row, []
        for nodes in reversed(steps):
            ids.insert(0, nodes[at].token)
            at = nodes[at].parent
        assert steps[-1][row].score == pytest.approx(score_text(former, [3, 4], ids), abs=1e-4)


def test_bytes_of_a_syllable_are_named_by_the_whole_syllable():
    tokenizer = train_tokenizer("gpt2", ["가나다라 마바사 " * 20], 261)
    ids = tokenizer.encode("밖에", special=False)
    assert len(ids) == 6, "nothing of these syllables was learned"
    names = [name_next(tokenizer, ids[:at], ids[at]) for at in range(6)]
    assert names == ["…", "…", "밖", "…", "…", "에"]
    assert name_next(tokenizer, [], tokenizer.encode(" ", special=False)[0]) == "␣"
    assert name_next(tokenizer, [], tokenizer.encode("\n", special=False)[0]) == "\\n"
    english = train_tokenizer("gpt2", ["of the law " * 50], 280)
    assert name_next(english, [], english.encode(" law", special=False)[0]) == "␣law"


def test_a_long_text_is_cut_to_the_context(run_experiment):
    page, _ = run_experiment("decoding", text="The law of the land is the will of the people. " * 12, tokens=2)
    assert len(page.tables[0].rows) == 2


def test_beams_are_followed_to_their_texts():
    steps = [[BeamNode(5, 0, -1.0), BeamNode(6, 0, -2.0)], [BeamNode(7, 1, -2.5), BeamNode(8, 0, -3.0)]]
    assert follow_beams(steps, [1]) == [[[1], [1]], [[1, 6], [1, 5]]]


def test_label_smoothing_has_a_least_loss_before_certainty():
    target = build_target(100, 0, 0.1)
    assert float(target.sum()) == pytest.approx(1)
    least = float(-(target * target.log()).sum())
    curve = measure_smoothing(100, 0.1)
    share, loss = min(curve, key=lambda point: point[1])
    assert share == pytest.approx(0.9, abs=0.021)
    assert loss == pytest.approx(least, abs=0.01)
    assert curve[-1][1] > loss + 0.1, "certainty is punished"
    plain = measure_smoothing(100, 0.0)
    assert plain == sorted(plain, key=lambda point: -point[1])
