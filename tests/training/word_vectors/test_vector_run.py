"""formers pretrain word2vec, glove, fasttext: from text to vectors that neighbours and finetune take."""

from __future__ import annotations

import itertools
import json

import pytest
import torch
import yaml

import formers
from formers.data.readers import load_bundled_corpus
from formers.errors import Error
from formers.interop.word_vectors import write_word_vectors
from formers.models.vectors import METHODS
from formers.training.distributed.process_group import ProcessGroup
from formers.training.run_folder import RunFolder
from formers.training.runs.dry_run import dry_run_pretraining
from tests.command_line import run_command

QUICK = ["--dim", 8, "--epochs", 1, "--min-count", 2, "--train.threads", 1, "--model.window", 3]


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    file = tmp_path_factory.mktemp("text") / "법률.txt"
    file.write_text("\n".join(t.replace("\n", " ") for t in load_bundled_corpus("ko")[0][:40]) + "\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def words(text):
    """Frequent words of the text."""
    from formers.training.word_vectors.word2vec import Corpus

    return [
        w for w in Corpus.from_texts([text.read_text(encoding="utf-8")], 3, True).words if w.isalpha() and len(w) > 1
    ]


@pytest.mark.parametrize("method", METHODS)
def test_from_text_to_neighbours_and_a_report(capsys, tmp_path, monkeypatch, text, words, method):
    monkeypatch.chdir(tmp_path)
    buckets = ["--model.buckets", 1000] if method == "fasttext" else []
    asked = ["pretrain", method, "--data", text, *QUICK, *buckets]
    code, out, error = run_command(capsys, *asked, "--seed", 3)
    assert code == 0, error
    assert f"model: runs/{method}-1/model" in out
    near = run_command(capsys, "neighbours", f"runs/{method}-1", words[0], "--k", 3)[1].splitlines()
    assert len(near) == 3
    about = RunFolder(tmp_path / "runs" / f"{method}-1").read_info()
    assert (about["config"]["train"]["seed"], about["config"]["model"]["dim"], about["data"]["documents"]) == (3, 8, 40)
    sample = json.loads((tmp_path / "runs" / f"{method}-1" / "samples.jsonl").read_text().splitlines()[0])
    for name in ("report.html", "report.md"):
        assert sample["made"] in (tmp_path / "runs" / f"{method}-1" / name).read_text(encoding="utf-8")
    listed = run_command(capsys, "runs")[1]
    assert f"{method}-1" in listed
    assert "done" in listed
    assert ("n-grams of 2 to 4" in error) == (method == "fasttext")
    new = run_command(capsys, "neighbours", f"runs/{method}-1", "아무도모르는낱말")
    assert new[0] == (0 if method == "fasttext" else 2), "fastText knows words that it has never seen"
    assert run_command(capsys, "rerun", f"runs/{method}-1", "--out", "again")[0] == 0
    one, two = (formers.load(tmp_path / p / "model").model.body.embedding_table for p in (f"runs/{method}-1", "again"))
    assert torch.equal(one, two)
    other = run_command(capsys, *asked, "--seed", 4, "--out", "other")
    assert other[0] == 0
    assert not torch.equal(one, formers.load(tmp_path / "other").model.body.embedding_table)
    code, _, error = run_command(capsys, *asked, "--out", "other")
    assert code == 2
    assert "there is a run here already" in error
    assert "--resume" in error


def test_settings_and_mistakes(capsys, tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    printed = run_command(
        capsys, "pretrain", "word2vec", "--data", text, "--dim", 20, "--model.kind", "cbow", "--print-config"
    )
    told = yaml.safe_load(printed[1])
    assert (told["model"]["kind"], told["model"]["dim"], told["data"]["source"]) == ("cbow", 20, [str(text)])
    (tmp_path / "c.yaml").write_text(printed[1], encoding="utf-8")
    assert run_command(capsys, "pretrain", "word2vec", "--config", "c.yaml", "--print-config")[1] == printed[1]
    (tmp_path / "short.txt").write_text("하나 둘 셋\n", encoding="utf-8")
    for words, message in (
        ([], "there is no text to learn from. Give --data FILES"),
        (["--data", "nothing.txt"], "there is no such file"),
        (["--data", "short.txt"], "no word occurs 5 times. Give more text, or a smaller min_count (--min-count 1)"),
        (["--data", text, "--model.kind", "glove"], "word2vec is not trained as 'glove'"),
        (["--data", text, "--model.vocab", 5], "model: unknown setting 'vocab'"),
        (["--data", text, "--train.lr", 0], "the learning rate must be above 0"),
        (["--data", text, "--train.steps", 5], "train: unknown setting 'steps'"),
        (["--data", text, "--epochs", 0], "epochs must be at least 1"),
    ):
        code, _, error = run_command(capsys, "pretrain", "word2vec", *words)
        assert code == 2
        assert message in error
        assert not (tmp_path / "runs").exists()
    code, _, error = run_command(capsys, "pretrain", "glove", "--data", text, "--train.lr", 1e30, *QUICK)
    assert code == 3
    assert "the vectors are not finite: the loss of step 1 is" in error
    assert "Take a smaller learning rate: --train.lr, also with --resume" in error
    assert "diverged" in run_command(capsys, "runs")[1]
    assert run_command(capsys, "pretrain", "glove", "--resume", "--train.lr", 0.05)[0] == 0
    assert "done" in run_command(capsys, "runs")[1]
    page = run_command(capsys, "pretrain", "fasttext", "--help")[1]
    assert "formers pretrain fasttext --data my.txt" in page
    assert "word2vec" in run_command(capsys, "pretrain", "--help")[1]
    with pytest.raises(Error, match="preset does not apply to word vectors"):
        formers.pretrain("glove", ["a b"], preset="glove-6b-50d")
    made = formers.pretrain("word2vec", ["하나 둘 셋"] * 9, out=tmp_path / "api", model={"dim": 4}, train={"epochs": 1})
    assert made.former.config.dim == 4
    assert len(made.history) == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_dry_run_writes_nothing(capsys, tmp_path, monkeypatch, text, method):
    monkeypatch.chdir(tmp_path)
    code, out, error = run_command(capsys, "pretrain", method, "--data", text, *QUICK, "--dry-run")
    assert code == 0, error
    assert not list(tmp_path.iterdir())
    for name in ("words", "text", "steps", "checkpoint", "memory", "speed", "time"):
        assert any(line.startswith(name) for line in out.splitlines()), out


def test_a_dry_run_of_an_excerpt_counts_the_whole_text(tmp_path, monkeypatch, text):
    given = {"data.source": str(text), "model.min_count": 1, "train.epochs": 3, "train.threads": 1}
    monkeypatch.setattr("formers.training.runs.run.time.perf_counter", itertools.count().__next__)
    rows = dict(dry_run_pretraining("word2vec", None, given))
    monkeypatch.setattr("formers.training.runs.prepare_data.EXCERPT_CHARS", 2000)
    part = dict(dry_run_pretraining("word2vec", None, given))
    whole, places = (int(found["text"].split()[1].replace(",", "")) for found in (rows, part))
    assert abs(places - whole) < whole / 4
    assert part["words"].startswith("at least")
    assert not rows["words"].startswith("at least")


def test_a_run_resumes_with_its_own_settings_alone(tmp_path, text):
    """Another text, method or dimension is refused; more epochs continue, and fewer than are done are refused."""
    how = {"model": {"dim": 4, "min_count": 2}, "train": {"epochs": 2, "threads": 1}}
    made = formers.pretrain("word2vec", text, out=tmp_path / "run", **how)

    def resume(text=None, **more):
        return formers.pretrain("word2vec", text, out=tmp_path / "run", resume=True, **more)

    for call, message in (
        (lambda: formers.pretrain("word2vec", text, out=tmp_path / "run", **how), "there is a run here already"),
        (lambda: formers.pretrain("glove", out=tmp_path / "run", resume=True), "is a run of word2vec, not of glove"),
        (lambda: formers.pretrain("bert", out=tmp_path / "run", resume=True), "is a run of vectors, not of bert"),
        (lambda: resume(model={"dim": 5}), "model.dim cannot change in a resumed run"),
        (lambda: resume(train={"threads": 2}), "this run is finished: after 2 epochs, train.threads changes nothing"),
        (lambda: resume(train={"epochs": 1}), "2 epochs done, more than 1"),
        (lambda: resume(["other text"] * 9, train={"epochs": 3}), "the text has changed since the run began"),
    ):
        with pytest.raises(Error, match=message):
            call()
    said = []
    resume(say=said.append)
    assert "this run was finished before, after 2 epochs; raise --epochs above 2 to continue" in said
    longer = resume(train={"epochs": 3})
    assert [row["step"] for row in longer.history] == [1, 2, 3]
    assert not torch.equal(longer.former.model.body.embedding_table, made.former.model.body.embedding_table)


def test_several_processes_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("formers.training.runs.run.connect_processes", lambda device: ProcessGroup(0, 2))
    monkeypatch.setattr(ProcessGroup, "broadcast_from_main", lambda self, make: make())
    with pytest.raises(Error, match="word vectors are trained in one process"):
        formers.pretrain("word2vec", ["하나 둘 셋"] * 9, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


ROWS = [(f"{word} 영화 {i}", label) for i in range(20) for word, label in (("좋은", "긍정"), ("나쁜", "부정"))]


@pytest.fixture(scope="module")
def vectors(tmp_path_factory):
    """Word vectors in all the forms in which they come."""
    folder = tmp_path_factory.mktemp("vectors")
    texts = [f"{text} 그리고 모두" for text, _ in ROWS]
    made = formers.pretrain("fasttext", texts, out=folder / "run", model={"dim": 6, "min_count": 2, "buckets": 50},
                            train={"epochs": 1, "threads": 1})  # fmt: skip
    write_word_vectors(made.former, folder / "text.vec")
    write_word_vectors(made.former, folder / "glove.txt", "glove")
    write_word_vectors(made.former, folder / "binary.bin.gz", "binary")
    write_word_vectors(made.former, folder / "fasttext.bin", "fasttext")
    lines = ["text\tlabel", *(f"{text}\t{label}" for text, label in ROWS)]
    (folder / "rows.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ["run", "run/model", "text.vec", "glove.txt", "binary.bin.gz", "fasttext.bin"])
def test_a_textcnn_starts_from_vectors(capsys, tmp_path, vectors, name):
    words = ["finetune", "textcnn", "--train", vectors / "rows.tsv", "--vectors", vectors / name, "--freeze-vectors"]
    more = ["--epochs", 1, "--model.filters", 4, "--tune.baseline", "false", "--out", tmp_path / "a"]
    code, _, error = run_command(capsys, *words, *more)
    assert code == 0, error
    assert "pieces have a vector" in error
    assert len(run_command(capsys, "neighbours", vectors / name, "좋은", "--k", 2)[1].splitlines()) == 2
    former, known = formers.load(tmp_path / "a"), formers.load(vectors / "run")
    place, row = former.tokenizer.backend.token_to_id("좋은"), known.tokenizer.backend.token_to_id("좋은")
    assert torch.allclose(former.model.body.embedding_table[place], known.model.body.embedding_table[row], atol=1e-5), (
        "they stay"
    )
    assert former.config.embed == 6, "as wide as the vectors"


@pytest.mark.parametrize(("channels", "learns"), [("trained", True), ("static", False), ("both", True)])
def test_the_channels_keep_their_meaning(capsys, tmp_path, vectors, channels, learns):
    words = ["finetune", "textcnn", "--train", vectors / "rows.tsv", "--vectors", vectors / "run", "--epochs", 2]
    more = ["--model.filters", 4, "--model.channels", channels, "--lr", 1e-2, "--tune.baseline", "false"]
    code, _, error = run_command(capsys, *words, *more, "--out", tmp_path / "a")
    assert code == 0, error
    former, known = formers.load(tmp_path / "a"), formers.load(vectors / "run")
    place, row = former.tokenizer.backend.token_to_id("좋은"), known.tokenizer.backend.token_to_id("좋은")
    assert torch.equal(former.model.body.embedding_table[place], known.model.body.embedding_table[row]) != learns
    if channels == "both":
        fixed = former.model.body.fixed.token.weight[place]
        assert torch.allclose(fixed, known.model.body.embedding_table[row]), (
            "the second channel has them too, and stays"
        )
    asked = json.loads((tmp_path / "a" / "run.json").read_text())["config"]
    again = run_command(
        capsys, "finetune", "--out", tmp_path / "a", "--resume", "--train.steps", asked["train"]["steps"] + 1
    )
    assert again[0] == 0, "a run that goes on does not need the file any more"


def test_vectors_that_do_not_fit_are_refused(capsys, tmp_path, vectors):
    rows = vectors / "rows.tsv"
    (tmp_path / "other.vec").write_text("2 3\nking 1 2 3\nqueen 2 3 4\n")
    for words, message in (
        (["textcnn", "--vectors", "nowhere"], "nowhere: no such directory"),
        (["textcnn", "--vectors", rows], "rows.tsv"),
        (["textcnn", "--vectors", tmp_path / "other.vec"], "words of the examples has a vector (for example"),
        (["textcnn", "--vectors", vectors / "run", "--model.embed", 9], "the vectors have 6 numbers, the embedding 9"),
        (["textcnn", "--freeze-vectors"], "tune.vectors_frozen has no vectors to freeze. Give --vectors PATH"),
        (["elmo", "--vectors", vectors / "run"], "elmo does not take word vectors"),
        (
            ["formers/bert-mini", "--vectors", vectors / "run"],
            "has embeddings of its own, which --vectors would replace",
        ),
    ):
        code, _, error = run_command(capsys, "finetune", *words, "--train", rows, "--out", tmp_path / "run")
        assert code == 2
        assert message in error
