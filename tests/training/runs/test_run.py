"""One program for all runs: what pretraining, fine-tuning and word vectors share, and that they do share it."""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import json
from types import SimpleNamespace

import pytest

import formers
from formers import Error
from formers.models.vectors import METHODS
from formers.registry import FAMILIES, find_pretrained_family, train_tokenizer
from formers.training import run_folder
from formers.training.loop import StepLog
from formers.training.runs import pretrain, run
from formers.training.runs.finetune import request_finetuning
from formers.training.trainer import StepOutcome, StepResult
from formers.training.word_vectors.vector_run import VectorRequest
from tests.training.toy_runs import REVIEWS
from tests.training.toy_runs import pretrain_toy as pretrain_small


@pytest.mark.parametrize("function", [formers.pretrain, formers.finetune, run.carry_out])
def test_a_verb_reads_from_top_to_bottom(function):
    """The body of a verb is short; the program that it hands its request to may be twice as long."""
    node = ast.parse(inspect.getsource(function)).body[0]
    lines = node.end_lineno - node.body[1].lineno + 1  # without the docstring
    assert lines < (80 if function is run.carry_out else 40)


def test_the_file_of_the_folder_knows_nothing_of_training():
    tree = ast.parse(inspect.getsource(run_folder))
    modules = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not {name for name in modules if name and name.partition(".")[0] in ("trainer", "checkpoint", "loop")}


def test_one_program_carries_out_all_runs(monkeypatch, tmp_path):
    requests = []

    def carry_out(request):
        requests.append(type(request).__name__)
        raise Error("seen", fix="nothing")

    monkeypatch.setattr(run, "carry_out", carry_out)
    formers.save(formers.build("gpt2", vocab=20, dim=8, layers=1, heads=2, context=8), tmp_path / "gpt2")
    calls = [
        lambda: formers.pretrain("gpt2", ["a"]),
        lambda: formers.finetune("textcnn", REVIEWS),
        lambda: formers.finetune(tmp_path / "gpt2", ["a"], task="lm"),
        lambda: formers.pretrain("glove", ["a"]),
    ]
    for call in calls:
        with pytest.raises(Error, match="seen"):
            call()
    assert requests == ["PretrainRequest", "FinetuneRequest", "TextRequest", "VectorRequest"]


def test_a_request_does_not_change(tmp_path):
    """A request is frozen, and the tables in it are left alone: configured again, it says the same."""
    former = formers.build("gpt2", vocab=260, dim=8, layers=1, heads=2, context=8)
    former.tokenizer = train_tokenizer("gpt2", ["a text"], 260)
    formers.save(former, tmp_path / "gpt2")
    requests = [
        request_finetuning("textcnn", REVIEWS, REVIEWS[:8], overrides={"tune.multilabel": True}),
        request_finetuning(tmp_path / "gpt2", ["a text"], task="lm"),
    ]
    for request in requests:
        before = copy.deepcopy({name: value for name, value in vars(request).items() if name != "options"})
        first, second = (request.configure(None)[0].to_dict() for _ in range(2))
        assert first == second
        assert {name: value for name, value in vars(request).items() if name != "options"} == before
        with pytest.raises(dataclasses.FrozenInstanceError):
            request.options = run.RunOptions()


def test_word_vectors_are_chosen_by_the_declaration_of_their_family():
    assert list(FAMILIES["vectors"].methods) == list(METHODS)
    for name in ("vectors", *METHODS):
        assert pretrain.get_request_class(find_pretrained_family(name).definition) is VectorRequest
    assert pretrain.get_request_class(find_pretrained_family("bert").definition) is pretrain.PretrainRequest


def test_a_task_needs_room_for_its_checkpoints_too(monkeypatch, tmp_path):
    monkeypatch.setattr(run.shutil, "disk_usage", lambda path: type("x", (), {"free": 1000})())
    with pytest.raises(Error, match=r"checkpoints need about [\d,]+ bytes, and 1,000 are free"):
        formers.finetune("textcnn", REVIEWS, out=tmp_path / "run", epochs=1)
    assert not (tmp_path / "run" / "run.json").exists()


def test_files_of_a_run_speak_the_words_of_the_field(tmp_path):
    made = pretrain_small("bert", out=tmp_path / "run", train={"steps": 6})
    about = run_folder.RunFolder(made.folder).read_info()
    assert about["format"] == 3
    assert {"config", "data", "machine", "result"} <= set(about)
    assert {"tokenizer", "store", "valid"} <= set(about["data"])
    seen = next(row["valid"] for row in made.history if "valid" in row)
    assert {"loss", "mlm", "mlm/accuracy"} <= set(seen)
    assert about["result"]["score"]["metrics"] == made.score.metrics
    task = formers.finetune("textcnn", REVIEWS, out=tmp_path / "task", epochs=1)
    assert run_folder.RunFolder(task.folder).read_info()["result"]["metrics"]["valid"] == task.valid
    text = "".join((folder / name).read_text() for folder in (made.folder, task.folder)
                   for name in ("run.json", "metrics.jsonl"))  # fmt: skip
    assert not [word for word in ('"held"', '"asked"', '"measures"', '/right"') if word in text]


def test_earlier_words_get_a_hint(tmp_path):
    with pytest.raises(Error, match=r"pretrain has no argument 'held'\. formers calls it 'valid'"):
        formers.pretrain("gpt2", ["a"], held=["b"], out=tmp_path / "run")


def test_a_run_of_an_earlier_format_can_be_replaced(tmp_path):
    made = pretrain_small(out=tmp_path / "run", train={"steps": 1})
    about = run_folder.RunFolder(made.folder).read_info()
    old = {"format": 2, "asked": about["config"], "data": about["data"], "machine": about["machine"]}
    (made.folder / "run.json").write_text(json.dumps(old), encoding="utf-8")
    (made.folder / "data" / "valid").mkdir(exist_ok=True)
    (made.folder / "data" / "valid").rename(made.folder / "data" / "held")
    with pytest.raises(
        Error, match=r"made by an earlier formers \(format 2\) and cannot resume\. Train again with --over"
    ):
        pretrain_small(out=tmp_path / "run", resume=True)
    pretrain_small(out=tmp_path / "run", overwrite=True, train={"steps": 1})
    assert run_folder.RunFolder(made.folder).read_info()["format"] == 3


def test_a_resumed_run_keeps_the_machine_on_which_it_began(tmp_path):
    made = pretrain_small(out=tmp_path / "run", train={"steps": 2})
    folder = run_folder.RunFolder(made.folder)
    folder.write_info({**folder.read_info(), "machine": {**folder.read_info()["machine"], "name": "the first one"}})
    pretrain_small(text=None, out=tmp_path / "run", resume=True, train={"steps": 3})
    assert folder.read_info()["machine"]["name"] == "the first one"
    assert folder.read_info()["config"]["train"]["steps"] == 3


def test_validation_text_may_be_a_store(tmp_path):
    """A folder in data.valid and an opened store are taken, beside text of any kind; another tokenizer's is refused."""
    texts = [f"text {i} of many, with words and more words {i * 7}" for i in range(60)]
    small = {"model": {"dim": 16, "layers": 1, "heads": 2}, "train": {"steps": 2, "batch_tokens": 256}}
    tokenizer = formers.pretrain("gpt2", texts, out=tmp_path / "a", data={"vocab_size": 300}, **small).former.tokenizer
    formers.prepare(texts[:20], tokenizer, tmp_path / "store")
    losses = []
    for name, how in (
        ("b", {"valid": formers.Store.open(tmp_path / "store")}),
        ("c", {"overrides": {"data.valid": [str(tmp_path / "store")]}}),
    ):
        run = formers.pretrain("gpt2", texts[20:], out=tmp_path / name, tokenizer=tokenizer, **how, **small)
        losses.append(run.score.loss)
    assert losses[0] == losses[1]
    with pytest.raises(Error, match="another tokenizer"):
        formers.pretrain("gpt2", texts[20:], out=tmp_path / "d", data={"vocab_size": 310}, **how, **small)


@pytest.mark.parametrize("is_main", [True, False])
def test_a_log_keeps_one_step_at_most(is_main):
    rows, steps = [], []
    log = StepLog(SimpleNamespace(write_row=rows.append) if is_main else None, steps.append)
    results = [StepResult(i, 1e-3, i, lambda: StepOutcome({"lm": 1.0}, 1.0)) for i in range(1, 4)]
    for result in results:
        log.add(result)
        assert log.unwritten is result
        assert not result.has_outcome
    log.close()
    assert [row["step"] for row in rows] == [r.step for r in steps] == ([1, 2] if is_main else []), "the last is unread"
    log.write()
    assert log.unwritten is None
    assert len(rows) == (3 if is_main else 0)


def test_a_vocabulary_with_rows_to_spare(tmp_path):
    """model.vocab is kept if the tokenizer fits into it, else refused; a resumed run and an export have it too."""
    texts = [f"text {i} of many, with words and more words {i * 7}" for i in range(60)]
    small = {"model": {"dim": 16, "layers": 1, "heads": 2, "vocab": 512}, "data": {"vocab_size": 300}}
    steps = {"steps": 2, "batch_tokens": 256}
    assert formers.pretrain("gpt2", texts, out=tmp_path / "a", train=steps, **small).former.config.vocab == 512
    former = formers.pretrain("gpt2", texts, out=tmp_path / "a", resume=True, train={"steps": 3}).former
    assert former.config.vocab == 512
    formers.export(former, tmp_path / "out")
    assert formers.load(tmp_path / "out").config.vocab == 512
    small["model"]["vocab"] = 100
    with pytest.raises(Error, match="model.vocab 100 is smaller than the tokenizer"):
        formers.pretrain("gpt2", texts, out=tmp_path / "b", train=steps, **small)
