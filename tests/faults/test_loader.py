"""Row 9, loader workers: one is killed at any moment; nobody hangs, nothing is left, the rest is read from there."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time

import numpy as np
import pytest

from formers import Error, Store
from formers.data.loader import load_batches
from formers.data.plans import TokenSource
from formers.objectives.causal import CausalLM

PATIENCE = 60  # seconds without a word are a hang
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGUSR1)


class Uneven(CausalLM):
    """Some batches take a while, so that a worker may be hit at work, idle, or while it hands over."""

    def corrupt(self, raw, seed):
        time.sleep(0.02 if raw.sample[0] % 3 == 0 else 0)
        return super().corrupt(raw, seed)


class Hang(BaseException):
    """Nothing came for too long."""


@pytest.fixture
def alarm():
    """Hangs become errors; a call in the main thread is interrupted."""

    def rang(*_):
        raise Hang

    before = signal.signal(signal.SIGALRM, rang)
    yield lambda: signal.alarm(PATIENCE)
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def get_content(batch, position):
    return batch.ids.tobytes(), batch.sample.tobytes(), position


def read_and_kill(made, goal, dice, alarm):
    """Read, kill one worker, read on. What was read, the last position, and whether the death was noticed."""
    how = {"workers": dice.randint(1, 3), "prefetch": dice.choice([None, 1, 8]), "epochs": 1, "seed": 5}
    run, read, position = load_batches(TokenSource(made, goal), 40, **how), [], 0
    moment, chosen, noticed = dice.randrange(1, 20), dice.choice(SIGNALS), False
    try:
        while True:
            alarm()
            batch, position = next(run)
            read.append(get_content(batch, position))
            if len(read) == moment:
                time.sleep(dice.choice([0, 0.001, 0.01, 0.05]))
                victim = dice.choice([process.pid for process in multiprocessing.active_children()])
                os.kill(victim, chosen)
    except Error as error:
        noticed = f"{victim} was ended by signal {chosen.value} ({chosen.name})" in str(error)
    except StopIteration:
        pass  # it died when its work was done
    assert not multiprocessing.active_children()
    return read, position, noticed


@pytest.mark.parametrize("count", [2, pytest.param(20, marks=pytest.mark.full)])
def test_a_worker_is_killed(count, alarm):
    made = Store(np.arange(3000, dtype=np.uint16) % 100, np.array([0, 1200, 3000]), 100, "x")
    goal = Uneven(9)
    alarm()
    whole = [get_content(*one) for one in load_batches(TokenSource(made, goal), 40, seed=5, epochs=1)]
    noticed = 0
    for number in range(count):
        dice = random.Random(number)
        read, position, dead = read_and_kill(made, goal, dice, alarm)
        alarm()
        rest = load_batches(
            TokenSource(made, goal), 40, seed=5, epochs=1, position=position, workers=dice.randint(0, 2)
        )
        assert read + [get_content(*one) for one in rest] == whole
        noticed += dead
    print(
        f"row 9: {count} loader workers killed, {noticed} deaths noticed at once, 0 hangs, 0 batches lost or repeated"
    )
    assert noticed >= count / 2
