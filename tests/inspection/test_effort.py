"""What takes long is left out and named; what is longer than a model reads is shown in windows."""

from __future__ import annotations

import pytest
import torch

from formers import Error
from formers.inspection import attribution, effort
from formers.inspection.sides import encode_inputs
from tests.small_models import get_verb_model as model

TEXT = "the cat sat on the mat"
LONG = "the cat sat on the mat and the dog ran . " * 40


@pytest.fixture
def small_limits(monkeypatch):
    """Limits that every model is over."""
    monkeypatch.setattr(effort, "MAX_DEFAULT_FLOPS", {False: 10.0, True: 10.0})
    monkeypatch.setattr(effort, "MAX_ASKED_FLOPS", {False: 10.0, True: 10.0})


def list_names(view, reason: str) -> list[str]:
    return [one.name for one in view.left_out if one.reason == reason]


@pytest.mark.parametrize(("name", "head"), [("bert", "mlm"), ("gpt2", "lm"), ("t5", "lm"), ("xlnet", "lm")])
def test_what_takes_long_is_left_out_by_default(name, head, small_limits):
    f = model(name, head)
    view = f.inspect(TEXT)
    assert view.prediction.layers == []
    assert "layers" in list_names(view, "size")
    assert ("masked" in list_names(view, "size")) == (name == "bert")
    assert list_names(view, "default") == ["attribution", "heads", "neuron"]
    assert view.attribution is None
    assert view.to_dict()["left_out"][0] == {"name": "layers", "option": "--views default,layers", "reason": "size"}
    whole = f.inspect(TEXT, views="default,layers", masked=True if name == "bert" else None)
    assert whole.prediction.layers
    assert not list_names(whole, "size")
    assert torch.equal(
        whole.attention[next(iter(whole.attention))].weights, view.attention[next(iter(view.attention))].weights
    )


def test_nothing_is_left_out_of_a_small_text():
    view = model("bert", "mlm").inspect(TEXT)
    assert view.prediction.method == "masked"
    assert view.prediction.layers
    assert list_names(view, "size") == []


def test_views_that_are_named_are_the_callers_choice():
    f = model("bert", "mlm")
    assert f.inspect(TEXT, views="attention,prediction").left_out == []
    assert f.inspect(TEXT, views="prediction").prediction.layers == []
    assert "left_out" not in f.inspect(TEXT, views="all").to_dict()
    assert model("vectors", "none").inspect(TEXT).left_out == []


def test_slow_methods_of_attribution_are_named(small_limits):
    f = model("bert", "mlm")
    view = f.inspect(TEXT, views="attribution")
    assert list(view.attribution.methods) == ["input_x_gradient"]
    assert list_names(view, "size") == ["integrated_gradients", "occlusion", "value_zeroing"]
    assert view.left_out[-1].option == "--methods value_zeroing"
    chosen = f.inspect(TEXT, views="attribution", methods="occlusion")
    assert list(chosen.attribution.methods) == ["occlusion"]
    assert chosen.left_out == []
    with pytest.raises(Error, match="no attribution 'guess'"):
        f.inspect(TEXT, views="attribution", methods="guess")


def test_head_costs_of_a_long_text_hide_every_seventh_token(monkeypatch, small_limits):
    f = model("bert", "mlm")
    few = f.inspect(TEXT, views="heads").heads
    monkeypatch.undo()
    assert few.baseline != f.inspect(TEXT, views="heads").heads.baseline
    assert few.costs["encoder"].isfinite().all()


def test_progress_is_told():
    reported: dict[str, list[tuple[int, int]]] = {}
    f = model("bert", "mlm")
    f.inspect(TEXT, views="all", tell=lambda what, done, of, detail: reported.setdefault(what, []).append((done, of)))
    expected = {name.replace("_", " ") for name in attribution.METHODS}
    assert {"text", "hidden tokens", "predictions by layer", "random order", "heads", *expected} == set(reported)
    for what, steps in reported.items():
        assert steps[-1][0] == steps[-1][1], what
        assert [done for done, _ in steps] == sorted(done for done, _ in steps), what


@pytest.mark.parametrize(("name", "head"), [("bert", "mlm"), ("gpt2", "lm"), ("bart", "lm"), ("roberta", "classify")])
def test_windows_of_a_long_text(name, head):
    f = model(name, head)
    with pytest.warns(UserWarning, match=r"tokens 0 to \d+ of [\d,]+ are shown; choose another window"):
        view = f.inspect(LONG, views="attention")
    side = view.sides["source" if name == "bart" else "text"]
    found = side.window
    assert (found.index, found.first) == (0, 0)
    assert len(side.tokens) <= f.context
    assert side.to_dict()["window"]["tokens"] == found.tokens
    seen = []
    for index in range(found.count):
        one = encode_inputs(f, LONG, window=index).sides["source" if name == "bart" else "text"]
        plain = [token for token in one.tokens if not token.is_special]
        assert (one.window.index, one.window.last - one.window.first) == (index, len(plain))
        seen += [token.id for token in plain]
        for token in plain:
            assert token.text.strip() in one.text
    whole = f.tokenizer.encode(LONG, special=False)
    assert seen == whole, "the windows are the whole text"
    with pytest.raises(Error, match=f"no window {found.count}.*0 to {found.count - 1}"):
        f.inspect(LONG, window=found.count)
    with pytest.raises(Error, match="read at once"):
        f.inspect("the cat", window=1)
    with pytest.raises(Error, match="no window -1"):
        f.inspect(LONG, window=-1)


def test_a_long_pair_keeps_both_texts():
    f = model("bert", "mlm")
    with pytest.warns(UserWarning, match="are shown"):
        view = f.inspect(LONG, LONG, views="attention")
    side = view.sides["text"]
    assert len(side.tokens) == f.context
    assert abs(side.segments.count(0) - side.segments.count(1)) <= 3
    with pytest.warns(UserWarning, match="are shown"):
        short = f.inspect("the cat", LONG, views="attention").sides["text"]
    assert [token.text for token in short.tokens[1:3]] == ["the", "cat"]
    assert len(short.tokens) == f.context


def test_a_long_target_is_cut_loudly():
    f = model("bart", "lm")
    with pytest.warns(UserWarning, match="are shown"):
        view = f.inspect("the cat", LONG, views="attention")
    assert len(view.sides["target"].tokens) == f.context
    assert view.sides["target"].window.count > 1
    assert view.sides["source"].window is None


@pytest.mark.parametrize(("name", "head"), [("transformer_xl", "lm"), ("xlnet", "lm"), ("elmo", "lm")])
def test_models_without_a_context_read_all(name, head, recwarn):
    f = model(name, head)
    view = f.inspect(LONG, views="prediction,states")
    assert view.sides["text"].window is None
    assert len(view.sides["text"].tokens) > 300
    assert not recwarn.list


def test_attention_that_would_not_fit_is_windowed(monkeypatch):
    monkeypatch.setattr("formers.inspection.sides.MAX_ATTENTION_BYTES", 4 * 4 * 100 * 100)
    f = model("transformer_xl", "lm")
    with pytest.warns(UserWarning, match="are shown"):
        view = f.inspect(LONG, views="attention")
    assert len(view.sides["text"].tokens) <= 100
