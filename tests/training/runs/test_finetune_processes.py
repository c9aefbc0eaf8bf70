"""Two processes learn a task as one would: the same losses, one tokenizer, one folder, measures for all."""

from __future__ import annotations

import json

import pytest
import torch

from formers.training.run_folder import RunFolder
from tests.training import ranks

HALVES = {"accumulate": 2}
pytestmark = pytest.mark.xdist_group("processes")  # one worker starts the two processes, not each its own two


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """All jobs in one start of two processes, and what they said."""
    folder = tmp_path_factory.mktemp("processes")
    base = {"verb": "finetune", "family": "bert", "beside": str(folder)}
    jobs = [
        {**base, "name": "alone", "out": str(folder / "alone"), "train": HALVES, "alone": True},
        {**base, "name": "both", "out": str(folder / "both")},
        {
            **base,
            "name": "somewhere",
            "tune": {"epochs": 4, "evals_per_epoch": 2, "patience": 1},
            "train": {"lr": 1e-99},
        },
        {**base, "name": "seeds", "out": str(folder / "seeds"), "several": {"seeds": 2}},
        {**base, "name": "again", "out": str(folder / "seeds"), "several": {"seeds": 2}},
        {**base, "name": "folds", "several": {"folds": 2}},
        {**base, "name": "odd", "out": str(folder / "odd"), "train": {"accumulate": 3}},
        {**base, "name": "shards", "out": str(folder / "shards"), "train": {"parallel": "fsdp"}},
        {**base, "name": "wrong", "out": str(folder / "both")},
    ]
    return folder, ranks.run_jobs(folder, jobs, seconds=240)


def read_losses(folder):
    """What a run measured, step by step, and on validation examples."""
    rows = RunFolder(folder).read_history()
    steps = [(row["loss"], row["norm"], row["tokens"]) for row in rows if "losses" in row]
    return torch.tensor(steps, dtype=torch.float64), [row["valid"]["loss"] for row in rows if "valid" in row]


def test_two_processes_learn_what_one_would(done):
    """Of themselves they take half a batch each: the same step as one process that takes two halves."""
    (one, looks), (two, others) = (read_losses(done[0] / name) for name in ("alone", "both"))
    assert len(one) == len(two) > 10
    assert torch.allclose(two, one, rtol=0, atol=1e-5)
    assert others == pytest.approx(looks, abs=1e-5)
    seen = ranks.read_records(done[0], "both")
    assert [len(rank["seen"]) for rank in seen] == [len(one)] * 2
    assert seen[0]["seen"] != seen[1]["seen"], "they share the work"
    assert (
        seen[0]["result"]["valid"]
        == seen[1]["result"]["valid"]
        == ranks.read_records(done[0], "alone")[0]["result"]["valid"]
    )


def test_a_batch_is_that_of_all_processes(done):
    asked = RunFolder(done[0] / "both").read_info()["config"]["train"]
    sizes = [len([n for rank in ranks.read_records(done[0], "both") for batch in rank["seen"][step] for n in batch])
             for step in range(5)]  # fmt: skip
    assert asked["accumulate"] == 2
    assert sum(sizes) / len(sizes) == pytest.approx(8, abs=2), "tune.batch_size examples a step"


def test_a_run_without_a_name_has_one_folder_and_ends_for_all(done):
    """Both lose patience at the same look."""
    first, second = ranks.read_records(done[0], "somewhere")
    assert first["result"] == second["result"]
    assert len(first["seen"]) == len(second["seen"])
    assert [p.name for p in (done[0] / "runs").iterdir() if p.name.startswith("bert")] == ["bert-classify-1"]
    looks = [row for row in RunFolder(done[0] / "runs" / "bert-classify-1").read_history() if "valid" in row]
    assert len(looks) == 2


@pytest.mark.parametrize(("name", "folder"), [("seeds", "seeds"), ("again", "seeds"), ("folds", "runs/comparison-1")])
def test_several_runs_of_several_processes(done, name, folder):
    first, second = (one["result"] for one in ranks.read_records(done[0], name))
    assert first == second
    assert len(first["trials"][0]) == 2
    assert all("accuracy" in run for run in first["trials"][0])
    assert json.loads((done[0] / folder / "summary.json").read_text())[0]["runs"] == first["trials"][0]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("odd", "3 batches of a step cannot be shared by 2 processes"),
        ("shards", "does not support train.parallel fsdp"),
        ("wrong", "there is a run here already"),
    ],
)
def test_what_goes_wrong_is_one_line_of_all(done, name, said):
    errors = [one["error"] for one in ranks.read_records(done[0], name)]
    assert len(errors) == 2
    assert errors[0] == errors[1]
    assert said in errors[0]


def test_torch_has_nothing_to_say(done):
    assert not any("find_unused_parameters" in said for said in done[1])
