"""Attention of every family: equal to the plain formula in float64, beside a pass whose result it does not change."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch

import formers
from formers import Error
from formers.batch import Batch
from formers.inputs import ModelInputs
from formers.inspection.attention import attention
from formers.inspection.recording import record_blocks, record_pass
from formers.inspection.sides import encode_inputs
from formers.models.transformer_xl import TransformerXL
from formers.nn.attention.context import Capture
from formers.nn.attention.dispatch import force_kernel
from formers.nn.block import TransformerBody
from formers.nn.recurrent.alignment import Alignment
from formers.registry import FAMILIES
from tests.nn.reference import alibi_slopes, compute_bucket
from tests.small_models import build_small
from tests.small_models import get_verb_model as model

TEXT = "the cat sat on the mat"
ATTENTIVE = [name for name in FAMILIES if name not in ("vectors", "seq2seq", "gnmt", "textcnn", "elmo")]


def get_pretrained_model(name):
    return model(name, FAMILIES[name].definition.pretraining_head)


def convert(f, dtype):
    """A copy of a model in another type."""
    return dataclasses.replace(f, model=copy.deepcopy(f.model)).to(dtype=dtype)


def sinusoid(distance, dim):
    angle = [distance / 10000 ** (2 * i / dim) for i in range(dim // 2)]
    values = [math.sin(a) for a in angle] + [math.cos(a) for a in angle]
    return torch.tensor(values, dtype=torch.float32).double()  # the model rounds its table to single precision


def rotate(x, position, rotary):
    """Turn the pairs of a head's first numbers by an angle that grows with the position."""
    out, size = x.clone(), rotary.rotary_dim
    for pair in range(size // 2):
        angle = position * 10000.0 ** (-2 * pair / size)
        a, b = (2 * pair, 2 * pair + 1) if rotary.is_interleaved else (pair, pair + size // 2)
        cos, sin = (float(torch.tensor(g, dtype=torch.float32)) for g in (math.cos(angle), math.sin(angle)))
        out[a], out[b] = x[a] * cos - x[b] * sin, x[b] * cos + x[a] * sin
    return out


def compute_plain_weights(f, kind, block, x, memory, asking=None):
    """softmax(q·k·scale + positions) of one layer, one query and key at a time, in the type of the weights. Of XLNet's
    second stream, queries are made of the states `asking`, and read what is before them."""
    config, body, attn = f.config, f.model.body, block.cross if kind == "cross" else block.attn
    heads, dim, inner = attn.heads, attn.head_dim, attn.heads * attn.head_dim
    if kind == "cross":
        q = x @ attn.q.weight.T + (0 if attn.q.bias is None else attn.q.bias)
        k = (memory @ attn.kv.weight.T + (0 if attn.kv.bias is None else attn.kv.bias))[:, :inner]
    else:
        x = x if block.norm_order == "post" else block.attn_norm(x)
        q, k, _ = (x @ attn.qkv.weight.T + (0 if attn.qkv.bias is None else attn.qkv.bias)).chunk(3, -1)
        q = q if asking is None else asking @ attn.qkv.weight[:inner].T
    q, k = q.unflatten(-1, (heads, dim)), k.unflatten(-1, (heads, dim))
    table = torch.full((heads, len(q), len(k)), -math.inf, dtype=x.dtype)
    is_causal = kind == "decoder" and f.family != "xlnet"
    for h in range(heads):
        for i in range(len(q)):
            for j in range(len(k)):
                width = compute_window(f, block)
                if (is_causal and j > i) or (width and i - j >= width) or (asking is not None and j >= i):
                    continue
                a, b = q[i, h], k[j, h]
                if attn.rotary is not None:
                    a, b = rotate(a, i, attn.rotary), rotate(b, j, attn.rotary)
                score = a @ b
                if f.family in ("transformer_xl", "xlnet"):
                    r = (attn.relative.r.weight @ sinusoid(clamp(i - j, config.clamp), config.dim)).view(heads, dim)[h]
                    u, v = attn.relative.biases.u[h], attn.relative.biases.v[h]
                    score = (a + u) @ b + (a + v) @ r
                if f.family == "xlnet":
                    other = int(encode_inputs(f, TEXT).sides["text"].segments[i] != segment_of(f, j))
                    score = score + (a + attn.relative.s[h]) @ attn.relative.segment[other, h]
                score = score * attn.scale
                if f.family == "bloom":
                    score = score + alibi_slopes(heads)[h] * (j - i)
                if f.family in ("t5", "mt5", "switch") and kind != "cross":
                    stack = body.encoder if kind == "encoder" else body.decoder
                    at = compute_bucket(j - i, config.buckets, config.far, kind == "encoder")
                    score = score + stack.bias.weight[at, h]
                table[h, i, j] = score
    return table.softmax(-1)


def segment_of(f, j):
    return encode_inputs(f, TEXT).sides["text"].segments[j]


def clamp(distance, most):
    return distance if most is None else max(-most, min(most, distance))


def compute_window(f, block):
    """The window of a layer: GPT-3's and GPT-Neo's banded layers, and Transformer-XL's memory."""
    body = f.model.body
    if isinstance(body, TransformerXL):
        return max(1, f.config.memory) if f.config.same_length else 0
    if f.family not in ("gpt3", "gpt_neo"):
        return 0
    layer = list(body.blocks).index(block)
    return f.config.window if f.config.pattern[layer % len(f.config.pattern)] == "local" else 0


@pytest.mark.parametrize("name", ATTENTIVE)
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"])
@torch.no_grad()
def test_weights_are_the_plain_formula(name, dtype, limit):
    """The weights of every layer and side are those of the formula in float64, on the same states and weights."""
    f = convert(get_pretrained_model(name), dtype)
    second = "the mat" if f.is_encoder_decoder else None
    maps = attention(f, TEXT, second).maps
    inputs = encode_inputs(f, TEXT, second)
    recording = record_pass(f, inputs)
    exact = convert(f, torch.float64)
    body = exact.model.body
    for stack, states in recording.states.items():
        blocks = (getattr(body, stack, None) or body).blocks
        own = (getattr(f.model.body, stack, None) or f.model.body).blocks
        kinds = [stack, "cross"] if stack == "decoder" and f.is_encoder_decoder else [stack]
        for kind in kinds:
            shown = maps["content" if name == "xlnet" else kind]
            assert (shown.weights.sum(-1) - 1).abs().max() <= 1e-5
            for layer, index in enumerate(blocks.layer_order):
                x = read_cross_input(f, own[index]) if kind == "cross" else states[layer]
                memory = f.model.body.encode(inputs.batch.source).double() if kind == "cross" else None
                want = compute_plain_weights(exact, kind, blocks[index], x.double(), memory)
                assert (shown.weights[layer] - want).abs().max() <= limit, (kind, layer)


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"])
@torch.no_grad()
def test_weights_of_the_query_stream_are_the_plain_formula(dtype, limit):
    """XLNet's second stream, from left to right: queries of its own states, keys of the first stream's."""
    f = convert(get_pretrained_model("xlnet"), dtype)
    shown = attention(f, TEXT).maps["query"]
    inputs = encode_inputs(f, TEXT)
    length = len(inputs.label_ids)
    with record_blocks(f.model.body) as states:
        f.model(inputs.batch.replace(order=torch.arange(length)))
    exact = convert(f, torch.float64)
    for layer, block in enumerate(exact.model.body.blocks):
        both = next(iter(states.values()))[layer].double()
        want = compute_plain_weights(exact, "query", block, both[:length], None, both[length:])
        assert (shown.weights[layer] - want)[:, 1:].abs().max() <= limit, layer  # the first token reads nothing


@pytest.mark.parametrize("score", ["additive", "dot", "general", "concat", "gnmt"])
@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"])
@torch.no_grad()
def test_alignments_are_the_plain_formula(score, dtype, limit):
    """softmax of v · tanh(W s + U h), s · h or s · W h over the source, one decoder step at a time in float64."""
    if score == "gnmt":
        f = model("gnmt", "lm")
    else:
        tokenizer = model("seq2seq", "lm").tokenizer
        f = build_small("seq2seq", "lm", attention=score, vocab=len(tokenizer))
        f.tokenizer = tokenizer
    f = convert(f, dtype)
    module = next(m for m in f.model.body.modules() if isinstance(m, Alignment))
    seen = []
    hook = module.register_forward_hook(
        lambda _, given, output: seen.append((given[0].double(), given[1].values[0].double()))
    )
    shown = attention(f, TEXT, "the mat").maps["alignment"].weights[0, 0]
    hook.remove()
    queries = torch.cat([query[0] for query, _ in seen])
    source, how = seen[-1][1], convert_module(module.score)
    if score == "dot":
        scores = queries @ source.T
    elif score == "general":
        scores = queries @ (source @ how["memory.weight"].T).T
    else:
        inner = (queries @ how["query.weight"].T)[:, None] + (source @ how["memory.weight"].T)[None]
        scores = (inner.tanh() @ how["out.weight"].T)[..., 0]
    assert shown.shape == scores.shape
    assert (shown.double() - scores.softmax(-1)).abs().max() <= limit
    assert (shown.double().sum(-1) - 1).abs().max() <= max(limit, 1e-5)


def convert_module(module):
    """The weights of a module in float64."""
    return {name: value.double() for name, value in module.named_parameters()}


def read_cross_input(f, block):
    """What the queries of cross attention are made of: the state after self-attention, normed by pre-norm models."""
    found = []
    hook = block.cross.q.register_forward_hook(lambda module, given, output: found.append(given[0]))
    f.model(encode_inputs(f, TEXT, "the mat").batch)
    hook.remove()
    return found[0]


@pytest.mark.parametrize(("name", "head"), [(n, FAMILIES[n].definition.pretraining_head) for n in FAMILIES])
def test_capture_changes_nothing_on_any_kernel(name, head):
    """Hidden states with and without capture are equal bit for bit, whichever kernel of a CPU computes them; windows of
    GPT-3 and GPT-Neo take the banded one where none is forced."""
    f = model(name, head)
    if f.definition.is_static:
        pytest.skip("word vectors have no layers")
    second = "the mat" if f.is_encoder_decoder else None
    inputs = encode_inputs(f, TEXT, second)
    rows = encode_inputs(f, "the mat", second)
    batches = [inputs.batch]
    if inputs.batch.ids.ndim == 1 and inputs.batch.segments is None and inputs.batch.source is None:
        batches.append(Batch.from_rows([inputs.batch.ids.tolist(), rows.batch.ids.tolist()]))  # ragged rows
    for batch in batches:
        for kernel in (None, "dense", "by_length", "sdpa"):
            has_relative = any(getattr(m, "relative", None) is not None for m in f.model.body.modules())
            is_plain = isinstance(f.model.body, TransformerBody) and f.model.body.bias is None
            if kernel == "by_length" and has_relative:
                continue
            if kernel == "sdpa" and not (is_plain and len(batch.starts) == 2 and name not in ("gpt3", "gpt_neo")):
                continue
            with force_kernel(kernel), torch.inference_mode():
                want = f.model(batch)
                capture = Capture(with_hidden=True, with_attention=True, with_vectors=True, routing=[])
                got = f.model(batch, capture=capture)
                assert torch.equal(got, want), kernel
                assert torch.equal(f.model.logits(got, batch), f.model.logits(want, batch)), kernel
                if len(batch.starts) == 2:
                    whole = dataclasses.replace(inputs, batch=batch)
                    recorded = record_pass(f, whole, with_hidden=True, with_attention=True, with_vectors=True)
                    assert torch.equal(recorded.hidden, want), kernel


@pytest.mark.parametrize("name", ["bert", "gptj", "t5", "xlnet"])
def test_norms_are_those_of_the_projected_values(name):
    """||weight · value · output projection||, by hand for one pair."""
    f = get_pretrained_model(name)
    one = next(iter(attention(f, TEXT).maps.items()))
    kind, shown = one[0], one[1]
    recording = record_pass(f, encode_inputs(f, TEXT), with_attention=True)
    stack = next(iter(recording.states))
    side = getattr(f.model.body, "encoder", None) or f.model.body
    block = side.blocks[1]
    x = recording.states[stack][1]
    x = x if block.norm_order == "post" else block.attn_norm(x)
    with torch.inference_mode():
        value = block.attn.qkv(x).chunk(3, -1)[2].unflatten(-1, (block.attn.heads, -1))
        project = block.attn.o.weight.unflatten(1, (block.attn.heads, -1))
        want = (shown.weights[1, 2, 3, 4] * (project[:, 2] @ value[4, 2])).norm()
    assert shown.norms[1, 2, 3, 4] == pytest.approx(float(want), rel=1e-5)
    assert kind in ("encoder", "decoder", "content")


def test_rollout_by_hand():
    f = model("bert", "mlm")
    one = attention(f, TEXT).maps["encoder"]
    eye = torch.eye(one.weights.shape[-1])
    total = eye
    for layer in one.weights:
        mixed = 0.5 * layer.mean(0) + 0.5 * eye
        total = mixed @ total
    torch.testing.assert_close(one.rollout[-1], total, atol=1e-6, rtol=0)
    torch.testing.assert_close(one.rollout.sum(-1), torch.ones(one.rollout.shape[:-1]))


def test_summaries_of_heads():
    f = model("gpt2", "lm")
    one = attention(f, TEXT).maps["decoder"]
    weights = one.weights[1, 0]
    entropy = torch.stack([-(row[row > 0] * row[row > 0].log2()).sum() for row in weights]).mean()
    assert one.entropy[1, 0] == pytest.approx(float(entropy), rel=1e-4)
    far = sum(float(weights[i, j]) * (i - j) for i in range(len(weights)) for j in range(i + 1)) / len(weights)
    assert one.distance[1, 0] == pytest.approx(far, rel=1e-4)


@pytest.mark.parametrize("name", ["bert", "gptj", "transformer_xl", "xlnet"])
def test_scores_by_dimension(name):
    """Queries and keys of one head give its scores, up to what positions add."""
    f = get_pretrained_model(name)
    one = next(iter(attention(f, TEXT).maps.values()))
    view = one.get_neurons(1, 2)
    scores = view.queries @ view.keys.T * view.scale
    assert scores.shape == one.weights.shape[2:]
    if name in ("bert", "gptj"):
        seen = scores.masked_fill(one.weights[1, 2] == 0, -math.inf).softmax(-1)
        torch.testing.assert_close(seen, one.weights[1, 2], atol=1e-6, rtol=0)
    for layer, head, word in ((2, 0, "layer 2"), (0, 9, "head 9"), (0, True, "head True")):
        with pytest.raises(Error, match=f"no {word}"):
            one.get_neurons(layer, head)


def test_a_pruned_head_has_no_weights():
    f = dataclasses.replace(model("bert", "mlm"), model=copy.deepcopy(model("bert", "mlm").model))
    before = attention(f, TEXT).maps["encoder"]
    f.prune({0: [1]})
    after = attention(f, TEXT).maps["encoder"]
    assert after.weights.shape == before.weights.shape
    assert not after.weights[0, 1].any()
    torch.testing.assert_close(after.weights[0, [0, 2]], before.weights[0, [0, 2]], atol=1e-6, rtol=0)
    with pytest.raises(Error, match="was pruned"):
        after.get_neurons(0, 1)


@pytest.mark.parametrize("name", ["transformer_xl", "xlnet"])
def test_memory_comes_before_the_text(name):
    f = get_pretrained_model(name)
    view = f.inspect("the cat sat", before="on the mat", views="attention")
    side = view.sides["text"]
    assert [token.text.strip() for token in side.memory if token.text.strip()] == ["on", "the", "mat"]
    one = view.attention["content" if name == "xlnet" else "decoder"]
    assert one.memory == len(side.memory) > 0
    assert one.weights.shape[-1] == len(side.memory) + len(side.tokens)
    assert (one.weights.sum(-1) - 1).abs().max() <= 1e-5
    assert one.weights[..., : one.memory].sum() > 0
    document = view.to_dict()
    assert document["sides"]["text"]["memory"] == one.memory == len(document["sides"]["text"]["memory_tokens"])
    assert one.rollout is None
    with pytest.raises(Error, match="gpt2 has no memory"):
        model("gpt2", "lm").inspect("the cat", before="x")


def test_pairs_have_segments():
    f = model("bert", "mlm")
    view = f.inspect("the cat sat", "on the mat", views="attention")
    side = view.sides["text"]
    assert side.text == "the cat sat\non the mat"
    assert side.segments == [0] * 5 + [1] * 4
    assert side.text[side.tokens[-2].start : side.tokens[-2].end] == "mat"
    ids = torch.tensor([f.tokenizer.encode("the cat sat", "on the mat")])
    want = f.logits(ids, segments=torch.tensor([side.segments]))["mlm" if f.head == "pretraining" else 0]
    recorded = record_pass(f, encode_inputs(f, "the cat sat", "on the mat"))
    torch.testing.assert_close(f.model.logits(recorded.hidden), want, atol=1e-6, rtol=0)


def test_an_alignment_of_a_trained_toy_is_monotone():
    """A recurrent translator that learned to copy looks from left to right."""
    torch.manual_seed(0)
    f = formers.build(
        "seq2seq", vocab=24, embed=24, dim=32, cell="gru", bidirectional=True, attention="additive", init=0.15
    )
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(f.model.parameters(), lr=1e-2)
    f.model.train()
    for _ in range(200):
        source = torch.randint(4, 24, (32, 6), generator=generator)
        target = torch.cat((torch.ones(32, 1, dtype=torch.long), source), 1)
        logits = f.logits(source, target=target[:, :-1])
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), source.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    f.model.eval()
    source = torch.randint(4, 24, (8, 6), generator=generator)
    target = torch.cat((torch.ones(8, 1, dtype=torch.long), source[:, :-1]), 1)
    assert (f.logits(source, target=target).argmax(-1) == source).float().mean() > 0.9
    capture = Capture(with_attention=True)
    batch, _ = f.pack_inputs(ModelInputs(source, target=target))
    with torch.inference_mode():
        f.model(batch, capture=capture)
    weights = capture.attention_weights["cross"][0][:, 0]
    assert (weights.sum(-1) - 1).abs().max() <= 1e-5
    for looked in weights.argmax(-1).tolist():
        assert looked == sorted(looked)
        assert len(set(looked)) >= 5
