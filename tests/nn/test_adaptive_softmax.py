"""Adaptive inputs and adaptive softmax: equal to torch's own where that exists, and to the definition elsewhere."""

from __future__ import annotations

import pytest
import torch

import formers
from formers.nn.adaptive_softmax import AdaptiveEmbedding, AdaptiveSoftmax, VocabClusters
from formers.objectives.token_losses import compute_token_loss
from tests.nn.packing import pack_rows
from tests.small_models import TRANSFORMER_XL_SIZES

SHAPES = {
    "shrinking": VocabClusters(30, 8, 8, (7, 19), 2), "wider": VocabClusters(30, 8, 12, (7, 19), 3),
    "one table": VocabClusters(30, 8, 8, (7, 19)), "one table, narrow": VocabClusters(30, 8, 5, (7, 19)),
    "one cluster": VocabClusters(30, 8, 8), "one narrow cluster": VocabClusters(30, 8, 5, (), 4),
}  # fmt: skip


def build_pair(clusters, tied=True, ups=None):
    ups = (False, *[True] * (clusters.num_clusters - 1)) if ups is None else ups
    pair = AdaptiveEmbedding(clusters), AdaptiveSoftmax(clusters, tied=tied, projection_ties=ups)
    for module in pair:
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter)
    return [module.double() for module in pair]


def test_equal_to_torch():
    clusters = VocabClusters(30, 8, 8, (7, 19), 2)
    embedding, ours = build_pair(clusters, tied=False, ups=(False,) * 3)
    theirs = torch.nn.AdaptiveLogSoftmaxWithLoss(8, 30, [7, 19], div_value=2.0, head_bias=True).double()
    with torch.no_grad():
        ours.downs["0"].weight.copy_(torch.eye(8))  # torch does not project the first cluster,
        for i in (1, 2):
            ours.tables[i].bias.zero_()  # and has no biases in the others
            theirs.tail[i - 1][0].weight.copy_(ours.downs[str(i)].weight)
            theirs.tail[i - 1][1].weight.copy_(ours.tables[i].weight)
        theirs.head.weight.copy_(torch.cat((ours.tables[0].weight, ours.cluster.weight)))
        theirs.head.bias.copy_(torch.cat((ours.tables[0].bias, ours.cluster.bias)))
    x, labels = torch.randn(40, 8, dtype=torch.float64), torch.randint(0, 30, (40,))
    torch.testing.assert_close(ours(x, embedding), theirs.log_prob(x))
    torch.testing.assert_close(ours.compute_losses(x, labels, embedding), -theirs(x, labels).output)


@pytest.mark.parametrize("ups", ["all but the first", "all", "none"])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_definition(shape, tied, ups):
    clusters = SHAPES[shape]
    same = {"all": (True,) * clusters.num_clusters, "none": (False,) * clusters.num_clusters}.get(ups)
    embedding, softmax = build_pair(clusters, tied, same)
    same = softmax.projection_ties
    ids = torch.arange(30)
    spans = list(zip([0, *clusters.cutoffs], [*clusters.cutoffs, 30], strict=True))
    x, rows = torch.randn(30, 8, dtype=torch.float64), []
    for i in ids.tolist():
        c = next(c for c, (first, end) in enumerate(spans) if first <= i < end)
        table, row = (0, i) if len(embedding.tables) == 1 else (c, i - spans[c][0])
        vector = embedding.tables[table].weight[row]
        rows.append(vector if not embedding.ups else embedding.ups[table].weight @ vector)
    torch.testing.assert_close(embedding(ids), torch.stack(rows))
    expected = []
    for hidden in x:
        parts = []
        for c, (first, end) in enumerate(spans):
            table, at = (0, slice(first, end)) if len(embedding.tables) == 1 else (c, slice(None))
            weight = (embedding.tables[table] if tied else softmax.tables[table]).weight[at]
            y = hidden
            if embedding.ups:
                y = embedding.ups[table].weight.T @ hidden if same[c] else softmax.downs[str(c)].weight @ hidden
            score = weight @ y + softmax.tables[table].bias[at]
            if c == 0 and len(spans) > 1:
                score = torch.cat((score, softmax.cluster.weight @ y + softmax.cluster.bias))
            parts.append(score - score.exp().sum().log())
        head = parts[0][: spans[0][1]]
        tails = [parts[0][spans[0][1] + i] + tail for i, tail in enumerate(parts[1:])]
        expected.append(torch.cat((head, *tails)))
    expected = torch.stack(expected)
    got = softmax(x, embedding)
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(got.exp().sum(-1), torch.ones(30, dtype=torch.float64))
    losses = softmax.compute_losses(x, torch.where(ids == 3, -100, ids), embedding)
    torch.testing.assert_close(losses, -expected.diagonal() * (ids != 3))


@pytest.mark.parametrize("only", [slice(0, 7), slice(7, 19), slice(19, 30), slice(0, 30)])
def test_losses_have_the_gradients_of_the_whole(only):
    embedding, softmax = build_pair(SHAPES["shrinking"])
    x = torch.randn(30, 8, dtype=torch.float64, requires_grad=True)
    labels = torch.arange(30)[only]
    leaves = [x, *softmax.parameters(), *embedding.parameters()]
    short = softmax.compute_losses(x[only], labels, embedding).sum()
    whole = -softmax(x[only], embedding).gather(1, labels[:, None]).sum()
    for one, other in zip(*(torch.autograd.grad(o, leaves, allow_unused=True) for o in (short, whole)), strict=True):
        torch.testing.assert_close(
            torch.zeros(()) if one is None else one.abs().sum().float(),
            torch.zeros(()) if other is None else other.abs().sum().float(),
        )
        assert one is None or torch.allclose(one, other)


def test_the_objective_computes_only_what_it_needs():
    f = formers.build("transformer_xl", seed=1, **{**TRANSFORMER_XL_SIZES, "init": 0.3, "dropout": 0.0})
    batch = pack_rows([[3, 4, 5, 30], [6, 45, 8]])
    batch = batch.replace(labels=torch.tensor([4, 5, 30, -100, 45, 8, -100]))
    loss, count = compute_token_loss(f.model, batch, "lm")
    scores = f.model.logits(f.model(batch))
    want = sum(-scores[i, label] for i, label in enumerate(batch.labels.tolist()) if label >= 0)
    torch.testing.assert_close(loss, want)
    assert int(count) == 5
    compiled = torch.compile(lambda b: compute_token_loss(f.model, b, "lm")[0], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(batch), loss)
