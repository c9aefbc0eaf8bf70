"""The jobs of a comparison: which there are, what each needs, and how it is carried out. Each is done once."""

from __future__ import annotations

import gc
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from ..config import JSONObject, ProgressCallback, Settings
from ..data.text_files import read_chunks
from ..errors import Error
from ..evaluation.api import evaluate_pairs, evaluate_perplexity, find_pair_columns, read_pairs
from ..evaluation.metrics import to_cost
from ..former import choose_device
from ..interop.model_directory import load
from ..registry import find_family
from ..tasks.example_tables import FileOptions
from ..text.sentences import split_sentences
from ..training.distributed.process_group import ProcessGroup
from ..training.hardware import describe_hardware
from ..training.run_folder import RunFolder
from ..training.runs.finetune import finetune
from ..training.runs.pretrain import pretrain
from .corpus import prepare_form, read_part
from .members import configure_member, count_steps, list_data_settings, measure_speed, plan_member
from .records import Record, RecordFolder, Status
from .settings import CompareConfig, choose_text_form, classify_family

KINDS = ("data", "plan", "speed", "search", "pretrain", "score", "tune-search", "tune")  # in the order of the work
# What is begun first where several can be: all is planned, then what has been begun is finished, so that a comparison
# that runs out of time has complete families.
PRIORITIES = ("data", "plan", "speed", "tune", "tune-search", "score", "pretrain", "search")
MAX_CURVE_POINTS = 60
MIN_SEARCH_STEPS = 10
TOKEN_BYTES = 3.5  # of a piece, about: estimates of time alone depend on it
WARMUP_ROWS = 8  # steps that say nothing about the pace of a run
READING_SHARE = 1 / 3  # of a training step that a forward pass takes
STOPPED_CODES = (129, 130, 143)  # exit codes of runs that were asked to stop, and have saved


@dataclass(frozen=True)
class Job:
    """One piece of work; its name is that of its record."""

    name: str
    kind: str
    family: str
    needs: tuple[str, ...] = ()
    budget: str = ""
    seed: int = 0
    task: str = ""
    factor: float = 1.0

    @property
    def is_exclusive(self) -> bool:
        """Whether nothing else may run meanwhile: speed is measured alone."""
        return self.kind == "speed"


def list_jobs(config: CompareConfig) -> list[Job]:
    """List all jobs of a comparison, those that others need first."""
    jobs: dict[str, Job] = {}
    for family in config.families:
        for job in list_family_jobs(family, config):
            jobs.setdefault(job.name, job)
    return sorted(jobs.values(), key=lambda job: KINDS.index(job.kind))


def list_family_jobs(family: str, config: CompareConfig) -> Iterator[Job]:
    """Yield the jobs of one family."""
    data, plan, speed = f"data/{choose_text_form(family).name}", f"plan/{family}", f"speed/{family}"
    yield Job(data, "data", family)
    yield Job(plan, "plan", family, (data,))
    if config.measure_speed:
        yield Job(speed, "speed", family, (data, plan))
    ready = (data, plan, *([speed] if config.max_minutes is not None else []))
    searched = tuple(f"search/{family}/x{factor:g}" for factor in config.lr_factors)
    first = config.parsed_budgets[0].name
    if len(searched) == 1:
        searched = ()
    for name, factor in zip(searched, config.lr_factors, strict=False):
        yield Job(name, "search", family, ready, first, factor=factor)
    tuned: dict[str, tuple[str, ...]] = {}
    for task in config.tasks if len(config.lr_factors) > 1 else ():
        names = {factor: f"tune-search/{task}/{family}/x{factor:g}" for factor in config.lr_factors}
        start = f"pretrain/{first}/{family}/seed0"
        reference = f"tune-search/{task}/{family}/x1"
        yield Job(reference, "tune-search", family, (start,), first, 0, task)
        for factor, name in names.items():
            if name != reference:
                yield Job(name, "tune-search", family, (start, reference), first, 0, task, factor)
        tuned[task] = tuple(names.values())
    for budget in config.parsed_budgets:
        other: tuple[str, ...] = (f"plan/{budget.family}",) if budget.family else ()
        if budget.family and config.max_minutes is not None:
            other += (f"speed/{budget.family}",)
        for seed in range(config.count_seeds(family)):
            run = f"{budget.name}/{family}/seed{seed}"
            needs = (*ready, *searched, *other)
            yield Job(f"pretrain/{run}", "pretrain", family, needs, budget.name, seed)
            yield Job(f"score/{run}", "score", family, (f"pretrain/{run}",), budget.name, seed)
            for task in config.tasks:
                needs = (f"pretrain/{run}", *tuned.get(task, ()))
                yield Job(f"tune/{run}/{task}", "tune", family, needs, budget.name, seed, task)


class JobRunner:
    """Carries jobs out, in this process."""

    def __init__(self, folder: Path, config: CompareConfig, device: str | None = None):
        self.folder, self.config, self.device = folder, config, device
        self.records = RecordFolder(folder)
        self.task_sizes: dict[str, tuple[int, int]] = {}  # rows and bytes of files, measured once
        self.actions: dict[str, Callable[[Job, ProgressCallback], JSONObject]] = {
            "data": self.prepare_text, "plan": self.plan, "speed": self.time, "search": self.search,
            "pretrain": self.pretrain, "score": self.score, "tune-search": self.search_tuning, "tune": self.tune,
        }  # fmt: skip

    def run(self, job: Job, tell: ProgressCallback = lambda *_: None, together: int = 1) -> Record | None:
        """Carry a job out and write its record; None if it was asked to stop, and can be resumed. What the library
        cannot do, and what diverged, is a record too."""
        began, status, error = time.perf_counter(), "done", ""
        result: JSONObject = {}
        try:
            result = self.actions[job.kind](job, tell)
        except Error as refusal:
            if refusal.exit_code in STOPPED_CODES:
                return None
            status, error = "refused", str(refusal)
        finally:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        machine = result.pop("machine", None) or dict(self.hardware)
        seconds = round(time.perf_counter() - began, 3)
        record = build_record(job, "done" if status == "done" else "refused", seconds, error, result, machine, together)
        self.records.write(record)
        return record

    @cached_property
    def hardware(self) -> JSONObject:
        """The machine, as a record describes it."""
        machine = describe_hardware(ProcessGroup(device=choose_device(self.device)))
        machine.pop("command")
        return machine

    def get_run_path(self, job: Job) -> Path:
        """Return the folder of a job's training run."""
        return self.folder / "runs" / job.name

    def has_output(self, job: Job) -> bool:
        """Return whether the files that other jobs need of a job that is done are here: records alone may have been
        brought from another machine."""
        if job.kind == "data":
            return (self.folder / "data" / choose_text_form(job.family).name / "store" / "store.json").is_file()
        return job.kind != "pretrain" or (self.get_run_path(job) / "model").is_dir()

    def is_of_this_machine(self, record: Record) -> bool:
        """Return whether a record's times were taken on such a device as jobs run on now."""
        return all(record.machine.get(name) == self.hardware[name] for name in ("device", "name"))

    def prepare_text(self, job: Job, tell: ProgressCallback) -> JSONObject:
        """Make tokenizer and stores of one form of the corpus; again, where the record comes from another machine."""
        before = self.records.read(job.name)
        sizes = prepare_form(choose_text_form(job.family), job.family, self.config, self.folder, tell)
        if before is not None and before.status == "done" and before.result["tokenizer"] != sizes["tokenizer"]:
            what = "the tokenizer trained here differs from the one that the records come from"
            fix = f"bring {self.folder / 'data'} from that machine too, or begin anew with another --out"
            raise Error(what, where=job.name, fix=fix)
        return sizes

    def plan(self, job: Job, tell: ProgressCallback) -> JSONObject:
        """Choose a family's model."""
        return plan_member(job.family, self.config, self.folder)

    def time(self, job: Job, tell: ProgressCallback) -> JSONObject:
        """Measure speed and memory."""
        model = self.records.read_result(f"plan/{job.family}")["model"]
        return measure_speed(job.family, self.config, self.folder, model, self.device)

    def count_budget_steps(self, family: str, budget: str) -> tuple[int, bool]:
        """Return the steps of a family under a budget, and whether the limit in minutes cut them."""
        chosen = next(one for one in self.config.parsed_budgets if one.name == budget)
        plan, flops = self.records.read_result(f"plan/{family}"), None
        if chosen.family is not None:  # what that family really spends: the limit in minutes counts
            other = self.records.read_result(f"plan/{chosen.family}")
            first = self.config.parsed_budgets[0].name
            flops = other["step_flops"] * self.count_budget_steps(chosen.family, first)[0]
        steps = count_steps(plan, chosen, flops)
        if self.config.max_minutes is None:
            return steps, False
        most = 60 * self.config.max_minutes / self.records.read_result(f"speed/{family}")["seconds_per_step"]
        return min(steps, max(1, int(most))), steps > most

    def count_search_steps(self, family: str) -> int:
        """Return the steps of a trial of the learning rate."""
        steps = self.count_budget_steps(family, self.config.parsed_budgets[0].name)[0]
        return min(steps, max(MIN_SEARCH_STEPS, round(self.config.search_share * steps)))

    def count_work(self, kind: str, family: str, budget: str, task: str) -> float:
        """Return the work of a run in training steps of its family: exactly for pretraining, by the size of the texts
        for the rest (reading without learning is a third of a step)."""
        if kind == "pretrain":
            return self.count_budget_steps(family, budget)[0]
        if kind == "search":
            return self.count_search_steps(family)
        plan = self.records.read_result(f"plan/{family}")
        if kind == "score":
            return READING_SHARE * self.count_scored_tokens(plan["kind"]) / plan["step_tokens"]
        train, held_out = self.count_task_tokens(task)
        epochs = self.config.tune_search_epochs if kind == "tune-search" else self.config.tune_epochs
        return (epochs * train + READING_SHARE * (epochs + 1) * held_out) / plan["step_tokens"]

    def count_scored_tokens(self, kind: str) -> float:
        """Estimate the tokens that are read when a model is scored; a masked one reads a window for each token."""
        if kind == "encoder-decoder":
            return 0.0
        if kind == "masked":
            return self.config.masked_characters / TOKEN_BYTES * self.config.seq_length
        return 2 * self.config.score_characters / TOKEN_BYTES

    def count_task_tokens(self, task: str) -> tuple[float, float]:
        """Estimate the tokens of a task's training examples and of those held out, by the sizes of its files."""
        source, limit = self.config.tasks[task], self.config.tune_limit
        sizes = {}
        for path in filter(None, (source.train, source.valid, source.test)):
            if path not in self.task_sizes:
                self.task_sizes[path] = measure_file(Path(path))
            sizes[path] = self.task_sizes[path]
        rows, train = sizes[source.train]
        share = 1.0 if limit is None or not rows else min(1.0, limit / rows)
        held_out = sum(size for path, (_, size) in sizes.items() if path != source.train)
        return share * train / TOKEN_BYTES, held_out / TOKEN_BYTES

    def train(self, job: Job, steps: int, factor: float, tell: ProgressCallback) -> JSONObject:
        """Pretrain a model, or resume where it was stopped; returns what a record keeps of the run."""
        plan = self.records.read_result(f"plan/{job.family}")
        path = self.get_run_path(job)
        settings = {**list_data_settings(job.family, self.folder), **plan["model"], "train.seed": job.seed}
        settings["train.lr"] = plan["lr"] * factor
        merged = configure_member(job.family, self.config, steps, settings)
        done = pretrain(
            job.family, out=path, config=merged.to_dict(), resume=(path / "run.json").is_file(), device=self.device,
            tell=tell,
        )  # fmt: skip
        info, history = RunFolder(path).read_info(), done.history
        rows = [row for row in history if "tokens" in row]
        part = find_loss_part(info["result"]["score"])
        curve = [[row["step"], row["valid"].get(part)] for row in history if row.get("valid", {}).get(part) is not None]
        shutil.rmtree(path / "steps", ignore_errors=True)  # the model is saved
        return {
            "steps": steps, "tokens": steps * plan["step_tokens"], "train_seconds": rows[-1]["seconds"],
            "seconds_per_step": measure_pace(rows),
            "epochs": steps / plan["epoch_steps"], "flops": steps * plan["step_flops"], "lr": merged.train.lr,
            "factor": factor, "loss": info["result"]["score"]["loss"], "best": info["result"]["best"],
            "metrics": info["result"]["score"]["metrics"],
            "unigram": (info["result"]["baseline"] or {}).get("loss"), "memory": info["result"]["memory"],
            "curve": curve[:: -(-len(curve) // MAX_CURVE_POINTS) or 1], "stuck": info["result"].get("stuck"),
        }  # fmt: skip

    def search(self, job: Job, tell: ProgressCallback) -> JSONObject:
        """Try a learning rate for a short run."""
        result = self.train(job, self.count_search_steps(job.family), job.factor, tell)
        shutil.rmtree(self.get_run_path(job), ignore_errors=True)
        return result

    def choose_factor(self, names: dict[float, str], measure: Callable[[JSONObject], tuple[float, ...]]) -> float:
        """Return the multiple of the learning rate whose trial was best; one that diverged is no candidate."""
        if len(names) == 1:
            return next(iter(names))
        trials = {factor: self.records.read(name) for factor, name in names.items()}
        good = {factor: one.result for factor, one in trials.items() if one is not None and one.status == "done"}
        if not good:
            raise Error("no trial of the learning rate has a result", fix="choose smaller --lr-factors")
        return min(good, key=lambda factor: measure(good[factor]))

    def pretrain(self, job: Job, tell: ProgressCallback) -> JSONObject:
        """Pretrain a member with the best learning rate."""
        names = {factor: f"search/{job.family}/x{factor:g}" for factor in self.config.lr_factors}
        factor = self.choose_factor(names, lambda result: (result["loss"],))
        steps, is_capped = self.count_budget_steps(job.family, job.budget)
        return {**self.train(job, steps, factor, tell), "is_capped": is_capped}

    def score(self, job: Job, tell: ProgressCallback) -> JSONObject:
        """Measure a pretrained model as a language model, each kind in its own way."""
        kind = classify_family(job.family)
        if kind == "encoder-decoder":
            return {"kind": kind}
        former = load(self.folder / "runs" / f"pretrain/{job.budget}/{job.family}/seed{job.seed}" / "model")
        former = former.to(choose_device(self.device))
        most = self.config.masked_characters if kind == "masked" else self.config.score_characters
        documents = read_part(self.folder / "corpus", "test", most)
        sentences = [sentence for document in documents for sentence in split_sentences(document)]
        result: JSONObject = {"kind": kind}
        for name, texts in (("documents", documents), ("sentences", sentences)):
            if kind == "masked" and name == "sentences":
                continue
            seen = evaluate_perplexity(former, texts, tell=tell)
            kept = ("perplexity", "perplexity_word", "bits_byte", "accuracy", "tokens", "words", "bytes")
            result[name] = {key: seen[key] for key in kept}
        for name, path in self.config.pairs.items():
            rows = read_pairs(*find_pair_columns(path, None, PLAIN_READING))
            result.setdefault("pairs", {})[name] = evaluate_pairs(former, rows, tell=tell)["accuracy"]
        return result

    def finetune(
        self, job: Job, budget: str, epochs: float, lr: float | None, baseline: bool, tell: ProgressCallback
    ) -> JSONObject:
        """Fine-tune a pretrained model on a task; returns what a record keeps of the run."""
        source, path = self.config.tasks[job.task], self.get_run_path(job)
        model = self.folder / "runs" / f"pretrain/{budget}/{job.family}/seed{job.seed}" / "model"
        settings: Settings = {
            "tune.epochs": epochs, "tune.batch_size": self.config.tune_batch_size, "train.seed": job.seed,
            "tune.baseline": baseline, "train.compile": False, "data.limit": self.config.tune_limit,
            **{f"tune.{name}": value for name, value in self.config.tune.items()},
        }  # fmt: skip
        heads = find_family(job.family).definition
        if "classify" not in heads.build_heads(heads.config_class()):
            settings["tune.label_as_text"] = True  # an encoder-decoder without such a head writes the label
        if lr is not None:
            settings["train.lr"] = lr
        done = finetune(
            model, Path(source.train), None if source.valid is None else Path(source.valid),
            test=None if source.test is None else Path(source.test), out=path,
            resume=(path / "run.json").is_file(), device=self.device, overrides=settings, tell=tell,
        )  # fmt: skip
        info = RunFolder(path).read_info()
        metric = info["config"]["tune"]["metric"] or next(iter(done.valid))
        scores = done.test or done.valid
        result = {
            "metric": metric, "score": scores[metric], "part": "test" if done.test else "validation",
            "valid": done.valid, "test": done.test, "loss": info["result"]["score"]["loss"],
            "cost": to_cost(metric, done.valid[metric]), "lr": info["config"]["train"]["lr"], "epochs": epochs,
            "baseline": done.baseline, "majority": done.majority, "name": info["config"]["task"],
        }  # fmt: skip
        shutil.rmtree(path, ignore_errors=True)
        return result

    def search_tuning(self, job: Job, tell: ProgressCallback) -> JSONObject:
        """Try a learning rate of fine-tuning for a short run."""
        lr = None
        if job.factor != 1:
            lr = self.records.read_result(f"tune-search/{job.task}/{job.family}/x1")["lr"] * job.factor
        return self.finetune(job, job.budget, self.config.tune_search_epochs, lr, False, tell)

    def tune(self, job: Job, tell: ProgressCallback) -> JSONObject:
        """Fine-tune a member with the best learning rate; the first one is shown beside a linear model."""
        lr, factor = None, 1.0
        names = {one: f"tune-search/{job.task}/{job.family}/x{one:g}" for one in self.config.lr_factors}
        if len(names) > 1:
            factor = self.choose_factor(names, lambda result: (result["cost"], result["loss"] or 0.0))
            lr = self.records.read_result(names[factor])["lr"]
        is_first = job.family == self.config.families[0] and not job.seed
        epochs = self.config.tune_epochs
        return {**self.finetune(job, job.budget, epochs, lr, is_first, tell), "factor": factor}


def build_record(
    job: Job, status: Status, seconds: float, error: str, result: JSONObject | None = None,
    machine: JSONObject | None = None, together: int = 1,
) -> Record:  # fmt: skip
    """Build the record of a job; what a job of its kind does not have is None."""
    has_run = job.kind not in ("data", "plan", "speed")
    return Record(
        job.name, job.kind, status, job.family, job.budget or None, job.seed if has_run else None, job.task or None,
        job.factor if job.kind.endswith("search") else None, seconds, together, result or {}, error, machine or {},
    )  # fmt: skip


def measure_file(path: Path) -> tuple[int, int]:
    """Count the lines and the bytes of a file, decompressed."""
    if not path.is_file():
        raise Error("there is no such file", where=path, fix="give the task again: --task NAME=TRAIN,VALID,TEST")
    lines = size = 0
    for block in read_chunks(path):
        lines += block.count(b"\n")
        size += len(block)
    return lines, size


PLAIN_READING: FileOptions = {"column": None, "encoding": "utf-8", "skip": False, "delimiter": None, "header": None}


def measure_pace(rows: list[JSONObject]) -> float | None:
    """Return the seconds of a step, beside whatever ran meanwhile; without the first ones, which also compile. None for
    a run of a few steps."""
    first, last = rows[min(WARMUP_ROWS, len(rows) - 1)], rows[-1]
    steps = last["step"] - first["step"]
    return round((last["seconds"] - first["seconds"]) / steps, 6) if steps > 0 else None


def find_loss_part(score: JSONObject | None) -> str:
    """Return the name of the loss that predicts tokens, where a run has several."""
    if score is None:
        return "loss"
    values = score.get("metrics", {}).items()
    return next((name for name, value in values if value is not None and value == score["loss"]), "loss")
