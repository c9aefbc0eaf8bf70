"""Requests that share steps get the texts they would get alone, whenever they come and go."""

from __future__ import annotations

import dataclasses
import threading

import pytest
import torch

import formers
from formers import Error
from formers.generation import runner
from formers.generation.decoding import Options, continue_ids
from formers.generation.engine import Engine, build_engine, make_chooser
from formers.generation.logits_processors import build_constraints
from tests.generation.small_decoders import SIZES, build_decoder

PROMPTS = [[1, 2, 3], [7], [9, 8, 7, 6, 5], [4, 4], [11, 12, 13, 14], [30]]


@pytest.mark.parametrize("family", SIZES)
@pytest.mark.parametrize("how", [
    Options(temperature=0), Options(temperature=1.2, seed=3),
    Options(temperature=0, repetition_penalty=2.0, no_repeat_ngram=2, bad_words=(5,)),
], ids=["greedy", "drawn", "ruled"])  # fmt: skip
def test_as_alone(family, how):
    f = build_decoder(family)
    engine = Engine(f, num_slots=3, cache_size=40)
    lengths = [5, 9, 2, 7, 1, 4]
    requests = [engine.submit(p, n, how) for p, n in zip(PROMPTS[:4], lengths, strict=False)]
    for _ in range(3):  # two more come while others are at work
        engine.step()
    requests += [engine.submit(p, n, how) for p, n in zip(PROMPTS[4:], lengths[4:], strict=True)]
    while engine.step():
        pass
    want = [continue_ids(f, [p], n, how)[0] for p, n in zip(PROMPTS, lengths, strict=True)]
    assert [request.result() for request in requests] == want


def test_a_full_context_continues_with_its_last_half():
    f = formers.build("gpt2", seed=2, vocab=40, context=8, dim=16, layers=2, heads=2, init=0.4, eos=None, bos=None)
    engine, how = Engine(f, num_slots=2), Options(temperature=0)
    requests = [engine.submit(p, 20, how) for p in ([1, 2, 3], [5] * 6)]
    while engine.step():
        pass
    assert [r.result() for r in requests] == [continue_ids(f, [p], 20, how)[0] for p in ([1, 2, 3], [5] * 6)]


def test_a_place_that_was_full_to_the_brim_is_free_again():
    f = formers.build("gpt2", seed=2, vocab=40, context=8, dim=16, layers=2, heads=2, init=0.4, eos=None, bos=None)
    engine, how = Engine(f, num_slots=2), Options(temperature=0)
    full, other = engine.submit([1, 2, 3, 4, 5, 6], 3, how), engine.submit([7], 12, how)
    while engine.step():
        pass
    assert full.result() == continue_ids(f, [[1, 2, 3, 4, 5, 6]], 3, how)[0]
    assert other.result() == continue_ids(f, [[7]], 12, how)[0]


def test_cancelling_frees_the_place_within_a_step():
    engine = Engine(build_decoder("gpt2"), num_slots=1, cache_size=40)
    first, second, third = (engine.submit([i], 9, Options(temperature=0)) for i in (1, 2, 3))
    engine.step()
    first.cancel()
    second.cancel()
    engine.step()
    assert list(engine.active_requests.values()) == [third]
    assert len(first.result()) == 1
    assert second.result() == []


def test_a_choice_that_fails_ends_its_request_alone():
    engine = Engine(build_decoder("gpt2"), num_slots=2, cache_size=40)

    def fail_at_once(logits, text, step):
        raise Error("no choice", fix="none")

    bad, good = engine.submit([1], 3, fail_at_once), engine.submit([2], 3, Options(temperature=0))
    while engine.step():
        pass
    assert len(good.result()) == 3
    with pytest.raises(Error, match="no choice"):
        bad.result()


def test_from_many_threads():
    f, how, found = build_decoder("gpt2"), Options(temperature=0), {}
    with Engine(f, num_slots=3, cache_size=40) as engine:

        def ask(i):
            found[i] = list(engine.submit(PROMPTS[i % 6], 6, how))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(timeout=60)
    want = [continue_ids(f, [p], 6, how)[0] for p in PROMPTS]
    assert [found[i] for i in range(12)] == [want[i % 6] for i in range(12)]


def test_what_cannot_be_asked():
    engine = Engine(build_decoder("gpt2"), num_slots=2, cache_size=10)
    with pytest.raises(Error, match="do not fit into 10"):
        engine.submit([1] * 11)
    with pytest.raises(Error, match="a prompt is empty"):
        engine.submit([])
    for how, said in (
        (Options(num_beams=2), "one text"),
        (Options(num_samples=2), "one text"),
        (Options(stop="x"), "apply to texts"),
    ):
        with pytest.raises(Error, match=said):
            engine.submit([1], 3, how)
    xl = formers.build("xlnet", head="lm", vocab=50, dim=16, layers=1, heads=2, ff=24)
    with pytest.raises(Error, match="no KV cache, which continuous batching needs"):
        Engine(xl)
    assert torch.is_grad_enabled()


@pytest.mark.parametrize("family", ["transformer_xl", "xlnet"])
def test_families_without_a_cache_take_one_request_after_the_other(family):
    more = {"cutoffs": ()} if family == "transformer_xl" else {}
    f = formers.build(family, head="lm", seed=1, vocab=40, dim=16, layers=2, heads=2, ff=24, init=0.3, **more)
    engine, how = build_engine(f), Options(temperature=0)
    requests = [engine.submit(p, n, how) for p, n in zip(PROMPTS[:3], (5, 3, 4), strict=True)]
    requests[1].cancel()
    while engine.step():
        assert len(engine.active_requests) <= 1
    want = [continue_ids(f, [p], n, how)[0] for p, n in zip(PROMPTS[:3], (5, 3, 4), strict=True)]
    assert [request.result() for request in requests] == [want[0], [], want[2]]


def test_samples_of_one_seed_differ_as_those_of_generate_do():
    f, how = build_decoder("gpt2"), Options(temperature=1.5, seed=3, num_samples=3)
    constraints = build_constraints(f, dataclasses.replace(how, num_samples=1, max_new_tokens=8))
    engine = Engine(f, num_slots=2, cache_size=40)
    requests = [engine.submit([1, 2, 3], 8, make_chooser(constraints, sample)) for sample in range(3)]
    while engine.step():
        pass
    assert [request.result() for request in requests] == continue_ids(f, [[1, 2, 3]], 8, how)


def test_a_listener_gets_the_tokens_instead_of_the_queue():
    f, how, heard = build_decoder("gpt2"), Options(temperature=0), []
    engine = Engine(f, num_slots=1, cache_size=40)
    engine.submit([1, 2, 3], 5, how, listener=lambda request, token: heard.append(token))
    while engine.step():
        pass
    assert heard == [*continue_ids(f, [[1, 2, 3]], 5, how)[0], None]


def test_functions_run_between_steps():
    with Engine(build_decoder("gpt2"), num_slots=1, cache_size=40) as engine:
        assert engine.run_between_steps(lambda: threading.current_thread()).result(10) is not threading.current_thread()
        with pytest.raises(ZeroDivisionError):
            engine.run_between_steps(lambda: 1 / 0).result(10)
        assert engine.submit([1], 3, Options(temperature=0)).result()


def test_attention_reads_no_more_slots_than_the_longest_request_has():
    """The cache's own bound grows by one with each step, whoever has ended meanwhile."""
    engine, how = Engine(build_decoder("gpt2"), num_slots=2, cache_size=40), Options(temperature=0)
    for _ in range(6):
        engine.submit([1, 2], 5, how)
        while engine.step():
            pass
        assert engine.runner.state.used_slots == 6  # all but the newest token


@pytest.mark.parametrize(("family", "more"), [("t5", {}), ("seq2seq", {"attention": "additive"})])
def test_cross_attention_reads_no_more_slots_than_the_longest_source_has(family, more):
    """Slots for sources follow the sources that are held, and not what the engine would hold at most."""
    f, how = build_decoder(family, **more), Options(temperature=0)
    engine, widths, short = Engine(f, num_slots=2, cache_size=1024), [], [5, 6, 7]
    sources = [short, [1 + i % 30 for i in range(300)], short, short]
    beside = engine.submit(short, 60, how)
    for source in sources:  # a long one joins a short one that is at work, and leaves again
        request = engine.submit(source, 3, how)
        while request in (*engine.waiting_requests, *engine.active_requests.values()):
            engine.step()
        widths.append(engine.runner.state[0].cross_kv[0].shape[1])
        assert request.result() == continue_ids(f, [source], 3, how)[0]
    assert widths == [64, 320, 64, 64]
    while engine.step():
        pass
    assert beside.result() == continue_ids(f, [short], 60, how)[0]


@pytest.mark.parametrize("family", ["bart", "t5", "gpt2"])
def test_a_request_joins_recorded_steps(family, monkeypatch):
    """A recorded step runs all rows of the cache, and only the active ones advance. No GPU is needed: the code around
    the recording runs, and every step is computed as usual."""
    monkeypatch.setattr(runner, "can_capture_graph", lambda former: True)
    graphed_step = runner.GraphedDecodeStep
    monkeypatch.setattr(runner, "GraphedDecodeStep", lambda: graphed_step(warm=2**62))
    f, how = build_decoder(family), Options(temperature=0)
    engine = Engine(f, num_slots=3, cache_size=64)
    requests = [engine.submit(prompt, 12, how) for prompt in PROMPTS[:2]]
    for _ in range(3):
        engine.step()
    requests.append(engine.submit(PROMPTS[2], 12, how))  # its slot was idle so far
    engine.step()
    cached = [len(request.token_ids) - 1 for request in requests]  # all but the newest token
    assert engine.runner.state.lengths.tolist() == cached
    while engine.step():
        pass
    monkeypatch.undo()
    assert [request.result() for request in requests] == [continue_ids(f, [p], 12, how)[0] for p in PROMPTS[:3]]


def test_a_cancelled_request_leaves_the_queue_while_all_slots_are_taken():
    engine = Engine(build_decoder("gpt2"), num_slots=1, cache_size=40)
    at_work, waiting = engine.submit([1], 30), [engine.submit([2], 5) for _ in range(3)]
    engine.step()
    waiting[1].cancel()
    engine.step()
    assert list(engine.waiting_requests) == [waiting[0], waiting[2]]
    assert waiting[1].result() == []
    assert engine.active_requests == {0: at_work}


def test_prompts_that_wait_are_read_together(monkeypatch):
    f, how = build_decoder("gpt2"), Options(temperature=0)
    engine, groups = Engine(f, num_slots=6, cache_size=40), []
    prefill = Engine.prefill_slots
    monkeypatch.setattr(Engine, "prefill_slots", lambda self, slots: groups.append(slots) or prefill(self, slots))
    monkeypatch.setattr("formers.generation.engine.PREFILL_TOKENS", 9)
    asked = [engine.submit(prompt, 4, how) for prompt in PROMPTS]
    while engine.step():
        pass
    assert groups == [[0, 1, 2], [3, 4, 5]]  # 3 + 1 + 5 tokens, then 2 + 4 + 1
    assert [r.result() for r in asked] == [continue_ids(f, [p], 4, how)[0] for p in PROMPTS]


def test_a_listener_that_fails_ends_its_request_alone():
    engine, ended = Engine(build_decoder("gpt2"), num_slots=2, cache_size=40), []

    def fail_on_token(request, token):
        if token is None:
            ended.append(request.error)
        else:
            raise ValueError("a reader's mistake")

    engine.submit([1], 9, Options(temperature=0), listener=fail_on_token)
    good = engine.submit([2], 9, Options(temperature=0))
    while engine.step():
        pass
    assert [type(error) for error in ended] == [ValueError]
    assert len(good.result()) == 9


def test_a_prompt_that_cannot_be_read_ends_its_request_alone(monkeypatch):
    engine, how = Engine(build_decoder("gpt2"), num_slots=3, cache_size=40), Options(temperature=0)
    prefill = Engine.prefill_slots

    def fail_on_seven(self, slots):
        if any(self.active_requests[slot].prompt_ids == [7] for slot in slots):
            raise RuntimeError("no memory")
        return prefill(self, slots)

    monkeypatch.setattr(Engine, "prefill_slots", fail_on_seven)
    first, bad, last = (engine.submit([i], 3, how) for i in (1, 7, 2))
    while engine.step():
        pass
    assert len(first.result()) == len(last.result()) == 3
    with pytest.raises(RuntimeError, match="no memory"):
        bad.result()


def test_stopping_says_that_a_text_is_not_whole():
    engine = Engine(build_decoder("gpt2"), num_slots=1, cache_size=40)
    active, waiting = (engine.submit([i], 30, Options(temperature=0)) for i in (1, 2))
    engine.step()
    engine._is_stopping = True
    engine.run_loop()
    for request in (active, waiting):
        with pytest.raises(Error, match="stopped before the text was finished"):
            request.result()
