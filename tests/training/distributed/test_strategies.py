"""Two processes learn what one would: copies and shards, with a memory, of unequal batches, stopped and resumed."""

from __future__ import annotations

import datetime
import errno
import itertools
import re
import shlex
import shutil
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import yaml

import formers
from formers import Error
from formers.cli.main import app
from formers.training.checkpoint.local import Checkpoints
from formers.training.checkpoint.sharded import ShardedWriter
from formers.training.config_merge import configure_pretraining
from formers.training.distributed import process_group
from formers.training.distributed.process_group import ProcessGroup, explain_lost_peer, summarise_error
from formers.training.distributed.strategies import DataParallel, ExpertParallel, FullySharded, select_strategy
from formers.training.optimizer import OPTIMIZERS
from formers.training.run_folder import RunFolder
from tests.training import ranks

pytestmark = pytest.mark.xdist_group("distributed")  # one worker starts the processes, not each its own

MODES = ("ddp", "fsdp")
FEW = [
    ("gpt2", "ddp"), ("gpt2", "fsdp"), ("switch", "expert"), ("albert", "fsdp"), ("transformer_xl", "ddp"),
]  # fmt: skip
MANY = list(itertools.product(("gpt2", "bert", "t5", "switch", "transformer_xl", "xlnet", "elmo", "albert"), MODES))
STEADY = {"schedule": "constant", "save_every": 2, "eval_every": 2}


def read_losses(folder, key="loss"):
    """The training losses of a run."""
    return [row[key] for row in RunFolder(folder).read_history() if "losses" in row]


def read_valid_losses(folder):
    """The losses on validation text."""
    return [list(row["valid"].values()) for row in RunFolder(folder).read_history() if "valid" in row]


def list_step_examples(seen):
    """Which examples made each step, whoever had them."""
    steps = zip(*(one["seen"] for one in seen), strict=True)
    return [sorted(n for batches in step for batch in batches for n in batch) for step in steps]


def compare_runs(a, b):
    """Two runs went the same way."""
    assert len(read_losses(a)) == len(read_losses(b)) > 0
    assert read_losses(b) == pytest.approx(read_losses(a), abs=1e-5)
    assert read_losses(b, "norm") == pytest.approx(read_losses(a, "norm"), abs=1e-4)
    assert read_losses(b, "tokens") == read_losses(a, "tokens")
    for x, y in zip(read_valid_losses(a), read_valid_losses(b), strict=True):
        assert y == pytest.approx(x, abs=1e-5)


def make_chain(folder, family, first, last):
    """A run of two processes, then of one, then of two again, and the same without a stop."""
    one, two = ({"family": family, "out": str(folder / f"{name}-{family}")} for name in ("whole", "chain"))
    return [
        {**two, "name": f"{family}-a", "train": {**STEADY, "steps": 2, "parallel": first}},
        {**two, "name": f"{family}-b", "train": {"steps": 4}, "alone": True, "resume": True},
        {**two, "name": f"{family}-c", "train": {"steps": 6, "parallel": last}, "resume": True},
        {**one, "name": f"{family}-w", "train": STEADY, "alone": True},
    ]


def make_repeated_jobs(folder):
    """Two processes with shards, twice, then one, then copies: each resumes what the others wrote."""
    whole = {"family": "gpt2", "out": str(folder / "whole-gpt2"), "name": "gpt2-w", "train": {**STEADY, "steps": 8}}
    parts = {"family": "gpt2", "out": str(folder / "parts")}
    ways = [{"parallel": "fsdp"}, {"parallel": "fsdp"}, {}, {"parallel": "ddp"}]
    jobs = [
        {**parts, "name": f"parts-{i}", "train": {**(STEADY if not i else {}), "steps": 2 * i + 2, **way},
         "resume": i > 0, "alone": not way}
        for i, way in enumerate(ways)
    ]  # fmt: skip
    return [{**whole, "alone": True}, *jobs]


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    """All jobs of the ordinary run, in one start of two processes."""
    folder = tmp_path_factory.mktemp("ranks")
    jobs = [make_job(folder, family, mode) for family, mode in FEW]
    jobs += [{**make_job(folder, family, "alone"), "alone": True} for family in dict(FEW)]
    jobs += make_chain(folder, "xlnet", "ddp", "fsdp")
    jobs += make_repeated_jobs(folder)
    jobs += make_scaled_jobs(folder)
    jobs.append({"name": "nothing", "family": "gpt2", "out": str(folder / "nothing"), "text": False,
                 "data": {"source": [str(folder / "nothing.txt")]}})  # fmt: skip
    jobs.append({"name": "rows", "family": "gpt2", "out": str(folder / "rows"),
                 "train": {"parallel": "fsdp", "optimizer": "adafactor"}})  # fmt: skip
    jobs.append({"name": "none", "family": "gpt2", "out": str(folder / "none"), "train": {"parallel": "expert"}})
    jobs.append({"name": "odd", "family": "gpt2", "out": str(folder / "odd"), "train": {"accumulate": 3}})
    ranks.run_jobs(folder, jobs, seconds=300)
    return folder


def make_scaled_jobs(folder):
    """T5's optimizer and an average of the weights, with shards alone and with whole weights beside them."""
    train = {"optimizer": "rms-adamw", "ema": 0.9, "accumulate": 4}
    return [
        {"name": f"scaled-{mode}", "family": "switch", "out": str(folder / f"scaled-{mode}"), "alone": mode == "alone",
         "train": {**train, **({} if mode == "alone" else {"parallel": mode})}}
        for mode in ("alone", "fsdp", "expert")
    ]  # fmt: skip


def make_job(folder, family, mode):
    """One job; four batches a step, so that each process has two of them."""
    train = {"accumulate": 4, **({} if mode == "alone" else {"parallel": mode})}
    return {"name": f"{family}-{mode}", "family": family, "out": str(folder / f"{family}-{mode}"), "train": train}


@pytest.mark.parametrize(("family", "mode"), FEW)
def test_two_processes_learn_what_one_would(done, family, mode):
    compare_runs(done / f"{family}-alone", done / f"{family}-{mode}")
    both, alone = ranks.read_records(done, f"{family}-{mode}"), ranks.read_records(done, f"{family}-alone")
    assert len(both) == 2
    assert list_step_examples(both) == list_step_examples(alone)
    assert both[0]["seen"] != both[1]["seen"], "they share the work"


@pytest.mark.parametrize("mode", ["fsdp", "expert"])
def test_scales_of_weights_and_averages_are_those_of_all_processes(done, mode):
    compare_runs(done / "scaled-alone", done / f"scaled-{mode}")


def test_processes_have_unequal_numbers_of_examples(done):
    both = ranks.read_records(done, "gpt2-ddp")
    assert [[len(b) for b in step] for step in both[0]["seen"]] != [[len(b) for b in step] for step in both[1]["seen"]]


@pytest.mark.parametrize(("mode", "units"), [("ddp", 1), ("fsdp", 3)])
def test_gradients_are_exchanged_once_a_step(done, mode, units):
    """Each process has two batches a step. One bucket of all weights, or two blocks and the rest."""
    for one in ranks.read_records(done, f"gpt2-{mode}"):
        assert [len(step) for step in one["seen"]] == [2] * 6
        assert one["calls"] == [units] * 6


def test_two_one_two_processes(done):
    """Copies, then one process, then shards: the same order of examples, the same losses as without a stop."""
    whole = ranks.read_records(done, "xlnet-w")
    parts = [list_step_examples(ranks.read_records(done, f"xlnet-{part}")) for part in "abc"]
    assert [len(part) for part in parts] == [2, 2, 2]
    assert list(itertools.chain(*parts)) == list_step_examples(whole)
    compare_runs(done / "whole-xlnet", done / "chain-xlnet")


def test_a_checkpoint_is_whole_whoever_wrote_it(done):
    """Same files, names, shapes and types of one process, of copies and of shards."""

    def shape(name):
        groups, state = Checkpoints(done / name / "steps", remove_stale=False).load(6)
        tensors = {f"{g}/{n}": (t.shape, t.dtype) for g, group in groups.items() if g != "rng"
                   for n, t in group.items()}  # fmt: skip
        return tensors, set(state), groups

    (alone, keys, one), (copies, *_), (shards, others, two) = map(shape, ("gpt2-alone", "gpt2-ddp", "gpt2-fsdp"))
    assert alone == copies == shards
    assert keys == others
    for name, tensor in one["model"].items():
        if name.endswith("qkv.bias"):
            continue  # the bias of keys has no gradient but noise, which Adam makes large
        assert torch.allclose(tensor, two["model"][name], atol=1e-5), name
    assert len({name.split("/")[0] for name in two["rng"]}) == 2
    loaded = dict(formers.load(done / "gpt2-fsdp" / "model").model.named_parameters())
    assert set(loaded) == set(two["model"])
    assert all(torch.equal(tensor, two["model"][name]) for name, tensor in loaded.items())


def test_each_process_writes_its_part_and_any_number_resumes_from_it(done):
    compare_runs(done / "whole-gpt2", done / "parts")
    for mode, files in (("gpt2-fsdp", {"shards"}), ("gpt2-ddp", {"model.safetensors", "optimizer.safetensors"})):
        step = done / mode / "steps" / "step-00000006"
        assert {p.name for p in step.iterdir()} == files | {"manifest.json", "state.json", "rng.safetensors"}
    sizes = [p.stat().st_size for p in (done / "gpt2-fsdp" / "steps" / "step-00000006" / "shards").glob("*.distcp")]
    assert len(sizes) == 2
    assert max(sizes) < 0.6 * sum(sizes), "they share the writing"


@pytest.mark.parametrize("odd", ["*_0.distcp", ".metadata"])
def test_a_damaged_part_is_noticed_before_it_is_opened(done, tmp_path, odd):
    shutil.copytree(done / "gpt2-fsdp" / "steps", tmp_path / "steps")
    kept = Checkpoints(tmp_path / "steps", remove_stale=False)
    newest = kept.list_steps()[-1]
    file = sorted((kept.get_step_path(newest) / "shards").glob(odd))[-1]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 4
    file.write_bytes(data)
    with pytest.raises(Error, match="is damaged: its checksum differs"):
        kept.load(newest)
    assert kept.load_newest(assemble_shards=False)[0] == kept.list_steps()[-2]
    file.unlink()
    with pytest.raises(Error, match="cannot be read"):
        kept.load(newest)


def test_a_full_disk_of_any_process_is_one_line(tmp_path, monkeypatch):
    def full(*_, **__):
        raise dcp.api.CheckpointException("", {1: (OSError(errno.ENOSPC, "No space left on device"), None)})

    monkeypatch.setattr(dcp, "save", full)
    monkeypatch.setattr(dist, "new_group", lambda **_: None)
    kept = Checkpoints(tmp_path)
    with pytest.raises(Error, match="the disk is full: a checkpoint needs 12 bytes"):
        kept.save(3, {"model": {"a": torch.ones(3)}}, {}, sharded_writer=ShardedWriter(False))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "nothing.txt"),
        ("rows", "adafactor needs whole rows and columns"),
        ("none", "a model without experts cannot be shared by 2 processes"),
        ("odd", "3 batches of a step cannot be shared by 2 processes"),
    ],
)
def test_what_goes_wrong_in_the_first_goes_wrong_in_all(done, name, said):
    errors = [one["error"] for one in ranks.read_records(done, name)]
    assert len(errors) == 2
    assert errors[0] == errors[1]
    assert said in errors[0]


def test_only_the_first_leaves_traces(done):
    """One line for each step, one lock that is gone, and no folder of anybody else."""
    for family, mode in FEW:
        folder = done / f"{family}-{mode}"
        assert [row["step"] for row in RunFolder(folder).read_history() if "losses" in row] == list(range(1, 7))
        assert {p.name for p in folder.iterdir()} >= {"run.json", "report.html", "model", "steps", "metrics.jsonl"}
        assert not list(folder.glob("**/.writing-*"))
        assert not (folder / "lock").exists()


def test_strategies_are_composed():
    """None is a kind of another; each says whether it shards, and one process alone has nothing to share."""
    made = [select_strategy(ProcessGroup(0, 2), mode) for mode in ("ddp", "fsdp", "expert")]
    assert [type(one) for one in made] == [DataParallel, FullySharded, ExpertParallel]
    assert [one.is_sharded for one in made] == [False, True, True]
    assert all(type(one).__mro__ == (type(one), object) for one in made)
    for mode in ("ddp", "fsdp", "expert"):
        alone, step = select_strategy(ProcessGroup(), mode), torch.nn.Linear(2, 2)
        assert not alone.is_sharded
        assert alone.wrap_step(step) is step


def test_a_lost_process_is_one_line_and_other_errors_are_not_touched():
    with pytest.raises(Error) as error, explain_lost_peer(ProcessGroup(1, 2)):
        raise RuntimeError("[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:1\nmore")
    assert "process 1 has lost the connection to another one (Connection closed by peer" in str(error.value)
    with pytest.raises(RuntimeError, match="shape"), explain_lost_peer(ProcessGroup(1, 2)):
        raise RuntimeError("a shape is wrong")
    with pytest.raises(RuntimeError, match="closed"), explain_lost_peer(ProcessGroup()):
        raise RuntimeError("Connection closed by peer")
    assert summarise_error(Error("a", where="b", fix="c")) == ("a", "b", "c", 2)
    assert summarise_error(ValueError("x"))[0] == "the first process failed (ValueError: x)"


def test_a_start_is_not_led_astray_by_the_one_before(monkeypatch):
    """The store still has what processes wrote that are gone: nobody answers there."""
    monkeypatch.setattr(process_group, "RETRY_INTERVAL", datetime.timedelta(seconds=0.05))
    store = dist.HashStore()
    for key, value in {"start": "old", "old/1": "gone", "old/gone": "welcome", "old/address": "x"}.items():
        store.set(key, value)
    found = {}

    def come(rank):
        found[rank] = process_group.open_fresh_store(store, rank, 3)

    others = [threading.Thread(target=come, args=(rank,)) for rank in (1, 2)]
    for other in others:
        other.start()
    time.sleep(0.2)
    come(0)
    for other in others:
        other.join(10)
    found[0].set("address", "y")
    assert [found[rank].get("address") for rank in (0, 1, 2)] == [b"y"] * 3


@pytest.mark.parametrize("language", ["en", "ko"])
def test_the_launch_lines_of_the_docs(language):
    """What follows -m formers.cli.main is a command that exists, on one machine, SLURM and Kubernetes."""
    page = (Path(__file__).parents[3] / "docs" / language / "distributed.md").read_text(encoding="utf-8")
    found = []
    for kind, text in re.findall(r"^```(bash|yaml)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if kind == "yaml":
            *_, job = yaml.safe_load_all(text)
            line = job["spec"]["template"]["spec"]["containers"][0]["args"]
        else:
            line = shlex.split(text.replace("\\\n", " ").replace("'", " "), comments=True)
        if "formers.cli.main" not in line:  # a plan, which needs no launcher
            continue
        found.append(line[line.index("formers.cli.main") + 1 :])
    assert len(found) == 4
    for words_ in found:
        app.parse_args(words_, exit_on_error=False, print_error=False)
        configure_pretraining("gpt2", None, {"train.accumulate": words_[words_.index("--train.accumulate") + 1]})


@pytest.mark.full
@pytest.mark.parametrize("mode", ["fsdp", "expert"])
def test_every_optimizer_continues_from_a_gathered_state(tmp_path, mode):
    """Two processes, stopped half way; two optimizers are refused. Sizes of weights are those of all processes
    together."""
    names, jobs = [name for name in OPTIMIZERS if name not in ("adafactor", "adamw8bit")], []
    for name in names:
        train = {"optimizer": name, "schedule": "constant", "ema": 0.9, "lr": 1e-2}
        one, two = ({"family": "switch", "out": str(tmp_path / f"{name}-{n}")} for n in ("one", "two"))
        jobs.append({**one, "name": f"{name}-one", "train": train, "alone": True})
        jobs.append({**two, "name": f"{name}-two", "train": {**train, "steps": 3, "parallel": mode}})
        jobs.append({**two, "name": f"{name}-on", "train": {"steps": 6}, "resume": True})
    ranks.run_jobs(tmp_path, jobs, seconds=600)
    for name in names:
        assert read_losses(tmp_path / f"{name}-two") == pytest.approx(
            read_losses(tmp_path / f"{name}-one"), abs=1e-5
        ), name


@pytest.mark.full
def test_every_kind_of_family(tmp_path):
    families, pairs = dict(MANY), [*MANY, ("switch", "expert")]
    jobs = [make_job(tmp_path, *one) for one in pairs]
    jobs += [{**make_job(tmp_path, family, "alone"), "alone": True} for family in families]
    jobs += make_chain(tmp_path, "gpt2", "fsdp", "ddp") + make_chain(tmp_path, "elmo", "fsdp", "fsdp")
    jobs += make_chain(tmp_path, "transformer_xl", "ddp", "ddp") + make_chain(tmp_path, "switch", "expert", "expert")
    ranks.run_jobs(tmp_path, jobs, seconds=900)
    for family, mode in pairs:
        compare_runs(tmp_path / f"{family}-alone", tmp_path / f"{family}-{mode}")
        both, alone = (ranks.read_records(tmp_path, f"{family}-{m}") for m in (mode, "alone"))
        assert list_step_examples(both) == list_step_examples(alone)
    for family in ("gpt2", "elmo", "transformer_xl", "switch"):
        compare_runs(tmp_path / f"whole-{family}", tmp_path / f"chain-{family}")
        parts = [list_step_examples(ranks.read_records(tmp_path, f"{family}-{part}")) for part in "abc"]
        assert list(itertools.chain(*parts)) == list_step_examples(ranks.read_records(tmp_path, f"{family}-w"))
