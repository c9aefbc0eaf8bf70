"""Two-way tables of names."""

from __future__ import annotations

import pytest
import torch

from formers import Error
from formers.keymap import KeyMap, compile_pattern, deinterleave_heads, transpose_tensor

MAP = KeyMap(
    {
        "emb.weight": "embed.weight",
        "h.{i}.norm.*": "blocks.{i}.norm.*",
        "h.{i}.(q|k|v).weight": "blocks.{i}.qkv.weight",
        "h.{i}.fc.weight": transpose_tensor("blocks.{i}.up.weight"),
    },
    heads={"lm": {"out.weight": "out.weight"}, "tag": {"@cls.*": "dense.*", "classifier.*": "out.*"}},
    prefix="base.",
    prefixes=("base.", "model."),
    tied={"out.weight": "emb.weight"},
    drop=("h.{i}.mask", "junk.**"),
    aliases={"norm.gamma": "norm.weight", "norm.beta": "norm.bias"},
    alternate_names={"h.0.old": "h.0.fc.weight"},
)
OURS = ["body.embed.weight", "body.blocks.0.norm.weight", "body.blocks.0.qkv.weight", "body.blocks.0.up.weight"]
FILE = {
    "base.emb.weight": torch.randn(3, 2), "model.h.0.norm.gamma": torch.randn(2), "h.0.q.weight": torch.randn(2, 2),
    "h.0.k.weight": torch.randn(2, 2), "base.h.0.v.weight": torch.randn(2, 2), "base.h.0.fc.weight": torch.randn(2, 5),
}  # fmt: skip


def test_reading():
    plan = MAP.plan_load([*FILE, "h.0.mask", "junk.deep.inside", "classifier.bias", "base.h.0.old"], OURS)
    assert not plan.missing_parameters
    assert not plan.tied_pairs
    loaded = {move.ours: move.load(FILE.__getitem__) for move in plan.mappings}
    assert list(loaded) == OURS
    expected = torch.cat([FILE["h.0.q.weight"], FILE["h.0.k.weight"], FILE["base.h.0.v.weight"]])
    assert torch.equal(loaded["body.blocks.0.qkv.weight"], expected)
    assert torch.equal(loaded["body.blocks.0.up.weight"], FILE["base.h.0.fc.weight"].T)


def test_writing_is_the_inverse():
    ours = {
        "body.blocks.12.qkv.weight": torch.randn(6, 2),
        "heads.tag.dense.bias": torch.randn(2),
        "heads.lm.out.weight": torch.randn(3, 2),
    }
    written = {}
    for move in MAP.map_tensors(ours):
        written |= move.save(ours[move.ours])
    assert set(written) == {
        "base.h.12.q.weight",
        "base.h.12.k.weight",
        "base.h.12.v.weight",
        "base.cls.bias",
        "out.weight",
    }
    for move in MAP.map_tensors(ours):
        assert torch.equal(move.load(written.__getitem__), ours[move.ours])


def test_tied_copies_are_checked_or_serve():
    plan = MAP.plan_load([*FILE, "out.weight"], OURS)
    assert plan.tied_pairs == [("out.weight", "base.emb.weight")]
    only = [name for name in FILE if name != "base.emb.weight"] + ["out.weight"]
    plan = MAP.plan_load(only, OURS)
    assert not plan.tied_pairs
    assert plan.mappings[0].theirs == ("out.weight",)


def test_second_names():
    only = [name for name in FILE if "fc" not in name] + ["h.0.old"]
    assert MAP.plan_load(only, OURS).mappings[-1].theirs == ("h.0.old",)


def test_strictness():
    with pytest.raises(Error, match="unknown tensor 'h.1.norm.weight'"):
        MAP.plan_load([*FILE, "h.1.norm.weight"], OURS)
    with pytest.raises(Error, match="unknown tensor 'mystery'"):
        MAP.plan_load([*FILE, "mystery"], OURS)
    with pytest.raises(Error, match="tensor 'h.0.k.weight' is missing"):
        MAP.plan_load([name for name in FILE if ".k." not in name], OURS)
    with pytest.raises(Error, match="the same thing twice"):
        MAP.plan_load([*FILE, "emb.weight"], OURS)
    with pytest.raises(Error, match="no rule for our tensor 'body.other'"):
        MAP.map_tensors(["body.other"])
    plan = MAP.plan_load(FILE, [*OURS, "heads.tag.out.weight"], optional=lambda name: name.startswith("heads."))
    assert plan.missing_parameters == ["heads.tag.out.weight"]


@pytest.mark.parametrize(("heads", "width"), [(1, 4), (3, 2), (4, 5)])
def test_interleaved(heads, width):
    """BLOOM and GPT-NeoX: by head, then q, k, v."""
    op = deinterleave_heads("x", heads)
    q, k, v = (torch.randn(heads, width, 7) for _ in range(3))
    theirs = torch.stack((q, k, v), 1).flatten(0, 2)
    ours = torch.cat([part.flatten(0, 1) for part in (q, k, v)])
    assert torch.equal(op.load(theirs), ours)
    assert torch.equal(op.save(ours), theirs)
    bias = torch.randn(3 * heads * width)
    assert torch.equal(op.save(op.load(bias)), bias)


def test_templates():
    assert compile_pattern("h.{i}.*").fullmatch("h.10.bias").groupdict() == {"i": "10", "p": "bias"}
    assert not compile_pattern("h.{i}.*").fullmatch("h.x.bias")
    assert not compile_pattern("a.b").fullmatch("aXb")
    assert compile_pattern("a.(q|k).w").fullmatch("a.k.w")
    assert compile_pattern("a.**").fullmatch("a.b.c")
