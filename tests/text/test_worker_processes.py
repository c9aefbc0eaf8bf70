"""Work on other processes, in order and not too far ahead."""

from __future__ import annotations

import os
from concurrent.futures.process import BrokenProcessPool

import pytest

from formers.text.worker_processes import ProcessPool


def test_results_come_in_order_and_items_are_not_read_too_far_ahead():
    read = []

    def items():
        for number in range(9):
            read.append(number)
            yield -number

    with ProcessPool(2) as pool:
        for number, (item, job) in enumerate(pool.map_ahead(abs, items(), 3)):
            assert (item, job.result()) == (-number, number)
            assert len(read) <= number + 4
    assert number == 8


def test_a_process_that_dies_is_heard_of_with_every_item():
    with ProcessPool(1) as pool:
        jobs = [job for _, job in pool.map_ahead(os._exit, [1, 1, 1], 1)]
    assert len(jobs) == 3
    for job in jobs:
        with pytest.raises(BrokenProcessPool):
            job.result()
