"""ELMo's two directions: labels, sampled softmax, words drawn by frequency, streams."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import formers
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.objectives.bidirectional import compute_inclusion_probability, draw_by_frequency, encode_vocab_word
from formers.objectives.registry import build_objective
from formers.text import word_level
from tests.objectives import toys

TOKENIZER = toys.build_tokenizer()


def build_elmo(sampled=0):
    f = formers.build("elmo", vocab=60, slots=9, char_dim=4, filters=((1, 5), (2, 6)), dim=8, cell=10, dropout=0.0)
    return f, build_objective("bidirectional", TOKENIZER, 12, slots=9, num_sampled=sampled)


def test_both_directions():
    f, goal = build_elmo()
    data = toys.build_store([[5], [3]], end=TOKENIZER.id("eos"))
    _, raw, batch = toys.make_examples(goal, data)
    assert TOKENIZER.id("eos") not in raw.ids
    assert batch.ids.shape == (12, 9)
    words = toys.split_rows(batch.labels, batch.starts)
    assert all((row[0], row[-1]) == (TOKENIZER.id("bos"), TOKENIZER.id("eos")) for row in words)
    assert batch.ids[0].tolist() == word_level.pad_word([word_level.SENTENCE_BEGIN], 9)
    assert batch.ids[batch.starts[1] - 1].tolist() == word_level.pad_word([word_level.SENTENCE_END], 9)
    assert batch.ids[1].tolist() == word_level.encode_word(TOKENIZER.get_token_text(words[0][1]), 9)
    full = next(load_batches(TokenSource(data, goal), 32))[0].to("cpu")
    total, count = goal.loss(f.model, full)["lm"]
    logits = f.model.logits(f.model(full))
    forward = backward = 0.0
    for low, high in ((0, int(full.starts[1])), (int(full.starts[1]), int(full.starts[2]))):
        for t in range(low, high - 1):
            forward += F.cross_entropy(logits[t, 0], full.labels[t + 1])
            backward += F.cross_entropy(logits[t + 1, 1], full.labels[t])
    assert count == 10
    torch.testing.assert_close(total, (forward + backward) / 2)


@torch.no_grad()
def test_a_sampled_softmax_is_nearly_the_whole():
    f, goal = build_elmo(sampled=3000)
    batch = next(load_batches(TokenSource(toys.build_random_store(), goal), 64))[0].to("cpu")
    exact = goal.loss(f.model.eval(), batch)["lm"]
    whole = build_elmo()[1].loss(f.model, batch)["lm"]
    torch.testing.assert_close(exact, whole, msg="without training there is nothing to save")
    f.model.train()
    near = goal.loss(f.model, batch)["lm"]
    assert near[1] == whole[1]
    # Of 60 words, 3,000 draws miss none: the sum is that of the whole softmax.
    assert float(near[0] / near[1]) == pytest.approx(float(whole[0] / whole[1]), abs=1e-4)
    few = build_elmo(sampled=5)[1].loss(f.model, batch)["lm"]
    assert 0 < float(few[0]) != float(near[0])


def test_a_sampled_softmax_has_the_heads_dropout():
    f, goal = build_elmo(sampled=5)
    f.model.train().parts["lm"].dropout = torch.nn.Dropout(1.0)  # nothing of the states is left
    goal.loss(f.model, next(load_batches(TokenSource(toys.build_random_store(), goal), 64))[0].to("cpu"))["lm"][
        0
    ].backward()
    assert all(p.grad is None or not p.grad.any() for name, p in f.model.named_parameters() if name.startswith("body"))
    assert f.model.parts["lm"].out.bias.grad.any()


def test_a_word_is_spelled_without_its_blank():
    for word, seen in (("▁cat", "cat"), ("Ġcat", "cat"), ("▁", "▁"), (" ", " "), ("", "?")):
        assert encode_vocab_word(word, 9) == word_level.encode_word(seen, 9)


def test_words_are_drawn_by_frequency():
    drawn = draw_by_frequency(200_000, 50, torch.device("cpu")).view(20_000, 10)
    seen = torch.stack([(drawn == word).any(1).double().mean() for word in range(50)])
    torch.testing.assert_close(
        seen, compute_inclusion_probability(torch.arange(50), 10, 50).double(), atol=0.015, rtol=0
    )
    assert compute_inclusion_probability(torch.arange(50), 1, 50).sum() == pytest.approx(1.0), "the chances of one draw"


def test_one_mark_for_begin_and_end_stands_at_the_end():
    pieces = toys.build_tokenizer(roles={"bos": "</s>", "eos": "</s>", "unk": "<unk>"})
    goal = build_objective("bidirectional", pieces, 12, slots=9)
    assert goal.frame == ((), (pieces.id("eos"),))
    assert goal.word_characters[pieces.id("eos")].tolist() == word_level.pad_word([word_level.SENTENCE_END], 9)


def test_losses_are_summed_in_single_precision():
    f, goal = build_elmo(sampled=20)
    f.to(dtype=torch.bfloat16)
    batch = next(load_batches(TokenSource(toys.build_random_store(), goal), 64))[0].to("cpu")
    assert goal.loss(f.model.train(), batch)["lm"][0].dtype == torch.float32
    assert goal.loss(f.model.eval(), batch)["lm"][0].dtype == torch.float32


def test_streams_of_words():
    data = toys.build_store([[25], [18]], end=TOKENIZER.id("eos"))
    goal = build_objective("bidirectional", TOKENIZER, 5, slots=9, num_streams=2)
    seen = list(load_batches(TokenSource(data, goal), 10, epochs=1))
    assert all(b.ids.shape == (10, 9) and b.starts.tolist() == [0, 5, 10] for b, _ in seen)
    row = np.concatenate([b.labels.reshape(2, 5)[1] for b, _ in seen])
    assert np.array_equal(row, data.tokens[len(data.tokens) // 2 :][: len(row)])
