"""Runs the jobs of a comparison: in this process one after the other, or in several worker processes at once. A job is
started when what it needs is done and when it can be expected to end within the time that is left."""

from __future__ import annotations

import json
import os
import queue
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from ..config import JSONObject, ProgressCallback
from ..errors import Error
from .jobs import PRIORITIES, Job, JobRunner, build_record
from .records import Record, RecordFolder

START_SECONDS = 20.0  # that a job without steps is expected to take, until some are done,
SETUP_SECONDS = 5.0  # and that one with steps takes beside them: it loads a model, opens files, saves
MARGIN = 1.15  # by which a job may take longer than expected
MAX_TRIES = 2  # of a job whose process ended
TRAINING_KINDS = ("search", "pretrain")  # jobs that take training steps of their family
STOP_SECONDS = 60.0  # that a worker has to save its run when it is asked to stop


@dataclass
class Outcome:
    """What became of the jobs of one call."""

    done: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)  # job → why
    failed: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)  # the next call resumes them
    postponed: list[str] = field(default_factory=list)  # no time was left for them
    blocked: dict[str, str] = field(default_factory=dict)  # job → the need that has no result


class TimeEstimator:
    """Expects how long a job takes: by the work of its run and the speed of its family, corrected by what jobs of its
    kind have taken so far. Where no speed was measured, by the steps of the family's earlier runs, else by the longest
    job of its kind, of its family if there is one. Only what was measured on this kind of device counts."""

    def __init__(self, runner: JobRunner, together: int):
        self.runner, self.together = runner, together
        self.ratios: dict[str, list[float]] = {}
        self.seconds: dict[str, list[float]] = {}
        self.family_seconds: dict[tuple[str, str | None], list[float]] = {}
        self.paces: dict[str, list[float]] = {}  # seconds of a step in the runs of a family, beside other jobs
        for record in runner.records.read_all():
            self.add(record)

    def add(self, record: Record) -> None:
        """Learn from a job that is done."""
        if record.status != "done" or not self.runner.is_of_this_machine(record):
            return
        self.seconds.setdefault(record.kind, []).append(record.seconds)
        self.family_seconds.setdefault((record.kind, record.family), []).append(record.seconds)
        pace = record.result.get("seconds_per_step")
        if record.kind in TRAINING_KINDS and record.family is not None and pace:
            self.paces.setdefault(record.family, []).append(pace)
        ideal = self.compute_work_seconds(record.kind, record.family, record.budget, record.task)
        if ideal:  # 0 says nothing: a job that reads no tokens
            rest = max(0.1, record.seconds - SETUP_SECONDS)
            self.ratios.setdefault(record.kind, []).append(rest / ideal)

    def compute_work_seconds(self, kind: str, family: str | None, budget: str | None, task: str | None) -> float | None:
        """Return the seconds that a run takes alone at the speed of its family's training steps; None if that is not
        known."""
        if family is None or not budget:
            return None
        speed = self.runner.records.read(f"speed/{family}")
        if speed is None or speed.status != "done" or not self.runner.is_of_this_machine(speed):
            return None
        try:
            return float(speed.result["seconds_per_step"]) * self.runner.count_work(kind, family, budget, task or "")
        except Error:  # a plan is missing, or a file of the task is not here
            return None

    def estimate(self, job: Job) -> float:
        """Return the seconds that a job is expected to take with `together` jobs at once."""
        ideal = self.compute_work_seconds(job.kind, job.family, job.budget, job.task)
        if ideal is not None:
            ratios = self.ratios.get(job.kind) or [1.0 + 0.6 * (self.together - 1)]
            return SETUP_SECONDS + ideal * statistics.median(ratios) * MARGIN
        if job.kind in TRAINING_KINDS and (paces := self.paces.get(job.family)):
            with suppress(Error):  # a plan is missing
                steps = self.runner.count_work(job.kind, job.family, job.budget, job.task)
                return START_SECONDS + statistics.median(paces) * steps * MARGIN  # it also compiles
        known = self.family_seconds.get((job.kind, job.family)) or self.seconds.get(job.kind)
        return max(known) if known else START_SECONDS

    def estimate_chain(self, job: Job, jobs: Sequence[Job], finished: Mapping[str, str]) -> float:
        """Return the seconds until a job and what builds on it alone are done, one after the other: a model that was
        pretrained is of use on another machine only by what was measured on it."""
        users = [other for other in jobs if job.name in other.needs and other.name not in finished]
        own = sum(self.estimate(other) for other in users) / self.together if job.kind == "pretrain" else 0.0
        return self.estimate(job) + own


class Worker:
    """A process that carries out one job at a time."""

    def __init__(self, number: int, folder: Path, device: str | None, threads: int | None, messages: MessageQueue):
        self.number, self.began, self.num_jobs = number, 0.0, 0
        self.job: Job | None = None
        self.is_stopping, self.stop_time = False, 0.0
        logs = folder / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        self.log = open(logs / f"worker{number}.log", "a", encoding="utf-8")  # noqa: SIM115
        environment = dict(os.environ)
        if threads is not None:
            environment |= {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        command = [sys.executable, "-m", "formers.comparison.worker", str(folder), *([device] if device else [])]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, encoding="utf-8",
            env=environment, start_new_session=True,
        )  # fmt: skip
        self.thread = threading.Thread(target=self.read_messages, args=(messages,), daemon=True, name="formers-compare")
        self.thread.start()

    def read_messages(self, messages: MessageQueue) -> None:
        """Pass on what the process says, and that it has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with suppress(ValueError):
                messages.put((self, json.loads(line)))
        messages.put((self, None))

    def start(self, job: Job, together: int) -> None:
        """Give the process a job."""
        self.job, self.began = job, time.monotonic()
        self.num_jobs += 1
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended, which the listener tells
            self.process.stdin.write(json.dumps({"job": job.name, "together": together}) + "\n")
            self.process.stdin.flush()

    def ask_to_stop(self) -> None:
        """Let the process save its run and end; one that has nothing to save ends at once."""
        self.is_stopping, self.stop_time = True, time.monotonic()
        with suppress(ProcessLookupError):
            self.process.terminate()

    def close(self) -> None:
        """End the process: an idle one by the end of its input."""
        with suppress(BrokenPipeError, OSError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        try:
            self.process.wait(5 if self.job is None else 0.1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.thread.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.log.close()


MessageQueue = queue.Queue[tuple[Worker, JSONObject | None]]


class Scheduler:
    """Runs jobs with `together` processes (0: in this one) until all are done or `minutes` are over. With `retry`,
    those that were refused before are tried again."""

    def __init__(
        self, runner: JobRunner, jobs: Sequence[Job], *, together: int = 1, minutes: float | None = None,
        retry: bool = False, say: Callable[[str], None] = lambda text: None, tell: ProgressCallback = lambda *_: None,
    ):  # fmt: skip
        self.runner, self.jobs, self.together, self.say, self.tell = runner, list(jobs), together, say, tell
        self.records = RecordFolder(runner.folder)
        self.deadline = None if minutes is None else time.monotonic() + 60 * minutes
        self.estimator = TimeEstimator(runner, max(1, together))
        self.outcome = Outcome()
        known = {job.name: self.records.read(job.name) for job in self.jobs}
        self.finished: dict[str, str] = {
            name: one.status for name, one in known.items()
            if one is not None and one.is_final and not (retry and one.status == "refused")
        }  # fmt: skip
        for job in self.jobs:  # a speed that was measured on another kind of device says nothing about this one
            if job.kind == "speed" and (one := known[job.name]) is not None and not runner.is_of_this_machine(one):
                self.finished.pop(job.name, None)
        for job in reversed(self.jobs):  # what was done elsewhere is done again if something that is open needs it
            if self.finished.get(job.name) == "done" and not runner.has_output(job):
                users = (other for other in self.jobs if job.name in other.needs)
                if any(other.name not in self.finished for other in users):
                    del self.finished[job.name]
        self.family_order = {name: number for number, name in enumerate(dict.fromkeys(job.family for job in self.jobs))}
        self.total, self.num_done = len(self.jobs), len(self.finished)
        self.tries: Counter[str] = Counter()

    def get_time_left(self) -> float:
        """Return the seconds until the deadline."""
        return float("inf") if self.deadline is None else self.deadline - time.monotonic()

    def find_missing_need(self, job: Job) -> str | None:
        """Return a need of a job that has no result and never will in this call. Of the trials of a learning rate, one
        with a result is enough."""
        trials = [need for need in job.needs if need.startswith(("search/", "tune-search/"))]
        for need in job.needs:
            lost = self.finished.get(need) == "refused" or need in self.outcome.failed or need in self.outcome.blocked
            if lost and not (need in trials and len(trials) > 1 and job.kind in ("pretrain", "tune")):
                return need
        if trials and all(self.finished.get(need) == "refused" for need in trials):
            return trials[0]
        return None

    def is_ready(self, job: Job) -> bool:
        """Return whether all that a job needs has been tried."""
        return all(need in self.finished for need in job.needs)

    def list_open_jobs(self, running: Sequence[Job]) -> list[Job]:
        """List the jobs that could be started now, in the order in which they should be."""
        busy = {job.name for job in running}
        for job in self.jobs:
            if job.name in self.finished or job.name in busy or job.name in self.outcome.blocked:
                continue
            if (need := self.find_missing_need(job)) is not None:
                self.outcome.blocked[job.name] = need
        closed = {*self.finished, *busy, *self.outcome.blocked, *self.outcome.failed}
        ready = [job for job in self.jobs if job.name not in closed and self.is_ready(job)]
        late = {job.name for job in ready if self.deadline is not None and self.ends_late(job)}
        return sorted(
            ready,
            key=lambda job: (job.name in late, PRIORITIES.index(job.kind), self.family_order[job.family], job.seed),
        )

    def ends_late(self, job: Job) -> bool:
        """Return whether a job, with what is measured on its model, cannot be expected to end before the deadline:
        whatever can comes before it."""
        return self.estimator.estimate_chain(job, self.jobs, self.finished) > self.get_time_left()

    def choose_job(self, running: Sequence[Job]) -> Job | None:
        """Choose the next job: one that can be expected to end in time, and alone if it is exclusive."""
        if any(job.is_exclusive for job in running):
            return None
        for job in self.list_open_jobs(running):
            if self.estimator.estimate(job) > self.get_time_left():
                if job.name not in self.outcome.postponed:
                    self.outcome.postponed.append(job.name)
                continue
            if job.is_exclusive and running:
                return None  # nothing new begins, so that it gets its turn
            return job
        return None

    def note_result(self, job: Job, status: str, error: str, seconds: float) -> None:
        """Note what became of a job, and say it."""
        if job.name in self.outcome.postponed:
            self.outcome.postponed.remove(job.name)
        if status == "stopped":
            self.outcome.stopped.append(job.name)
            return self.say(f"{job.name}: stopped, and saved as far as it was")
        if status == "failed":
            self.tries[job.name] += 1
            if self.tries[job.name] >= MAX_TRIES:
                self.outcome.failed[job.name] = error
                self.records.write(build_record(job, "failed", seconds, error))
            return self.say(f"{job.name}: failed ({error})")
        self.finished[job.name] = status
        self.num_done += 1
        if status == "refused":
            self.outcome.refused[job.name] = error
            self.say(f"{job.name}: not possible: {error}")
        else:
            self.outcome.done.append(job.name)
            if (record := self.records.read(job.name)) is not None:
                self.estimator.add(record)
            self.say(f"{job.name}: done in {seconds:.0f} s")
        self.tell("jobs", self.num_done, self.total, job.name)
        return None

    def run(self) -> Outcome:
        """Run all jobs that can be run."""
        self.tell("jobs", self.num_done, self.total, "")
        return self.run_here() if self.together == 0 else self.run_in_workers()

    def run_here(self) -> Outcome:
        """Run one job after the other in this process."""
        while (job := self.choose_job([])) is not None:
            record = self.runner.run(job, self.tell)
            if record is None:
                self.note_result(job, "stopped", "", 0.0)
                raise Error("the comparison was stopped", where=self.runner.folder, fix="the same call continues it")
            self.note_result(job, record.status, record.error, record.seconds)
        return self.outcome

    def run_in_workers(self) -> Outcome:
        """Run several jobs at once. Ctrl-C lets the workers save."""
        messages: MessageQueue = queue.Queue()
        workers: list[Worker] = []
        try:
            while True:
                self.start_jobs(workers, messages)
                busy = [worker for worker in workers if worker.job is not None]
                if not busy:
                    return self.outcome
                self.stop_late(busy)
                with suppress(queue.Empty):
                    self.handle_message(workers, *messages.get(timeout=0.5))
        except KeyboardInterrupt:
            self.say("stopping: the runs save their state")
            self.stop_all(workers, messages)
            what = "the comparison was stopped"
            raise Error(what, where=self.runner.folder, fix="the same command continues it") from None
        finally:
            for worker in workers:
                worker.close()

    def start_jobs(self, workers: list[Worker], messages: MessageQueue) -> None:
        """Give jobs to idle workers, and start workers while there is more to do."""
        while True:
            running = [worker.job for worker in workers if worker.job is not None]
            if len(running) >= self.together or (job := self.choose_job(running)) is None:
                return
            idle = [worker for worker in workers if worker.job is None and not worker.is_stopping]
            if job.is_exclusive and self.runner.device in (None, "cpu") and not has_gpu():
                for worker in idle:  # a process that has done nothing else: on a CPU its peak of memory is counted
                    if worker.num_jobs:
                        worker.close()
                        workers.remove(worker)
                idle = [worker for worker in workers if worker.job is None and not worker.is_stopping]
            if not idle:
                number = len(workers)
                workers.append(
                    Worker(number, self.runner.folder, self.runner.device, self.count_threads(job), messages)
                )
                idle = workers[-1:]
            idle[0].start(job, len(running) + 1)

    def count_threads(self, job: Job) -> int | None:
        """Return the threads of a worker, so that all together have as many as there are cores."""
        if self.together == 1 or "OMP_NUM_THREADS" in os.environ:
            return None
        return max(1, (os.cpu_count() or 1) // self.together)

    def stop_late(self, busy: Sequence[Worker]) -> None:
        """Stop workers at the deadline: their runs are saved, and killed if that takes too long."""
        for worker in busy if self.get_time_left() <= 0 else ():
            if not worker.is_stopping:
                worker.ask_to_stop()
            elif time.monotonic() - worker.stop_time > STOP_SECONDS:
                worker.process.kill()

    def stop_all(self, workers: Sequence[Worker], messages: MessageQueue) -> None:
        """Let all workers save their runs and end."""
        busy = [worker for worker in workers if worker.job is not None]
        for worker in busy:
            worker.ask_to_stop()
        until = time.monotonic() + STOP_SECONDS
        while any(worker.process.poll() is None for worker in busy) and time.monotonic() < until:
            with suppress(queue.Empty):
                messages.get(timeout=0.2)

    def handle_message(self, workers: list[Worker], worker: Worker, message: JSONObject | None) -> None:
        """Handle what a worker says, or that it has ended."""
        job = worker.job
        if message is None:
            if worker in workers:
                workers.remove(worker)
                worker.job = None
                worker.close()
            if job is not None:
                code = worker.process.returncode
                status = "stopped" if worker.is_stopping else "failed"
                self.note_result(job, status, f"the process ended with code {code}", time.monotonic() - worker.began)
            return
        if "tell" in message and job is not None:
            what, done, of, detail = message["tell"]
            self.tell(f"{job.name} {what}", done, of, detail)
        if "status" in message and job is not None:
            worker.job = None
            seconds = time.monotonic() - worker.began
            self.note_result(job, str(message["status"]), str(message.get("error") or ""), seconds)
            if message["status"] in ("failed", "stopped"):
                worker.is_stopping = True  # it is about to end


def has_gpu() -> bool:
    """Return whether jobs run on a GPU unless another device is named."""
    import torch

    return torch.cuda.is_available()
