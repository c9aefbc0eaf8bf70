"""The default recipe fits a model of any size, and the training loop is what anybody would write by hand."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.nn.functional as F

import formers
from formers.config import build_config as build_config
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.data.preparation.document_encoder import ENTITY_BIT, PHRASE_BIT
from formers.former import build_empty
from formers.nn.block import Block
from formers.objectives.masking import UnitMaskedLM
from formers.objectives.registry import build_objective
from formers.registry import FAMILIES
from formers.training.config_merge import configure_pretraining
from formers.training.recipes import get_recipe
from formers.training.runs.pretrain import get_tokenizer_config
from tests.training.toy_runs import DATA_SETTINGS, TEXT

LEARNED = [name for name, member in FAMILIES.items() if member.definition.objective]


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize(("layers", "dim"), [(2, 128), (6, 192), (24, 768)])
def test_every_family_has_a_recipe_for_any_depth_and_width(name, layers, dim):
    asked = configure_pretraining(name, None, {"model.layers": layers, "model.dim": dim})
    family = FAMILIES[name].definition
    made = build_config(
        family.config_class, {**asked.model, "vocab": 50} if hasattr(family.config_class, "vocab") else asked.model
    )
    model = build_empty(name, made, family.pretraining_head).model
    blocks = [part for part in model.modules() if isinstance(part, Block)]
    post = any(block.norm_order == "post" for block in blocks)
    assert post == (family.norm_order == "post" and bool(blocks)), "what the family's file declares"
    assert asked.train.residual_init == (pytest.approx((2 * layers) ** -0.5, abs=1e-4) if post and layers > 3 else 1.0)
    small = configure_pretraining(name, None, {}).train
    assert 0 < asked.train.lr <= small.lr
    assert asked.train.lr < small.lr or (layers, dim) == (2, 128)
    assert asked.train.warmup_steps <= asked.train.steps // 5 or asked.train.warmup_steps == small.warmup_steps


def test_widths_follow_the_one_that_is_given():
    model = configure_pretraining("bert", None, {"model.dim": 768}).model
    assert (model["ff"], model["heads"]) == (3072, 12)
    assert configure_pretraining("bert", None, {"model.dim": 90}).model["heads"] == 3  # four do not divide it
    assert configure_pretraining("t5", None, {"model.dim": 256, "model.heads": 8}).model["head_dim"] == 32
    assert configure_pretraining("gptj", None, {"model.dim": 512}).model["rotary"] == 32
    assert configure_pretraining("bert", None, {"model.dim": 768, "model.ff": 100}).model["ff"] == 100


def test_a_preset_keeps_its_sizes_and_gets_a_rate_of_its_size():
    asked = configure_pretraining("bert", None, {}, preset="bert-base")
    assert not {"layers", "dim"} & set(asked.model)
    assert asked.train.lr < get_recipe("bert").train["lr"] / 5
    paper = configure_pretraining("bert", None, {}, recipe="paper")
    assert paper.train.lr == 1e-4
    assert paper.train.residual_init == 1.0


def test_wrong_sizes_are_named_by_the_configuration():
    for key, value in (("dim", "wide"), ("layers", -2), ("heads", 0), ("dim", True), ("layers", 2.5)):
        with pytest.raises(formers.Error, match=key):
            configure_pretraining("bert", None, {f"model.{key}": value})


def test_weak_branches_touch_only_the_last_matrices_of_post_norm_blocks(tmp_path):
    sizes = {"dim": 16, "layers": 1, "heads": 2, "ff": 32, "context": 24}
    train = {
        "steps": 1, "batch_tokens": 240, "seq_length": 24, "lr": 1e-12, "warmup_steps": 0, "samples": 0,
        "weight_decay": 0.0,
    }  # fmt: skip
    for family, post in (("bert", True), ("gpt2", False)):
        runs = [
            formers.pretrain(family, TEXT, out=tmp_path / f"{family}-{factor}", model=sizes, data=DATA_SETTINGS,
                             train={**train, "residual_init": factor}).former.model
            for factor in (1.0, 0.5)
        ]  # fmt: skip
        scaled = {
            name for (name, a), b in zip(runs[0].named_parameters(), runs[1].parameters(), strict=True)
            if not torch.allclose(a, b, atol=1e-7)
        }  # fmt: skip
        assert scaled == ({"body.blocks.0.attn.o.weight", "body.blocks.0.ff.down.weight"} if post else set())


def test_the_loop_is_a_plain_one(tmp_path):
    """AdamW, a linear schedule, clipping and cross-entropy in twenty lines give the same weights."""
    sizes = {"dim": 32, "layers": 2, "heads": 2, "ff": 64, "context": 24, "dropout": 0.0, "attention_dropout": 0.0}
    train = {
        "steps": 20, "batch_tokens": 240, "seq_length": 24, "lr": 3e-3, "schedule": "linear", "warmup_steps": 5,
        "weight_decay": 0.1, "grad_clip": 0.5, "betas": (0.9, 0.98), "samples": 0, "eval_every": 20,
    }  # fmt: skip
    run = formers.pretrain("bert", TEXT, out=tmp_path / "run", model=sizes, train=train, data=DATA_SETTINGS)
    tokenizer = run.former.tokenizer
    store = formers.Store.open(tmp_path / "run" / "data" / "store")
    goal = build_objective("nsp", tokenizer, 24)
    sizes |= {**get_tokenizer_config(tokenizer, goal), "init": run.former.config.init}
    model = formers.build("bert", head="pretraining", **sizes).model.train()
    matrices = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}], betas=(0.9, 0.98)
    )
    for step, (batch, _) in enumerate(itertools.islice(load_batches(TokenSource(store, goal), 240), 20)):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * ((step + 1) / 5 if step < 5 else (20 - step) / 15)
        batch = batch.to("cpu")
        hidden = model(batch)
        masked = model.logits(hidden[batch.chosen], part="mlm")
        pairs = model.logits(hidden, batch, part="nsp")
        (F.cross_entropy(masked, batch.labels) + F.cross_entropy(pairs, batch.document_labels)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
    for (name, mine), theirs in zip(run.former.model.named_parameters(), model.parameters(), strict=True):
        if name.endswith("qkv.bias"):  # a key's bias moves all scores of a query alike: its gradient is rounding alone
            mine, theirs = (torch.cat((b.chunk(3)[0], b.chunk(3)[2])) for b in (mine, theirs))
        assert torch.allclose(mine, theirs, atol=2e-5), name


def test_a_checkpoint_continues_at_a_rate_of_its_width(tmp_path):
    formers.save(formers.build("bert", vocab=50, dim=192, layers=1, heads=2, ff=32), tmp_path / "own")
    formers.export(formers.load(tmp_path / "own"), tmp_path / "hf")
    for init in ("own", "hf"):
        asked = configure_pretraining("bert", None, {}, init=str(tmp_path / init))
        assert asked.train.lr == pytest.approx(5e-5 * 768 / 192)
        assert configure_pretraining("bert", None, {"train.lr": 0.5}, init=str(tmp_path / init)).train.lr == 0.5


def test_validation_text_without_pairs_is_scored_by_hidden_tokens(tmp_path):
    """Of a few long documents one is held out: no text of another document is there to be a wrong next sentence."""
    said: list[str] = []
    sizes = {"dim": 16, "layers": 1, "heads": 2, "ff": 16, "context": 24}
    train = {"steps": 2, "batch_tokens": 240, "seq_length": 24, "warmup_steps": 1, "eval_every": 1, "samples": 1}
    run = formers.pretrain(
        "bert", TEXT[:-1], valid=TEXT[-1:], out=tmp_path / "run", model=sizes, train=train,
        data={"vocab_size": 300}, say=said.append,
    )  # fmt: skip
    assert [line for line in said if "evaluated by hidden tokens alone" in line]
    assert run.score is not None
    assert "nsp" not in run.score.metrics
    assert run.score.loss > 0


LONG_TEXT = [" ".join(TEXT[i : i + 20]) for i in range(0, 60, 20)]


@pytest.mark.parametrize(("text", "length", "is_odd"), [(TEXT, 9, True), (LONG_TEXT, 64, False)])
def test_a_run_says_when_too_many_pairs_are_random(text, length, is_odd, tmp_path):
    said: list[str] = []
    train = {"steps": 1, "batch_tokens": 240, "seq_length": length, "warmup_steps": 0, "samples": 0}
    sizes = {"dim": 16, "layers": 1, "heads": 2, "ff": 16, "context": 64}
    formers.pretrain(
        "bert", text, out=tmp_path / "run", model=sizes, train=train, data={"vocab_size": 300, "valid_fraction": 0},
        say=said.append,
    )  # fmt: skip
    assert any("of the pairs are random" in line for line in said) == is_odd, said


@pytest.mark.parametrize("language", ["en", "ko"])
def test_ernie_runs_its_three_stages_by_default(language, tmp_path, monkeypatch):
    seen: list[int] = []
    real = UnitMaskedLM.find_stages

    def find_stages(self, sample):
        found = real(self, sample)
        if self.stage_ends is not None:
            seen.extend(found.tolist())
        return found

    monkeypatch.setattr(UnitMaskedLM, "find_stages", find_stages)
    if language == "en":
        text = [f"{'The white house is old. ' * (n % 6 == 0)}They met Anna Karenina. {line} {line}"
                for n, line in enumerate(TEXT)]  # fmt: skip
    else:
        pytest.importorskip("kiwipiepy")
        text = [f"서울은 {n}번째 수도이다. 안나 카레니나는 국립 중앙 박물관에서 책을 샀다." for n in range(60)]
    sizes = {"dim": 16, "layers": 1, "heads": 2, "ff": 16, "context": 24}
    train = {"steps": 9, "batch_tokens": 240, "seq_length": 24, "warmup_steps": 1, "samples": 0, "eval_every": 9}
    said: list[str] = []
    run = formers.pretrain(
        "ernie", text, out=tmp_path / "run", model=sizes, train=train, data=DATA_SETTINGS, say=said.append
    )  # fmt: skip
    assert "stages: basic from step 1, phrase from step 4, entity from step 7" in said
    store = formers.Store.open(tmp_path / "run" / "data" / "store")
    assert store.unit_bits is not None
    tokens = [run.former.tokenizer.get_token_text(int(token)) for token in store.tokens]
    bits = dict(zip(tokens, store.unit_bits, strict=True))
    in_phrase, in_entity = {"en": ("white", "Karenina"), "ko": ("중앙", "카레니나는")}[language]
    assert (bits[in_phrase], bits[in_entity]) == (ENTITY_BIT, PHRASE_BIT), "both are found in plain text"
    assert run.score is not None
    assert {0, 1, 2} == set(seen)
    assert seen == sorted(seen), "one after the other"
