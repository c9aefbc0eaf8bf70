"""A recorded step serves the next runner of the same size, and no other (a graph is played here by a closure)."""

from __future__ import annotations

import gc

import pytest
import torch

import formers
from formers.generation import runner
from formers.generation.decoding import continue_ids
from formers.generation.options import Options
from formers.generation.runner import Runner
from tests.generation.small_decoders import build_decoder

PROMPTS = [[1, 2, 3], [7], [9, 8, 7, 6, 5], [4, 4]]


def list_addresses(state):
    """Where all that a graph reads and writes lies."""
    found = [t.data_ptr() for layer in state.layers.values() for t in (layer.keys, layer.values)]
    return [*found, *(t.data_ptr() for t in (state.lengths, state.written_lengths, state.active_rows))]


class Graph:
    """It plays the same tensors again, and notices when they are elsewhere."""

    made = 0

    def __init__(self, owner, run, batch):
        Graph.made += 1
        mine = next(cell.cell_contents for cell in run.__closure__ if isinstance(cell.cell_contents, Runner))
        self.owner, self.former, self.state, self.wide = owner, mine.former, mine.state, mine.padded_output
        self.batch, self.places = batch.replace(ids=owner.static_inputs[0]), list_addresses(mine.state)

    def replay(self):
        assert list_addresses(self.state) == self.places
        hidden = self.former.model(self.batch, cache=self.state)
        out = self.former.model.parts["lm"].out
        with out.use_padded_weights(self.wide):
            self.owner.static_output = self.former.model.logits(hidden, part="lm")


class Choice:
    """The choice of a beam search, played again; its tensors must stay where they are."""

    made = 0

    def __init__(self, owner, run):
        Choice.made += 1
        self.owner, self.run, self.found = owner, run, torch.zeros(2, 1)
        self.places = self.now()

    def now(self):
        beams = self.run.__self__
        return [
            t.data_ptr()
            for t in (
                beams.running_scores,
                beams.complete_scores,
                beams.complete_keys,
                beams.open_prompts,
                beams.end_token_mask,
            )
        ]

    def replay(self):
        assert self.now() == self.places
        found = self.run(*self.owner.static_inputs)
        if self.owner.static_output is None:
            self.owner.static_output = found
        self.owner.static_output.copy_(found)  # as a graph, it overwrites what it gave before


@pytest.fixture
def graphs(monkeypatch):
    def record(self, run, given, kept):
        self.static_inputs, self.static_output = [one.clone() for one in given], None
        self.graph = Choice(self, run) if kept is None else Graph(self, run, kept)
        return True

    monkeypatch.setattr(runner.GraphedDecodeStep, "capture_graph", record)
    monkeypatch.setattr(runner, "can_capture_graph", lambda former: True)
    Graph.made = Choice.made = 0
    return Graph


@pytest.mark.parametrize("family", ["gpt2", "bloom", "gpt_neox"])
def test_the_same_size_is_recorded_once(family, graphs, monkeypatch):
    f, twin, how = build_decoder(family), build_decoder(family), Options(temperature=0)
    monkeypatch.setattr(runner, "can_capture_graph", lambda former: former is not twin)
    for prompts in (PROMPTS, PROMPTS[::-1], [[5], [6], [7], [8]]):
        assert continue_ids(f, prompts, 9, how) == continue_ids(twin, prompts, 9, how)
    assert graphs.made == 1
    with torch.no_grad():  # weights that change where they lie are seen
        for p, q in zip(f.model.parameters(), twin.model.parameters(), strict=True):
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(5)))
            q.copy_(p)
    assert continue_ids(f, PROMPTS, 9, how) == continue_ids(twin, PROMPTS, 9, how)
    assert graphs.made == 1
    for p in f.model.parameters():  # those that have moved need a new step
        p.data = p.data.clone()
    continue_ids(f, PROMPTS, 9, how)
    assert graphs.made == 2
    continue_ids(f, PROMPTS[:2], 9, how)
    assert graphs.made == 3


def test_no_two_share_a_step_and_none_outlives_its_model(graphs):
    f = build_decoder("gpt2")
    both = [Runner(f, 2, 20) for _ in range(2)]
    for i, one in enumerate(both):
        one.score_next([[1 + i], [2 + i]])
        for _ in range(3):
            found = one.step(torch.tensor([3, 4]))
    assert graphs.made == 2
    assert both[0].state is not both[1].state
    before, kept = found.clone(), len(runner._cached_graphs)
    both[0].step(torch.tensor([5, 6]))
    assert torch.equal(found, before)
    del both, one
    assert len(runner._cached_graphs) == kept + 1
    runner._cached_graphs[f.model].graphed_step.graph = None  # the stand-in knows its model, a graph does not
    del f
    gc.collect()
    assert len(runner._cached_graphs) == kept


def test_a_search_keeps_its_step_to_itself(graphs):
    f = build_decoder("gpt2")
    for _ in range(2):
        assert continue_ids(f, PROMPTS, 6, Options(num_beams=3)) == continue_ids(f, PROMPTS, 6, Options(num_beams=3))
    assert f.model not in runner._cached_graphs


@pytest.mark.parametrize("early", [False, True, "never"])
def test_a_search_is_recorded_with_its_choices(early, graphs):
    sizes = {"vocab": 40, "context": 64, "dim": 16, "layers": 2, "heads": 2, "init": 0.4, "bos": None, "seed": 2}
    free = continue_ids(formers.build("gpt2", eos=None, **sizes), PROMPTS, 30, Options(temperature=0))
    f = formers.build("gpt2", eos=free[0][4], **sizes)
    options = Options(num_beams=4, num_samples=3, early_stopping=early, length_penalty=0.5)
    with pytest.MonkeyPatch.context() as plain:
        plain.setattr(runner, "can_capture_graph", lambda former: False)
        want = continue_ids(f, PROMPTS, 30, options)
    Choice.made = 0
    assert continue_ids(f, PROMPTS, 30, options) == want
    assert Choice.made == 1
