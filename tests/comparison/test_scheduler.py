"""Jobs run in the order of their needs, and none is started that cannot end in time."""

from __future__ import annotations

import pytest

from formers.comparison.jobs import Job, build_record, list_jobs, measure_pace
from formers.comparison.records import RecordFolder
from formers.comparison.scheduler import Scheduler
from formers.comparison.settings import CompareConfig


class ToyRunner:
    """Pretends to carry out jobs; `refused` names those that the library cannot do."""

    device = "cpu"

    def __init__(self, folder, refused=(), lost=(), machine="cpu"):
        self.machine = machine
        self.folder, self.records, self.refused, self.order = folder, RecordFolder(folder), refused, []
        self.lost = lost  # jobs whose files are gone

    def has_output(self, job):
        return job.name not in self.lost

    def is_of_this_machine(self, record):
        return record.machine["device"] == self.machine

    def count_work(self, kind, family, budget, task):
        return 0.0 if (kind, family) == ("score", "t5") else {"pretrain": 100, "search": 10}.get(kind, 50)

    def run(self, job, tell=None, together=1):
        self.order.append(job.name)
        record = build_record(
            job, "refused" if job.name in self.refused else "done", 1.0, "", {"seconds_per_step": 0.01},
            {"device": self.machine},
        )  # fmt: skip
        self.records.write(record)
        return record


CONFIG = CompareConfig(families=("bert", "gpt2"), tasks={}, budgets=("epochs:1", "flops:bert"), headline=("gpt2",))


def test_needs_come_first_and_nothing_twice(tmp_path):
    runner, jobs = ToyRunner(tmp_path), list_jobs(CONFIG)
    outcome = Scheduler(runner, jobs, together=0).run()
    assert sorted(runner.order) == sorted(job.name for job in jobs) == sorted(outcome.done)
    place = {name: number for number, name in enumerate(runner.order)}
    assert all(place[need] < place[job.name] for job in jobs for need in job.needs)
    assert sum(name.startswith("pretrain/") for name in runner.order) == 2 * (1 + 3)
    again = ToyRunner(tmp_path)
    assert Scheduler(again, jobs, together=0).run().done == []
    assert again.order == []
    more = list_jobs(CompareConfig.from_dict({**CONFIG.to_dict(), "families": ("bert", "gpt2", "t5")}))
    Scheduler(again, more, together=0).run()
    assert again.order
    assert all("t5" in name for name in again.order)


def test_records_from_elsewhere_are_enough_for_what_is_complete(tmp_path):
    """The stores are made again for a family that is added, and nothing else of the others."""
    jobs = list_jobs(CONFIG)
    Scheduler(ToyRunner(tmp_path), jobs, together=0).run()
    lost = {job.name for job in jobs if job.kind in ("data", "pretrain")}
    again = ToyRunner(tmp_path, lost=lost)
    assert Scheduler(again, jobs, together=0).run().done == []
    more = list_jobs(CompareConfig.from_dict({**CONFIG.to_dict(), "families": ("bert", "gpt2", "gpt3")}))
    Scheduler(again, more, together=0).run()
    assert "data/gpt2-bpe" in again.order, "GPT-3 reads what GPT-2 reads"
    assert all("gpt3" in name for name in again.order if name != "data/gpt2-bpe")


def test_families_are_finished_one_by_one(tmp_path):
    """So that a comparison that runs out of time has complete families."""
    runner = ToyRunner(tmp_path)
    Scheduler(runner, list_jobs(CONFIG), together=0).run()
    place = {name: number for number, name in enumerate(runner.order)}
    assert place["score/epochs-1/bert/seed0"] < place["pretrain/epochs-1/gpt2/seed0"]


def test_stores_are_made_again_for_a_race_that_was_cut(tmp_path):
    """The plans were brought along, the stores were not, and some models are not pretrained yet."""
    jobs = list_jobs(CONFIG)
    first = ToyRunner(tmp_path)
    Scheduler(first, [job for job in jobs if job.kind in ("data", "plan", "speed")], together=0).run()
    lost = {job.name for job in jobs if job.kind in ("data", "pretrain")}
    again = ToyRunner(tmp_path, lost=lost)
    Scheduler(again, jobs, together=0).run()
    assert {"data/bert-bpe", "data/gpt2-bpe"} <= set(again.order)
    assert not any(name.startswith("plan/") for name in again.order)
    place = {name: number for number, name in enumerate(again.order)}
    assert place["data/gpt2-bpe"] < place["search/gpt2/x1"]


def test_a_refused_job_is_tried_again_on_request(tmp_path):
    jobs = list_jobs(CONFIG)
    Scheduler(ToyRunner(tmp_path, {"plan/bert"}), jobs, together=0).run()
    again = ToyRunner(tmp_path)
    assert not Scheduler(again, jobs, together=0).run().done
    assert "plan/bert" in Scheduler(again, jobs, together=0, retry=True).run().done


def test_what_needs_a_refused_job_is_blocked(tmp_path):
    runner = ToyRunner(tmp_path, {"plan/bert", "search/gpt2/x0.5"})
    outcome = Scheduler(runner, list_jobs(CONFIG), together=0).run()
    assert outcome.blocked["pretrain/epochs-1/bert/seed0"] == "plan/bert"
    assert "pretrain/epochs-1/gpt2/seed0" in outcome.done, "two of three learning rates have a result"
    assert outcome.blocked["pretrain/flops-bert/gpt2/seed0"] == "plan/bert", "the budget is counted by it"


@pytest.mark.parametrize(("minutes", "started"), [(0.01, 0), (5.0, 2)])
def test_nothing_is_started_that_cannot_end_in_time(tmp_path, minutes, started):
    jobs = [Job("plan/bert", "plan", "bert"), Job("plan/gpt2", "plan", "gpt2")]
    runner = ToyRunner(tmp_path)
    outcome = Scheduler(runner, jobs, together=0, minutes=minutes).run()
    assert len(runner.order) == started
    assert len(outcome.postponed) == 2 - started


def test_estimates_learn_from_records(tmp_path):
    runner = ToyRunner(tmp_path)
    machine = {"device": "cpu"}
    runner.records.write(build_record(Job("plan/t5", "plan", "t5"), "done", 90.0, "", machine=machine))
    jobs = [Job("plan/bert", "plan", "bert")]
    assert Scheduler(runner, jobs, together=0, minutes=1.0).run().postponed == ["plan/bert"]
    assert Scheduler(runner, jobs, together=0, minutes=2.0).run().done == ["plan/bert"]


def test_a_slow_family_does_not_hold_up_the_others(tmp_path):
    """Without measured speeds, the steps of a family's own runs say how long its next one takes."""
    runner, machine = ToyRunner(tmp_path), {"device": "cpu"}
    for family, pace in (("elmo", 5.0), ("gpt2", 0.1)):
        record = Job(f"search/{family}/x1", "search", family, (), "a")
        runner.records.write(build_record(record, "done", 12 * pace, "", {"seconds_per_step": pace}, machine))
    slow, fast, unknown = (Job(f"pretrain/a/{f}/seed0", "pretrain", f, (), "a") for f in ("elmo", "gpt2", "bert"))
    estimator = Scheduler(runner, [slow, fast], together=0).estimator
    assert estimator.estimate(slow) == pytest.approx(20 + 1.15 * 500)
    assert estimator.estimate(fast) == pytest.approx(20 + 1.15 * 10)
    assert estimator.estimate(unknown) == 20
    runner.records.write(build_record(slow, "done", 600.0, "", {"seconds_per_step": 5.0}, machine))
    estimator = Scheduler(runner, [slow, fast], together=0).estimator
    assert estimator.estimate(fast) < 60
    assert estimator.estimate(unknown) == 600, "the longest of its kind"


def test_the_pace_of_a_run_leaves_out_its_start():
    rows = [{"step": n + 1, "seconds": 60.0 + 0.5 * n} for n in range(30)]  # a minute to compile
    assert measure_pace(rows) == pytest.approx(0.5)
    assert measure_pace(rows[:5]) is None
    assert measure_pace(rows[:1]) is None


def test_a_job_that_reads_nothing_says_nothing_about_others(tmp_path):
    """The bits of an encoder-decoder are not scored: the seconds of such a job are not those of its tokens."""
    runner = ToyRunner(tmp_path)
    for family in ("t5", "gpt2"):
        runner.run(Job(f"speed/{family}", "speed", family))
    job = Job("score/gpt2", "score", "gpt2", budget="epochs-1")
    before = Scheduler(runner, [job], together=0).estimator.estimate(job)
    runner.run(Job("score/t5", "score", "t5", budget="epochs-1"))
    assert Scheduler(runner, [job], together=0).estimator.estimate(job) == before


def test_times_of_another_kind_of_device_say_nothing(tmp_path):
    """A plan that was made on a CPU goes to a GPU: only the speeds are measured again, and no estimate knows the
    CPU's."""
    jobs = [job for job in list_jobs(CONFIG) if job.kind in ("data", "plan", "speed")]
    Scheduler(ToyRunner(tmp_path), jobs, together=0).run()
    gpu = ToyRunner(tmp_path, machine="cuda")
    scheduler = Scheduler(gpu, jobs, together=0)
    assert scheduler.estimator.seconds == {}
    assert scheduler.estimator.compute_work_seconds("pretrain", "bert", "epochs-1", None) is None
    scheduler.run()
    assert sorted(gpu.order) == ["speed/bert", "speed/gpt2"]
    assert scheduler.estimator.compute_work_seconds("pretrain", "bert", "epochs-1", None) == pytest.approx(1.0)


def test_what_can_be_finished_is_begun_before_what_cannot(tmp_path):
    """A model that is not measured in time is of no use where only records leave the machine."""
    jobs = [job for job in list_jobs(CONFIG) if job.kind in ("data", "plan", "speed")]
    runner = ToyRunner(tmp_path)
    Scheduler(runner, jobs, together=0).run()
    long, short = Job("pretrain/a/bert/seed0", "pretrain", "bert", (), "a"), Job("search/b", "search", "gpt2", (), "a")
    users = [Job(f"tune/a/bert/seed0/{n}", "tune", "bert", (long.name,), "a") for n in range(40)]
    late = Scheduler(runner, [long, short, *users], together=0, minutes=1.0)
    assert late.list_open_jobs([])[0] == short
    early = Scheduler(runner, [long, short, *users], together=0, minutes=100.0)
    assert early.list_open_jobs([])[0] == long


def test_speed_is_measured_alone(tmp_path):
    jobs = list_jobs(CONFIG)
    scheduler = Scheduler(ToyRunner(tmp_path), jobs, together=4)
    for job in jobs:
        if job.kind in ("data", "plan"):
            scheduler.finished[job.name] = "done"
    speed = scheduler.choose_job([])
    assert speed is not None
    assert speed.kind == "speed"
    assert scheduler.choose_job([speed]) is None
    plan = next(job for job in jobs if job.kind == "plan")
    assert scheduler.choose_job([plan]) is None, "it waits for its turn"
