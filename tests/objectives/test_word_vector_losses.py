"""Losses and gradients of word vectors against references written from the papers' equations, pair by pair."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from formers.objectives import word_vector_losses

B, T, W, K, D = 2, 6, 2, 5, 7
S = T + 2 * W


def compute_sigmoid(x):
    return 1 / (1 + math.exp(-x))


def draw_inputs(seed=0):
    r = np.random.default_rng(seed)
    left, right = r.integers(0, W + 1, (B, T)), r.integers(0, W + 1, (B, T))
    left[0, 3] = right[0, 3] = 0  # a word without neighbours
    words, around, drawn = r.normal(size=(B, T, D)), r.normal(size=(B, S, D)), r.normal(size=(B, K, D))
    return left, right, words, around, drawn


def list_neighbours(left, right, b, t):
    return [t + W + o for o in range(-left[b, t], right[b, t] + 1) if o]


def skipgram_reference(left, right, words, around, drawn, share):
    """Mikolov et al. 2013b, eq. 4, for each pair of a word and a neighbour."""
    loss, dw, da, dd = 0.0, np.zeros_like(words), np.zeros_like(around), np.zeros_like(drawn)
    for b in range(B):
        for t in range(T):
            v = words[b, t]
            for s in list_neighbours(left, right, b, t):
                p = compute_sigmoid(around[b, s] @ v)
                loss -= math.log(p)
                dw[b, t] += (p - 1) * around[b, s]
                da[b, s] += (p - 1) * v
                for k in range(K):
                    q = compute_sigmoid(drawn[b, k] @ v)
                    loss -= share * math.log(1 - q)
                    dw[b, t] += share * q * drawn[b, k]
                    dd[b, k] += share * q * v
    return loss, dw, da, dd


def cbow_reference(left, right, words, around, drawn, share):
    """Mikolov et al. 2013a, §3.1: the mean of the words around predicts the word. Each neighbour gets the gradient of
    the mean (2013b's released code), so what is checked is the sum of them over the places it is a neighbour of."""
    loss, dw, da, dd = 0.0, np.zeros_like(words), np.zeros_like(around), np.zeros_like(drawn)
    for b in range(B):
        for t in range(T):
            near = list_neighbours(left, right, b, t)
            if not near:
                continue
            h = sum(around[b, s] for s in near) / len(near)
            p = compute_sigmoid(words[b, t] @ h)
            loss -= math.log(p)
            dw[b, t] += (p - 1) * h
            dh = (p - 1) * words[b, t]
            for k in range(K):
                q = compute_sigmoid(drawn[b, k] @ h)
                loss -= share * math.log(1 - q)
                dh = dh + share * q * drawn[b, k]
                dd[b, k] += share * q * h
            for s in near:
                da[b, s] += dh
    return loss, dw, da, dd


@pytest.mark.parametrize("share", [1.0, 0.4])
@pytest.mark.parametrize("kind", ["skipgram", "cbow"])
def test_word2vec_equals_the_equations(kind, share):
    left, right, words, around, drawn = draw_inputs()
    reference = {"skipgram": skipgram_reference, "cbow": cbow_reference}[kind]
    loss, dw, da, dd = reference(left, right, words, around, drawn, share)
    near = word_vector_losses.build_window_mask(torch.from_numpy(left), torch.from_numpy(right), W)
    tensors = [torch.from_numpy(x).float() for x in (words, around, drawn)]
    got = getattr(word_vector_losses, f"compute_{kind}")(*tensors, near, share, loss=True)
    inner, outer = (dw, da) if kind == "skipgram" else (da, dw)
    assert got.loss == pytest.approx(loss, rel=1e-5)
    for ours, theirs in ((got.input_grad, inner), (got.output_grad, outer), (got.negative_grad, dd)):
        np.testing.assert_allclose(ours.numpy(), theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("window", [1, 3, 20])
def test_neighbours_are_the_places_in_the_window(window):
    """Small windows are looked up in a table, wide ones are compared: a table of those would fill the memory."""
    generator = torch.Generator().manual_seed(4)
    left, right = (torch.randint(0, window + 1, (2, 5), generator=generator) for _ in range(2))
    mask = word_vector_losses.build_window_mask(left, right, window)
    assert mask.shape == (2, 5, 5 + 2 * window)
    for row, place in ((b, t) for b in range(2) for t in range(5)):
        near = {*range(place - int(left[row, place]), place + int(right[row, place]) + 1)} - {place}
        assert {s - window for s in mask[row, place].nonzero().flatten().tolist()} == near


def test_gradients_are_those_of_the_loss():
    """By autograd, in double precision: the written-out gradient of skip-gram is the derivative of its loss."""
    left, right, *arrays = draw_inputs(1)
    near = word_vector_losses.build_window_mask(torch.from_numpy(left), torch.from_numpy(right), W)
    words, around, drawn = (torch.from_numpy(x).requires_grad_() for x in arrays)
    true, false = words @ around.mT, words @ drawn.mT
    loss = -(torch.nn.functional.logsigmoid(true) * near).sum()
    loss = loss - 0.3 * (torch.nn.functional.logsigmoid(-false) * near.sum(-1, keepdim=True)).sum()
    loss.backward()
    with torch.no_grad():
        got = word_vector_losses.compute_skipgram(words, around, drawn, near, 0.3, loss=True)
    assert got.loss == pytest.approx(loss.item())
    for ours, tensor in ((got.input_grad, words), (got.output_grad, around), (got.negative_grad, drawn)):
        torch.testing.assert_close(ours, tensor.grad)


def test_glove_equals_the_equations():
    r = np.random.default_rng(2)
    n, x_max, alpha = 9, 10.0, 0.75
    w, v, bw, bv, x = r.normal(size=(n, D)), r.normal(size=(n, D)), r.normal(size=n), r.normal(size=n), r.gamma(1, 9, n)
    x[0], x[1] = 0.2, 55.0  # below and above x_max
    given = [torch.from_numpy(a).float() for a in (w, v, bw + bv, x)]
    dw, dv, db, loss = word_vector_losses.compute_glove(*given, x_max, alpha)
    for i in range(n):
        f = (x[i] / x_max) ** alpha if x[i] < x_max else 1.0  # eq. 9
        off = float(w[i] @ v[i] + bw[i] + bv[i] - math.log(x[i]))  # eq. 8
        assert float(loss[i]) == pytest.approx(0.5 * f * off**2, rel=1e-5)
        np.testing.assert_allclose(dw[i].numpy(), f * off * v[i], atol=1e-5, rtol=1e-5)
        np.testing.assert_allclose(dv[i].numpy(), f * off * w[i], atol=1e-5, rtol=1e-5)
        assert float(db[i]) == pytest.approx(f * off, rel=1e-5)
