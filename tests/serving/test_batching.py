"""Batches of texts from different requests: what shares one, what waits, what fails alone."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from formers.cli.serve import SPIN_COUNT, SPIN_VARIABLES
from formers.serving.batching import BatchScheduler
from formers.serving.responses import Overloaded


class Recorder:
    """A function for batches that doubles numbers, records what it gets, and can be held."""

    def __init__(self):
        self.batches, self.gate = [], threading.Event()
        self.gate.set()

    def __call__(self, operation, inputs):
        self.gate.wait(60)
        self.batches.append((operation, list(inputs)))
        if -1 in inputs:
            raise ValueError("a bad input")
        return [2 * one for one in inputs]


@pytest.fixture
def recorder():
    return Recorder()


@pytest.fixture
def scheduler(recorder):
    scheduler = BatchScheduler(recorder, max_tokens=10, max_waiting=5)
    yield scheduler
    recorder.gate.set()
    scheduler.stop()


def hold_first(scheduler, recorder):
    """Let one batch begin and hold it, so that what comes next waits together."""
    recorder.gate.clear()
    first = scheduler.submit("first", [0], [1])
    while scheduler.waiting:
        time.sleep(0.001)
    return first


def test_waiting_requests_share_a_batch_up_to_the_budget(scheduler, recorder):
    hold_first(scheduler, recorder)
    tickets = [scheduler.submit("a", [1, 2], [2, 2]), scheduler.submit("a", [3], [5]), scheduler.submit("a", [4], [3])]
    recorder.gate.set()
    assert [one.future.result(60) for one in tickets] == [[2, 4], [6], [8]]
    assert recorder.batches[1:] == [("a", [1, 2, 3]), ("a", [4])]


def test_a_request_beyond_the_budget_is_split_and_not_refused(scheduler, recorder):
    ticket = scheduler.submit("a", list(range(1, 9)), [4] * 8)
    assert ticket.future.result(60) == [2 * one for one in range(1, 9)]
    assert [len(inputs) for _, inputs in recorder.batches] == [2, 2, 2, 2]


def test_a_text_longer_than_the_budget_is_a_batch_of_its_own(scheduler, recorder):
    hold_first(scheduler, recorder)
    tickets = [scheduler.submit("a", [1], [50]), scheduler.submit("a", [2], [1])]
    recorder.gate.set()
    assert [one.future.result(60) for one in tickets] == [[2], [4]]
    assert recorder.batches[1:] == [("a", [1]), ("a", [2])]


def test_different_operations_do_not_mix(scheduler, recorder):
    hold_first(scheduler, recorder)
    tickets = [scheduler.submit(name, [at], [1]) for at, name in enumerate("abab", 1)]
    recorder.gate.set()
    assert [one.future.result(60) for one in tickets] == [[2], [4], [6], [8]]
    assert recorder.batches[1:] == [("a", [1, 3]), ("b", [2, 4])]


def test_only_the_request_at_fault_fails(scheduler, recorder):
    hold_first(scheduler, recorder)
    tickets = [scheduler.submit("a", [1], [1]), scheduler.submit("a", [2, -1], [1, 1]), scheduler.submit("a", [3], [1])]
    recorder.gate.set()
    assert tickets[0].future.result(60) == [2]
    with pytest.raises(ValueError, match="bad input"):
        tickets[1].future.result(60)
    assert tickets[2].future.result(60) == [6]


def test_too_many_waiting_requests_are_refused(scheduler, recorder):
    hold_first(scheduler, recorder)
    for _ in range(5):
        scheduler.submit("a", [1], [1])
    with pytest.raises(Overloaded) as refused:
        scheduler.submit("a", [1], [1])
    assert (refused.value.status, refused.value.retry_after) == (429, 1)


def test_requests_whose_clients_are_gone_hold_no_place_in_the_queue(scheduler, recorder):
    hold_first(scheduler, recorder)
    gone = [scheduler.submit("a", [1], [1]) for _ in range(5)]
    for one in gone[1:]:
        one.cancel()
    late = scheduler.submit("a", [7], [1])
    recorder.gate.set()
    assert (gone[0].future.result(60), late.future.result(60)) == ([2], [14])
    assert recorder.batches[1:] == [("a", [1, 7])]


def test_the_times_of_a_request_are_told_once_also_if_it_is_split(recorder):
    told, batches = [], []
    scheduler = BatchScheduler(
        recorder, max_tokens=2, on_batch=lambda *sizes: batches.append(sizes), on_answer=lambda *s: told.append(s)
    )
    assert scheduler.submit("a", [1, 2, 3], [1, 1, 1]).future.result(60) == [2, 4, 6]
    with pytest.raises(ValueError, match="bad input"):
        scheduler.submit("a", [-1], [1]).future.result(60)
    scheduler.stop()
    assert batches == [(2, 2), (1, 1)]
    assert len(told) == 1
    assert all(seconds >= 0 for seconds in told[0])


def test_a_cancelled_request_is_not_computed(scheduler, recorder):
    hold_first(scheduler, recorder)
    gone, kept = scheduler.submit("a", [1], [1]), scheduler.submit("a", [2], [1])
    gone.cancel()
    recorder.gate.set()
    assert kept.future.result(60) == [4]
    assert recorder.batches[1:] == [("a", [2])]


def test_a_batch_waits_only_while_others_are_on_the_way(recorder):
    expected, order = threading.Event(), []
    expected.set()
    scheduler = BatchScheduler(recorder, max_tokens=10, max_delay=60.0, expects_more=expected.is_set)
    first = scheduler.submit("a", [1], [1])
    time.sleep(0.02)
    order.append(first.future.done())
    second = scheduler.submit("a", [2], [1])
    expected.clear()
    assert (first.future.result(60), second.future.result(60)) == ([2], [4])
    assert order == [False]
    assert recorder.batches == [("a", [1, 2])]
    scheduler.stop()


def test_stopping_computes_what_waits(recorder):
    scheduler = BatchScheduler(recorder)
    hold_first(scheduler, recorder)
    waiting = scheduler.submit("a", [1], [1])
    threading.Timer(0.02, recorder.gate.set).start()
    scheduler.stop()
    assert waiting.future.result(0) == [2]
    with pytest.raises(Overloaded):
        scheduler.submit("a", [1], [1])


@pytest.mark.parametrize("variable", ["GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OTHER"])
def test_idle_threads_of_torch_are_told_before_it_is_imported(variable):
    code = "import sys, os; from formers.cli.serve import limit_spinning; assert 'torch' not in sys.modules; "
    code += "limit_spinning(); print(os.environ.get('GOMP_SPINCOUNT'))"
    environment = {name: value for name, value in os.environ.items() if name not in SPIN_VARIABLES}
    done = subprocess.run(
        [sys.executable, "-c", code], env={**environment, variable: "7"}, capture_output=True, text=True, check=True
    )
    want = {"GOMP_SPINCOUNT": "7", "OMP_WAIT_POLICY": "None"}.get(variable, SPIN_COUNT)  # what a user sets is kept
    assert done.stdout.strip() == want
