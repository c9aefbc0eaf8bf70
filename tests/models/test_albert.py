"""What ALBERT's layers share (table 4), and the width of its embeddings."""

from __future__ import annotations

import copy

import pytest
import torch

import formers
from formers.batch import Batch
from formers.nn.block import scale_residual_branches

MILLIONS = {  # table 4: E = 768 and E = 128
    "all-shared": (31, 12), "shared-attention": (83, 64), "shared-FFN": (57, 38), "not-shared": (108, 89),
}  # fmt: skip
SIZES = {"vocab": 40, "dim": 16, "embed": 8, "layers": 3, "heads": 2, "ff": 24, "context": 16}


@pytest.mark.parametrize("share", MILLIONS)
def test_sizes_are_those_of_table_4(share):
    for embed, millions in zip((768, 128), MILLIONS[share], strict=True):
        with torch.device("meta"):
            model = formers.build("albert", share=share, embed=embed).model
        size = sum(p.numel() for p in model.body.parameters()) / 1e6
        assert size == pytest.approx(millions, abs=2), "theirs has no projection where E is the model's width"


@pytest.mark.parametrize("share", MILLIONS)
def test_what_is_shared_is_one_and_is_saved_once(share, tmp_path):
    f = formers.build("albert", share=share, **SIZES)
    blocks = f.model.body.blocks
    if share != "all-shared":
        assert (blocks[0].attn is blocks[2].attn) == (share == "shared-attention")
        assert (blocks[0].attn_norm is blocks[2].attn_norm) == (share == "shared-attention")
        assert (blocks[0].ff is blocks[2].ff) == (share == "shared-FFN")
        assert (blocks[0].ff_norm is blocks[2].ff_norm) == (share == "shared-FFN")
    ids = torch.tensor([[5, 6, 7, 8]])
    want = f.model(Batch.from_padded(ids))
    formers.save(f, tmp_path / "saved")
    assert torch.equal(formers.load(tmp_path / "saved").model(Batch.from_padded(ids)), want)
    twin = copy.deepcopy(f.model)
    assert len(list(twin.parameters())) == len(list(f.model.parameters()))
    want.sum().backward()
    assert all(p.grad is not None for name, p in f.model.named_parameters() if "blocks" in name)
    before = {name: p.detach().clone() for name, p in f.model.named_parameters()}
    scale_residual_branches(f.model, 0.5)
    for name, p in f.model.named_parameters():
        factor = 0.5 if name.endswith(("attn.o.weight", "ff.down.weight")) else 1.0
        assert torch.equal(p, factor * before[name]), "scaled once, however often it is used"


def test_layers_that_share_nothing_are_as_many_groups(tmp_path):
    f = formers.build("albert", share="not-shared", **SIZES)
    ids = torch.tensor([[5, 6, 7, 8]])
    formers.export(f, tmp_path / "hf")
    again = formers.load(tmp_path / "hf")
    assert (again.config.groups, again.config.share) == (3, "all-shared")
    read = Batch.from_padded(ids)
    assert torch.allclose(again.model(read), f.model(read), atol=1e-6)
    with pytest.raises(formers.Error, match="share one part alone"):
        formers.export(formers.build("albert", share="shared-FFN", **SIZES), tmp_path / "other")
    with pytest.raises(formers.Error, match="goes with one group"):
        formers.build("albert", share="not-shared", groups=2, **SIZES)


def test_it_learns_with_each_kind_of_sharing(tmp_path):
    text = [" ".join(f"The {a} sees a {b}." for b in ("sea", "town", "bird")) for a in "abcdefghijklmnopqrst"]
    train = {"steps": 4, "batch_tokens": 240, "seq_length": 16, "warmup_steps": 1, "samples": 0, "eval_every": 4}
    for share in ("shared-attention", "shared-FFN"):
        sizes = {key: value for key, value in SIZES.items() if key != "vocab"} | {"share": share}
        formers.pretrain("albert", text, out=tmp_path / share, model=sizes, train=train, data={"vocab_size": 100})
        assert formers.load(tmp_path / share).config.share == share
