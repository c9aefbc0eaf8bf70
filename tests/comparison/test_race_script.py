"""scripts/run_race.py: what the race of the documentation is asked to do."""

import importlib.util
import lzma
from collections import Counter
from pathlib import Path

import pytest

from formers.comparison.jobs import list_jobs
from formers.comparison.settings import CompareConfig
from formers.registry import FAMILIES

SCRIPT = Path(__file__).parents[2] / "scripts" / "run_race.py"


@pytest.fixture(scope="module")
def race():
    spec = importlib.util.spec_from_file_location("run_race", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def write_table(path, header, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(header), *("\t".join(row) for row in rows)]
    path.write_bytes(lzma.compress(("\n".join(lines) + "\n").encode()))


def test_every_family_that_can_be_pretrained_takes_part(race):
    expected = {name for name, entry in FAMILIES.items() if entry.is_pretrained and not entry.definition.is_static}
    assert set(race.FAMILIES) == expected
    assert len(race.FAMILIES) == len(expected)


def test_the_jobs_of_the_race(race):
    tasks = {name: {"train": f"{name}.jsonl"} for name in ("sst2", "trec", "snli")}
    config = CompareConfig.from_dict({"families": race.FAMILIES, "tasks": tasks, **race.SETTINGS})
    counts = Counter(job.kind for job in list_jobs(config))
    runs = 2 * (len(race.FAMILIES) + 2 * len(race.HEADLINE))  # two budgets, two seeds more for some
    assert counts["pretrain"] == counts["score"] == runs
    assert counts["tune"] == 3 * runs
    assert counts["search"] == 2 * len(race.FAMILIES)
    assert counts["speed"] == 0, "each would hold up the others"
    CompareConfig.from_dict({"families": race.TINY_FAMILIES, "tasks": tasks, **race.TINY})
    small = CompareConfig.from_dict({"families": race.FAMILIES, "tasks": tasks, **race.SMALL})
    assert Counter(job.kind for job in list_jobs(small)) == counts, "the same race, with smaller models"


def test_validation_examples_are_not_learned(race, tmp_path):
    for place, name, parts in (("classify", "sst2", ("train", "dev", "test")), ("classify", "trec", ("train", "test")),
                               ("pair", "snli", ("train", "test"))):  # fmt: skip
        for part in parts:
            rows = [(f"{name} {part} {n}", str(n % 2)) for n in range(3500)]
            write_table(tmp_path / place / f"{name}.{part}.tsv.xz", ("text", "label"), rows)
    tasks = race.list_tasks(tmp_path, tiny=False)
    assert {name: {part: len(rows) for part, rows in parts.items()} for name, parts in tasks.items()} == {
        "sst2": {"train": 3500, "valid": 3500, "test": 2000},
        "trec": {"train": 3063, "valid": 437, "test": 2000},
        "snli": {"train": 3063, "valid": 437, "test": 2000},
    }
    for parts in tasks.values():
        texts = {part: {row["text"] for row in rows} for part, rows in parts.items()}
        assert not texts["train"] & texts["valid"]
        assert not texts["train"] & texts["test"]
    small = race.list_tasks(tmp_path, tiny=False, scale="cpu")
    assert {name: [len(parts[part]) for part in ("train", "valid", "test")] for name, parts in small.items()} == {
        "sst2": [3000, 3500, 2000], "trec": [3000, 437, 2000],
    }  # fmt: skip
