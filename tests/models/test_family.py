"""What holds for every member: a new one is tested by being registered."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import formers
from formers.batch import Batch
from formers.family import ModelConfig
from formers.generation.decoding import Options, continue_ids
from formers.inputs import ModelInputs
from formers.nn.head_pruning import find_attentions
from formers.registry import FAMILIES
from tests.small_models import (
    HEADS,
    add_declared_fields,
    build_small,
    list_heads,
    make_inputs,
    sum_outputs,
    to_model_ids,
)
from tests.tolerance import assert_equal_weights, assert_near

every_head = pytest.mark.parametrize(("name", "head"), HEADS, ids=[f"{n}-{h}" for n, h in HEADS])
every_member = pytest.mark.parametrize("name", FAMILIES)


@every_member
def test_a_config_answers_what_other_rooms_read(name):
    config = FAMILIES[name].definition.config_class()
    assert isinstance(config, ModelConfig)
    fields = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    for read, default in (("context", None), ("target_vocab", None), ("tied", False), ("pruned", ()), ("vocab", None)):
        assert getattr(config, read) == fields.get(read, default)
    assert config.output_vocab == fields.get("target_vocab") or config.output_vocab == fields["vocab"]
    layers = fields.get("decoder_layers", 0)
    assert config.num_decoder_layers == (config.layers if layers is None else layers)


def select_next(f, logits):
    """What is said of the next token; a bidirectional language model also says something of the one before."""
    return logits[..., 0, :] if f.definition.reads_characters else logits


def compute_outputs(f, given):
    return compute_masked_outputs(f, given, None)


def compute_masked_outputs(f, given, heads):
    if f.head == "none":
        return [f.hidden(**given, heads=heads)]
    out = f.logits(**given, heads=heads)
    return list(out.values()) if isinstance(out, dict) else [out]


def assert_same_model(got, want, given):
    """Bit-equal weights, and answers that differ by rounding alone: memory that is mapped is aligned otherwise."""
    assert_equal_weights(got, want)
    for a, b in zip(compute_outputs(got, given), compute_outputs(want, given), strict=True):
        assert_near(a, b, want.model)


@every_head
def test_packed_equals_padded_equals_one_by_one(name, head):
    f = build_small(name, head)
    given = make_inputs(f)
    together = compute_outputs(f, given)
    for row in range(3):
        single = {}
        for key, value in given.items():
            keep = given["target_keep" if key.startswith("target") else "keep"][row]
            single[key] = value[row][keep][None]
        for whole, one in zip(together, compute_outputs(f, single), strict=True):
            part = whole[row]
            if part.dim() == one[0].dim() and part.shape != one[0].shape:
                assert not part[one.shape[1] :].any()
                part = part[: one.shape[1]]
            torch.testing.assert_close(part, one[0], atol=1e-5, rtol=1e-5)


@every_head
def test_a_gradient_reaches_every_parameter(name, head):
    f = build_small(name, head)
    given = make_inputs(f)
    out = sum((o * torch.randn_like(o)).sum() for o in compute_outputs(f, given) if o.is_floating_point())
    batch, _ = f.pack_inputs(ModelInputs(**given))
    if f.head == "none" and f.model.heads:  # the pooler of a bare BERT
        out = out + f.model.logits(f.model(batch), batch).sum()
    if hasattr(f.model.body, "blank"):
        hidden = f.model(add_declared_fields(f, batch))
        out = out + (hidden * torch.randn_like(hidden)).sum()
    out.backward()
    for parameter_name, parameter in f.model.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, parameter_name
        assert parameter.grad is None or parameter.grad.any(), parameter_name


@pytest.mark.filterwarnings("ignore:transformers 5 has no Transformer-XL")
@every_head
def test_save_load_export_import(name, head, tmp_path):
    f = build_small(name, head)
    formers.save(f, tmp_path / "own")
    again = formers.load(tmp_path / "own")
    given = make_inputs(f)
    assert_same_model(again, f, given)
    family = FAMILIES[name].definition
    if head == "multitask":  # of ERNIE 2.0's pretraining, which transformers has no class for
        with pytest.raises(formers.Error, match="no class for ernie with the head 'multitask'"):
            formers.export(f, tmp_path / "hf")
        return
    if family.hf_format is not None or (family.bilm_format is not None and head in ("none", "lm")):
        formers.export(f, tmp_path / "hf")
        back = formers.load(tmp_path / "hf")
        assert back.family == name
        assert back.head == head
        if family.hf_format is not None:
            assert_same_model(back, f, given)
        for a, b in zip(
            compute_outputs(back, given), compute_outputs(f, given), strict=True
        ):  # bilm leaves a row out that is not read
            assert_near(a, b, f.model)


@every_member
def test_determined_by_the_seed(name):
    first, second = build_small(name, seed=3), build_small(name, seed=3)
    given = make_inputs(first)
    assert all(
        torch.equal(a, b) for a, b in zip(compute_outputs(first, given), compute_outputs(second, given), strict=True)
    )
    assert not torch.equal(compute_outputs(first, given)[0], compute_outputs(build_small(name, seed=4), given)[0])


@every_member
def test_bf16_is_finite_and_near(name):
    f = build_small(name)
    given = make_inputs(f)
    exact = compute_outputs(f, given)
    f.to(dtype=torch.bfloat16)
    for got, want in zip(compute_outputs(f, given), exact, strict=True):
        assert got.isfinite().all()
        assert (got.float() - want).norm() / want.norm() < 0.05


# One member of each kind of attention, positions and blocks: for the others, documents of one length are compiled with
# --full. Documents of different lengths, which training batches have, are compiled for all but variants of another.
UNIFORM_MEMBERS = ("bert", "bloom", "elmo", "gpt2", "gptj", "switch", "transformer", "transformer_xl", "xlnet")


@every_member
@pytest.mark.parametrize("shape", ["ragged", "uniform"])
def test_compiles_without_a_break(name, shape, full):
    if not full and (FAMILIES[name].is_variant or (shape == "uniform" and name not in UNIFORM_MEMBERS)):
        pytest.skip("compiled with --full")
    torch._dynamo.reset()
    f = build_small(name)
    given = make_inputs(
        f, (4, 2, 3) if shape == "ragged" else (3, 3, 3)
    )  # steps of recurrent ones are compiled one by one
    batch = add_declared_fields(f, f.pack_inputs(ModelInputs(**given))[0])
    compiled = torch.compile(sum_outputs, fullgraph=True, backend="aot_eager")
    expected = sum_outputs(f.model, batch)
    expected.backward()
    trained = [p for p in f.model.parameters() if p.requires_grad]
    gradients = [p.grad.clone() for p in trained]
    f.model.zero_grad()
    got = compiled(f.model, batch)
    got.backward()
    assert_near(got, expected, f.model)
    largest = max(float(gradient.abs().max()) for gradient in gradients)  # those of keys' biases are a sum that is 0
    for p, gradient in zip(trained, gradients, strict=True):
        assert_near(p.grad, gradient, f.model, largest)


def list_decoders():
    return [name for name in FAMILIES if "lm" in list_heads(name)]


@pytest.mark.parametrize("name", list_decoders())
def test_no_gradient_from_the_future(name):
    more = {"causal": True} if hasattr(FAMILIES[name].definition.config_class(), "causal") else {}
    f = build_small(name, "lm", **more)
    embed = getattr(f.model.body, "target", None) or f.model.body.embed
    table = getattr(embed, "token", embed)
    ids = to_model_ids(f, torch.arange(10, 18)[None])
    given = {"ids": torch.tensor([[2, 3, 1]]), "target": ids} if f.is_encoder_decoder else {"ids": ids}
    for t in range(8):
        seen = []

        def keep(module, args, out, seen=seen):
            seen.append(out)
            out.retain_grad()

        hook = table.register_forward_hook(keep)
        f.model.zero_grad()
        select_next(f, f.logits(**given))[0, t].sum().backward()
        hook.remove()
        reached = seen[-1].grad.abs().sum(-1) > 0
        assert reached[: t + 1].all()
        assert not reached[t + 1 :].any()


@pytest.mark.parametrize("name", list_decoders())
def test_with_a_cache_as_without(name):
    more = {"causal": True} if hasattr(FAMILIES[name].definition.config_class(), "causal") else {}
    f = build_small(name, "lm", **more)
    ids = make_inputs(f, (6, 6))["ids"]
    source = {"ids": torch.tensor([[2, 3, 1], [4, 5, 1]])}
    with torch.no_grad():
        whole = f.logits(**source, target=ids) if f.is_encoder_decoder else select_next(f, f.logits(ids))
        cache, parts = f.create_state(2, 6), []
        for piece in ids.split([1, 3, 2], 1):
            given = {**source, "target": piece} if f.is_encoder_decoder else {"ids": piece}
            part = f.logits(**given, memory=cache)
            parts.append(part if f.is_encoder_decoder else select_next(f, part))
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=1e-5, rtol=1e-5)


def build_left_to_right(name, **more):
    return build_small(
        name, "lm", **({"causal": True} if hasattr(FAMILIES[name].definition.config_class(), "causal") else {}), **more
    )


@pytest.mark.parametrize("name", list_decoders())
def test_a_state_belongs_to_one_kind_of_model(name):
    f = build_left_to_right(name)
    ids = to_model_ids(f, torch.tensor([[5, 6, 7], [8, 9, 10]]))
    given = {"ids": ids, "target": ids} if f.is_encoder_decoder else {"ids": ids}
    state = f.create_state(2, 9)
    with torch.no_grad():
        f.logits(**given, memory=state)
        changes = [{key: value} for key, value in (("heads", 1), ("layers", 3)) if key in f.config.to_settings()]
        others = [build_left_to_right(name, **change) for change in changes]
        others += [
            o
            for o in map(build_left_to_right, list_decoders())
            if o.state_class is f.state_class and o.is_encoder_decoder == f.is_encoder_decoder
        ]
        for other in (o for o in others if o.config != f.config):
            with pytest.raises(formers.Error, match=f"this {f.state_class.__name__} is of a model with"):
                other.logits(**given, memory=state)
        f.logits(**given, memory=state)
        if name in WITH_HEADS:
            f.prune({"decoder": {0: [1]}} if f.is_encoder_decoder else {0: [1]})
            with pytest.raises(formers.Error, match="is of a model with pruned"):
                f.logits(**given, memory=state)
    for rows, size in ((-1, 5), (2, "a"), (None, 3), (2, -1), (1.0, 2)):
        with pytest.raises(formers.Error, match="is not possible"):
            f.create_state(rows, size)


@pytest.mark.parametrize("name", [n for n in list_decoders() if FAMILIES[n].definition.config_class().context])
def test_a_full_context_is_each_rows_own_matter(name):
    f = build_left_to_right(name, eos=None)
    with torch.no_grad():
        for p in f.model.parameters():  # so that the next token depends on all that is seen
            p.mul_(3)
    g = torch.Generator().manual_seed(1)
    prompts = [torch.randint(2, 47, (n,), generator=g).tolist() for n in (18, 14, 11)]
    tokens = 24 if f.is_encoder_decoder else 6
    together = continue_ids(f, prompts, tokens, Options(temperature=0))
    assert together == [continue_ids(f, [p], tokens, Options(temperature=0))[0] for p in prompts]


def some_heads(f):
    """Heads to take out, in every stack of attention, other ones in each layer."""
    stacks = {}
    for kind, layer in find_attentions(f.model.body):
        stacks.setdefault(kind, {})[layer] = [layer % 3, 2] if kind != "cross" else [1]
    return stacks


def masks_of(f, gone):
    masks = {}
    for kind, layers in gone.items():
        masks[kind] = torch.ones(len(layers), 3)
        for layer, heads in layers.items():
            masks[kind][layer, heads] = 0
    return masks if hasattr(f.model.body, "encoder") else next(iter(masks.values()))


WITH_HEADS = [name for name in FAMILIES if find_attentions(build_small(name).model.body)]


@pytest.mark.filterwarnings("ignore:transformers 5 has no Transformer-XL")
@pytest.mark.filterwarnings("ignore:layers .* share one block")
@pytest.mark.parametrize("name", WITH_HEADS)
def test_pruned_as_masked(name, tmp_path):
    f, whole = build_small(name), build_small(name)
    given, gone = make_inputs(f), some_heads(f)
    if name == "albert":  # one block for all layers: the same heads are gone everywhere
        gone = {"encoder": {0: [0, 2], 1: [0, 2]}}
    before = sum(p.numel() for p in f.model.parameters())
    assert f.prune(gone if f.is_encoder_decoder else next(iter(gone.values()))) is f
    assert sum(p.numel() for p in f.model.parameters()) < before
    with torch.no_grad():
        masked = compute_masked_outputs(whole, given, masks_of(whole, gone))
        for got, want in zip(compute_outputs(f, given), masked, strict=True):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    formers.save(f, tmp_path / "own")
    again = formers.load(tmp_path / "own")
    assert again.config == f.config
    assert len(again.config.pruned) == sum(len(set(h)) for layers in gone.values() for h in layers.values())
    assert_same_model(again, f, given)
    if FAMILIES[name].definition.hf_format is not None:
        formers.export(f, tmp_path / "hf")
        back = formers.load(tmp_path / "hf")
        assert sum(p.numel() for p in back.model.parameters()) == before
        for got, want in zip(compute_outputs(back, given), compute_outputs(f, given), strict=True):
            torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    with pytest.raises(formers.Error, match="no head 3"):
        f.prune({"decoder": {0: [3]}} if f.is_encoder_decoder else {0: [3]})
    with pytest.raises(formers.Error, match="there is no layer 7"):
        f.prune({"decoder": {7: [0]}} if f.is_encoder_decoder else {7: [0]})
    sizes = [p.shape for p in f.model.parameters()]
    too_many = (
        {"encoder": {0: [0, 1]}, "decoder": {1: [0, 1, 2]}} if f.is_encoder_decoder else {0: [0, 1], 1: [0, 1, 2]}
    )
    with pytest.raises(formers.Error, match="would be left"):
        f.prune(too_many)
    assert (f.config, [p.shape for p in f.model.parameters()]) == (again.config, sizes), "half pruned"
    for odd in ({0: 1}, {0: None}, [0], None, {"decoder": {0: [0]}, 1: [2]}, {"decoder": {0: 1}}):
        with pytest.raises(formers.Error, match="does not say which heads|say which stack"):
            f.prune(odd)
    if f.is_encoder_decoder:
        with pytest.raises(formers.Error, match="which stack"):
            f.prune({0: [1]})


@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in WITH_HEADS])
def test_without_heads_there_is_nothing_to_prune(name):
    with pytest.raises(formers.Error, match="no attention heads"):
        build_small(name).prune({0: [0]})


@pytest.mark.parametrize("name", [n for n, m in FAMILIES.items() if hasattr(m.definition.config_class, "dropout")])
def test_train_mode_draws_dropout(name):
    f = build_small(name, dropout=0.4)
    given = make_inputs(f)
    f.model.train()
    assert not torch.equal(compute_outputs(f, given)[0], compute_outputs(f, given)[0])
    f.model.eval()
    assert torch.equal(compute_outputs(f, given)[0], compute_outputs(f, given)[0])


@every_member
def test_dummy_documents_change_nothing(name):
    """Training batches are filled up with documents of their own, and starts with empty ones."""
    f = build_small(name)
    ids = to_model_ids(f, torch.randint(2, 47, (9,)))
    plain = Batch(ids, torch.tensor([0, 4, 9], dtype=torch.int32), 5)
    filled = Batch(
        torch.cat((ids, torch.zeros_like(ids[:3]))), torch.tensor([0, 4, 9, 12, 12, 12], dtype=torch.int32), 5
    )
    if f.is_encoder_decoder:
        source = filled.replace(starts=torch.tensor([0, 6, 9, 9, 11, 12], dtype=torch.int32), longest=6)
        first = Batch(ids, torch.tensor([0, 6, 9], dtype=torch.int32), 6)
        plain, filled = plain.replace(source=first), filled.replace(source=source)
    torch.testing.assert_close(f.model(filled)[:9], f.model(plain), atol=1e-6, rtol=1e-5)


@every_member
def test_presets_build(name):
    for preset in FAMILIES[name].definition.presets:
        with torch.device("meta"):
            assert formers.build(name, preset=preset).family == name


@every_member
def test_declared_abilities_match_the_settings(name):
    """What a family declares to read agrees with its config's settings and with its body."""
    f = build_small(name)
    fields = {field.name for field in dataclasses.fields(f.config)}
    named = {"causal": "can_be_causal", "slots": "reads_characters", "use_tasks": "reads_tasks"}
    assert {key: getattr(f.definition, ability) for key, ability in named.items()} == {k: k in fields for k in named}
    assert f.definition.is_encoder_decoder == f.is_encoder_decoder
    assert f.definition.is_two_stream == hasattr(f.model.body, "blank")
