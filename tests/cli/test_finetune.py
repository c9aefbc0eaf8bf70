"""formers finetune as typed in a terminal: its first wrong steps, its dry run and what it says."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import yaml

import formers
from formers.errors import Error
from formers.training.run_folder import RunFolder, claim_run_folder
from tests.command_line import run_command
from tests.training.toy_runs import REVIEWS

TINY = ["--model.dim", 16, "--model.layers", 1, "--model.heads", 2, "--model.ff", 32, "--data.vocab_size", 300]
QUICK = [*TINY, "--epochs", 1, "--batch-size", 16]


@pytest.fixture
def work_folder(tmp_path, monkeypatch):
    """A folder of one's own, with examples in it."""
    monkeypatch.chdir(tmp_path)
    rows = [f"{row['text']}\t{row['label']}" for row in REVIEWS]
    (tmp_path / "reviews.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n", encoding="utf-8")
    (tmp_path / "odd.tsv").write_text("\n".join(["document\tkind", *rows]) + "\n", encoding="utf-8")
    (tmp_path / "글.txt").write_text("".join(f"{row['text']}\n" for row in REVIEWS), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("more", [[], ["--folds", 3], ["--seeds", 2]])
@pytest.mark.parametrize(
    ("file", "columns"), [("odd.tsv", "There are 'document', 'kind'"), ("글.txt", "There are 'text'")]
)
def test_plain_text_is_learned_only_if_it_is_asked_for(capsys, work_folder, file, columns, more):
    code, _, error = run_command(capsys, "finetune", "bert", "--train", file, *more)
    assert code == 2
    assert columns in error
    assert "--task lm" in error
    assert ("--columns text=document,label=kind" in error) == (file == "odd.tsv")
    assert not (work_folder / "runs").exists(), "a failed command leaves nothing behind"


@pytest.mark.parametrize(
    "words",
    [
        ["finetune", "bert", "--train", "nothing.tsv"],
        ["finetune", "bert", "--train", "reviews.tsv", "--tune.freeze", -5],
        ["finetune", "seq2seq", "--train", "reviews.tsv"],
        ["finetune", "bert", "--train", "reviews.tsv", "--sweep", "lr=1e-3 freeze=0,-5"],
        ["finetune", "bert", "--train", "reviews.tsv", "--sweep", "lr=1e-3,fast"],
        ["finetune", "bert", "--train", "reviews.tsv", "--folds", 100],
        ["finetune", "nowhere/model", "--task", "lm", "--train", "글.txt"],
        ["pretrain", "gpt2", "--data", "nothing.txt"],
        ["pretrain", "gpt2"],
        ["pretrain", "gpt2", "--data", "reviews.tsv", "--data.column", "kind"],
        ["pretrain", "transformer_xl", "--data", "글.txt", "--train.batch_rampup_steps", 4],
        ["prepare", "nothing.txt", "--tokenizer", "tokenizer", "--out", "runs/store"],
        ["prepare", "글.txt", "--out", "runs/store", "--tokenizer", "nothing"],
        ["prepare", "odd.tsv", "--tokenizer", "tokenizer", "--out", "runs/store", "--column", "nothing"],
        ["prepare", "글.txt", "--tokenizer", "tokenizer", "--out", "runs/store", "--tests", "nothing.txt"],
        ["tokenizer", "train", "bert", "nothing.txt", "--out", "runs/tokenizer"],
        ["export", "nothing", "--out", "runs/exported"],
        ["import", "nothing", "--out", "runs/imported"],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_a_failed_command_leaves_no_folder(capsys, work_folder, words):
    if "tokenizer" in words:
        run_command(capsys, "tokenizer", "train", "bert", "글.txt", "--vocab-size", 200, "--out", "tokenizer")
    code, _, error = run_command(capsys, *words)
    assert code == 2
    assert error.splitlines()[-1].startswith("formers: ")
    assert "See formers --help" not in error, "the command is a good one"
    assert not (work_folder / "runs").exists(), sorted(map(str, work_folder.rglob("*")))


def fill_folder_and_fail(path, error, *files):
    """Make a run's folder with some files in it, and fail; the folder."""
    with pytest.raises(type(error)), claim_run_folder(path, "bert") as made:
        raise_after(made, error, files)
    return made


def raise_after(folder, error, files):
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    raise error


def test_two_runs_never_take_the_same_number(work_folder):
    wrong = Error("wrong")
    with claim_run_folder(None, "bert") as one, claim_run_folder(None, "bert") as two:
        assert (one.name, two.name) == ("bert-1", "bert-2")
        assert not fill_folder_and_fail(None, wrong, "data/store/store.json").exists()
        assert not fill_folder_and_fail(None, KeyboardInterrupt(), "data/store/begun.json").exists()
        assert fill_folder_and_fail(None, KeyboardInterrupt(), "data/store/store.json").exists(), (
            "a finished store is worth hours"
        )
        assert fill_folder_and_fail(None, wrong, "run.json").exists(), "a run that has begun can go on"
    assert fill_folder_and_fail(one, wrong).exists(), "it was there before"
    assert not fill_folder_and_fail(work_folder / "a" / "b", wrong).exists()
    assert not (work_folder / "a").exists()
    assert fill_folder_and_fail(work_folder / "a" / "b", wrong, "data/tokenizer.json").exists(), (
        "a folder that was named keeps its text"
    )


def test_a_result_that_is_not_finite_is_no_model(capsys, work_folder):
    words = ["finetune", "bert", "--train", "reviews.tsv", *QUICK]
    code, out, error = run_command(capsys, *words, "--lr", 1e38, "--out", "one")
    assert (code, out) == (3, "")
    assert "the validation loss is not finite (2 of 3 steps had a loss or gradient that is not finite)" in error
    assert "--resume and a lower --train.lr" in error
    assert not (work_folder / "one" / "model").exists()
    assert not (work_folder / "one" / "report.html").exists()
    code, out, _ = run_command(capsys, *words, "--train.lr", 1e-3, "--out", "one", "--resume")
    assert code == 0
    assert (work_folder / "one" / "model").exists()
    code, out, error = run_command(capsys, *words, "--sweep", "lr=1e38,1e-3", "--out", "two")
    assert code == 3, "but what went well is told"
    assert "lr 0.001" in out
    assert "1 of the runs diverged, and their settings are left out: lr=1e+38-seed0" in error
    assert "lr=1e+38" in (work_folder / "two" / "report.md").read_text()
    assert run_command(capsys, *words, "--folds", 2, "--lr", 1e38, "--out", "three")[0] == 3
    sizes = [*TINY, "--model.context", 24, "--train.steps", 4, "--train.seq_length", 24, "--train.batch_tokens", 240]
    for share in (0.2, 0.0):
        more = ["--train.lr", 1e38, "--train.warmup_steps", 0, "--data.valid_fraction", share, "--out", f"text{share}"]
        code, _, error = run_command(capsys, "pretrain", "gpt2", "--data", "글.txt", *sizes, *more)
        assert code == 3
        assert "3 of 4 steps had a loss or gradient that is not finite" in error
        assert not (work_folder / f"text{share}" / "model").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--train.lr", 0], "the learning rate must be above 0, got 0.0"),
        (["--train.lr", -1e-3], "the learning rate must be above 0"),
        (["--train.lr", "nan"], "lr' must be float, not nan"),
        (["--train.lr", "inf"], "lr' must be float, not inf"),
        (["--train.betas", "[0.9, 1.0]"], "betas are two numbers from 0 to below 1"),
        (["--train.eps", 0], "eps must be above 0"),
        (["--train.weight_decay", -0.1], "decay must be at least 0"),
        (["--train.weight_decay", "nan"], "weight_decay' must be float, not nan"),
        (["--train.grad_clip", -1], "clip must be at least 0"),
        (["--train.warmup_steps", 50], "a warmup of 50 steps is longer than the run"),
        (["--train.ema", 1], "ema must be at least 0 and below 1"),
        (["--model.dropout", 1], "dropout must be at least 0 and below 1"),
    ],
)
@pytest.mark.parametrize("verb", ["pretrain", "finetune"])
def test_settings_that_would_teach_nothing_are_refused(capsys, work_folder, verb, words, message):
    begin = {
        "pretrain": ["pretrain", "bert", "--data", "글.txt", "--train.steps", 20],
        "finetune": ["finetune", "bert", "--train", "reviews.tsv", *QUICK],
    }[verb]
    code, _, error = run_command(capsys, *begin, *words)
    assert code == 2
    assert message in error
    assert not (work_folder / "runs").exists()


def test_finished_runs_say_so(capsys, work_folder):
    words = ["finetune", "bert", "--train", "reviews.tsv", *QUICK, "--out", "run"]
    assert run_command(capsys, *words)[0] == 0
    again = [*words, "--resume"]
    code, out, error = run_command(capsys, *again)
    assert code == 0
    assert "this run was finished before, after 1 epoch; raise --epochs above 1 to continue" in error
    code, out, error = run_command(capsys, *again, "--lr", 1e-2)
    assert (code, out) == (2, "")
    assert "this run is finished: after 1 epoch, train.lr changes nothing. Raise --epochs above 1" in error
    last = len(words) - words[::-1].index("--epochs")
    more = [*words[:last], 3, *words[last + 1 :], "--resume"]
    assert run_command(capsys, *more)[0] == 0
    assert RunFolder(work_folder / "run").read_history()[-1]["step"] == 9
    assert "3 epochs done, more than 1. --epochs 3 or more" in run_command(capsys, *again)[2]
    sizes = ["--data", "글.txt", *TINY, "--model.context", 24, "--train.seq_length", 24, "--train.batch_tokens", 240]
    words = ["pretrain", "gpt2", *sizes, "--train.steps", 2, "--seed", 5, "--out", "text"]
    assert run_command(capsys, *words)[0] == 0
    asked = RunFolder(work_folder / "text").read_info()["config"]["train"]
    assert (asked["seed"], asked["warmup_steps"]) == (5, 0), "a recipe's warm-up is no longer than the run"
    code, _, error = run_command(capsys, *words, "--resume")
    assert code == 0
    assert "this run was finished before, after 2 steps; raise --train.steps above 2 to continue" in error
    code, out, error = run_command(capsys, *words, "--resume", "--train.lr", 1)
    assert (code, out) == (2, "")
    assert "train.lr changes nothing. Raise --train.steps above 2" in error


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["finetune", "bert-base-uncased"], "hub:google-bert/bert-base-uncased fetches it from the hub"),
        (["finetune", "klue/bert-base"], "hub:klue/bert-base to fetch it from the hub"),
        (["finetune", "albert-base-v2"], "hub:albert/albert-base-v2 fetches it"),
        (["finetune", "bert-base-uncasd"], "Did you mean 'bert-base-uncased'"),
        (["pretrain", "bert", "--preset", "bert-base-uncased"], "--init hub:google-bert/bert-base-uncased"),
        (["pretrain", "bert-base-uncased"], "formers pretrain bert --init hub:google-bert/bert-base-uncased --data"),
        (["pretrain", "roberta-base"], "formers pretrain roberta --preset roberta-base --data FILE"),
        (["pretrain", "gpt3-small"], ". formers pretrain gpt3 --preset gpt3-small"),
        (["pretrain", "textcnn"], ". formers finetune textcnn --train FILE"),
        (["pretrain", "vectors"], "choose pretrain word2vec, glove or fasttext".capitalize()),
        (["pretrain", "berd"], "Did you mean 'bert'?"),
    ],
)
def test_a_published_name_is_not_answered_with_random_weights(capsys, work_folder, words, message):
    data = ["--train", "reviews.tsv"] if words[0] == "finetune" else ["--data", "글.txt"]
    code, _, error = run_command(capsys, *words, *data)
    assert code == 2
    assert message in error


def test_random_weights_are_named_as_such(capsys, work_folder):
    model = ["--model.dim", 16, "--model.layers", 1, "--model.heads", 2, "--data.vocab_size", 300, "--train.steps", 1]
    words = ["finetune", "gpt2-medium", "--train", "reviews.tsv", "--out", "run", *model]
    said = run_command(capsys, *words)[2]
    assert "gpt2-medium starts from random weights; the published weights are hub:openai-community/gpt2-medium" in said
    words = ["pretrain", "gpt2", "--data", "글.txt", "--out", "two", "--preset", "gpt2-medium", *model]
    said = run_command(capsys, *words, "--train.seq_length", 16, "--train.batch_tokens", 64)[2]
    assert "are hub:openai-community/gpt2-medium: --init continues from them" in said


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_plain_line(capsys, work_folder):
    words = [
        "finetune",
        "textcnn",
        "--train",
        "reviews.tsv",
        "--train.activation_checkpointing",
        "true",
        "--train.steps",
        1,
    ]
    said = run_command(capsys, *words, "--model.embed", 8, "--model.filters", 4)[2]
    assert "formers: note: this family has no blocks: train.activation_checkpointing does nothing\n" in said
    assert "Warning" not in said
    assert ".py" not in said


def test_counts_are_whole_numbers(capsys, work_folder):
    sizes = [*TINY, "--model.context", 24, "--train.seq_length", 24, "--train.batch_tokens", 240, "--train.steps", 1]
    assert run_command(capsys, "pretrain", "gpt2", "--data", "글.txt", "--out", "run", *sizes)[0] == 0
    said = dict(
        line.split()[:2] for line in run_command(capsys, "evaluate", "run", "--data", "글.txt")[1].splitlines()[1:]
    )
    assert said["words"] == "336"
    assert said["tokens"].replace(",", "").isdigit()
    assert "." in said["loss"]


def test_print_config_given_back_is_the_same_run(capsys, work_folder):
    words = ["finetune", "bert", "--train", "reviews.tsv", *QUICK, "--seed", 3]
    code, text, _ = run_command(capsys, *words, "--print-config")
    assert code == 0
    told = yaml.safe_load(text)
    assert told["task"] == "classify"
    assert told["tune"]["epochs"] == 1
    assert "epochs: 1\n" in text, "no 1.0"
    assert "steps" not in told["train"], "the examples say"
    (work_folder / "run.yaml").write_text(text, encoding="utf-8")
    assert run_command(capsys, "finetune", "--config", "run.yaml", "--print-config")[1] == text
    assert run_command(capsys, *words, "--out", "one")[0] == 0
    assert run_command(capsys, "finetune", "--config", "run.yaml", "--out", "two")[0] == 0
    one, two = (RunFolder(work_folder / name).read_info()["config"] for name in ("one", "two"))
    assert one == two
    assert not (work_folder / "runs").exists()
    for family in ("transformer", "textcnn", "t5"):
        task = "classify" if family == "textcnn" else "translate"
        text = run_command(capsys, "finetune", family, "--task", task, "--print-config")[1]
        (work_folder / "run.yaml").write_text(text, encoding="utf-8")
        assert run_command(capsys, "finetune", "--config", "run.yaml", "--print-config")[1] == text
    assert "no model is named" in run_command(capsys, "finetune", "--print-config")[2]


def test_dry_run_of_a_task_says_what_was_understood_and_writes_nothing(capsys, work_folder):
    before = sorted(work_folder.rglob("*"))
    words = ["finetune", "bert", "--train", "reviews.tsv", *QUICK, "--dry-run"]
    code, said, error = run_command(capsys, *words)
    assert code == 0, error
    rows = {line.split()[0]: line.partition("  ")[2].strip() for line in said.splitlines()}
    assert "2 labels, 48 examples" in rows["train"]
    assert rows["labels"] == "no, yes"
    assert rows["steps"].startswith("3 of ")
    assert rows["steps"].endswith(": 1 epoch")
    assert "accuracy on the validation examples, once" in said
    assert "random weights" in rows["model"]
    assert "tokens/s" in rows["speed"]
    assert (
        run_command(capsys, *words, "--seeds", 3, "--sweep", "lr=1e-3,1e-4")[1].splitlines()[-1].endswith("6 such runs")
    )
    said = run_command(capsys, *words, "--valid", "reviews.tsv")[1]
    assert "48 of 48 valid examples are among the train examples too" in said
    assert sorted(work_folder.rglob("*")) == before
    sizes = [*TINY, "--model.context", 24, "--train.seq_length", 24, "--train.batch_tokens", 240, "--train.steps", 1]
    run_command(capsys, "pretrain", "gpt2", "--data", "글.txt", "--out", "start", *sizes)
    before = sorted(work_folder.rglob("*"))
    words = ["finetune", "start", "--task", "lm", "--train", "글.txt", "--epochs", 2]
    code, said, error = run_command(capsys, *words, "--dry-run")
    assert code == 0, error
    assert "tokens/s" in said
    text = run_command(capsys, *words, "--print-config")[1]
    assert sorted(work_folder.rglob("*")) == before
    asked = yaml.safe_load(text)
    assert (asked["init"], asked["data"]["source"]) == ("start", ["글.txt"])
    assert asked["train"]["steps"] > 10


class Weights:
    """A module like W&B's, as far as it is used."""

    def __init__(self):
        self.begun, self.lines, self.ended = [], [], 0

    def init(self, **given):
        if given["project"] == "forbidden":
            raise RuntimeError("no key")
        self.begun.append(given)
        return SimpleNamespace(id=given.get("id", "abc"), log=self.log, finish=self.finish)

    def log(self, values, step):
        self.lines.append((step, values))

    def finish(self):
        self.ended += 1


def test_metrics_go_to_weights_and_biases(capsys, work_folder, monkeypatch):
    fake = Weights()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    words = ["finetune", "bert", "--train", "reviews.tsv", *QUICK, "--wandb", "--out", "tests/한글"]
    assert run_command(capsys, *words)[0] == 0
    given = fake.begun[0]
    assert (given["project"], given["name"], given["config"]["task"]) == ("tests", "한글", "classify")
    assert {step for step, _ in fake.lines} == {1, 2, 3}
    assert {"training/lr", "training/classify", "valid/accuracy"} <= {key for _, seen in fake.lines for key in seen}
    assert fake.ended == 1
    assert run_command(capsys, *words, "--resume", "--train.steps", 5)[0] == 0
    assert (fake.begun[1]["id"], fake.begun[1]["resume"]) == ("abc", "allow")
    sizes = ["--data", "글.txt", *TINY, "--model.context", 24, "--train.seq_length", 24, "--train.batch_tokens", 240]
    words = ["pretrain", "gpt2", *sizes, "--train.steps", 2, "--wandb"]
    assert run_command(capsys, *words, "--out", "experiments/a")[0] == 0
    assert (fake.begun[2]["project"], fake.begun[2]["name"], fake.ended) == ("experiments", "a", 3)
    monkeypatch.setenv("WANDB_PROJECT", "forbidden")
    code, _, error = run_command(capsys, *words, "--out", "b")
    assert code == 2
    assert "Weights & Biases did not begin (no key). Log in with: wandb login" in error
    for option, module in (("--wandb", "wandb"), ("--tensorboard", "torch.utils.tensorboard")):
        monkeypatch.setitem(sys.modules, module, None)
        for verb in (["pretrain", "gpt2", *sizes], ["finetune", "bert", "--train", "reviews.tsv"]):
            code, _, error = run_command(capsys, *verb, option)
            assert code == 2
            assert "is not installed. pip install 'formers[track]'" in error
    assert not (work_folder / "runs").exists()


def test_metrics_go_to_tensorboard(capsys, work_folder, monkeypatch):
    told = []

    class Writer:
        def __init__(self, where):
            told.append(where)

        def add_scalar(self, *given):
            told.append(given)

        def close(self):
            told.append("closed")

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    words = ["finetune", "bert", "--train", "reviews.tsv", *QUICK, "--tensorboard", "--seeds", 2, "--out", "both"]
    assert run_command(capsys, *words)[0] == 0
    folders = [one for one in told if isinstance(one, str) and one != "closed"]
    assert folders == ["both/seed0/tensorboard", "both/seed1/tensorboard"]
    assert told.count("closed") == 2
    assert [one[::2] for one in told if one[0] == "training/lr"] == [("training/lr", step) for step in (1, 2, 3)] * 2


def test_runs_are_listed_with_task_and_main_metric(capsys, work_folder):
    words = ["finetune", "bert", "--train", "reviews.tsv", *QUICK]
    for more in (["--out", "all/a"], ["--out", "all/b", "--test", "reviews.tsv", "--tune.metric", "f1_macro"]):
        assert run_command(capsys, *words, *more)[0] == 0
    patient = ["--out", "all/c", "--tune.patience", 1, "--lr", 1e-99]
    words[words.index("--epochs") + 1] = 9
    assert run_command(capsys, *words, *patient)[0] == 0
    run_command(capsys, *words, "--out", "all/d", "--lr", 1e38)
    rows = {line.split()[0]: line.split() for line in run_command(capsys, "runs", "all")[1].splitlines()}
    assert rows["run"][1:3] == ["family", "task"]
    assert rows["a"][1:3] == ["bert", "classify"]
    assert rows["a"][6] == "accuracy"
    assert rows["b"][6:8] == ["test", "f1_macro"]
    assert (rows["a"][-1], rows["c"][-1]) == ("done", "done"), "one that has stopped early is done, too"
    assert int(rows["c"][3]) < int(rows["c"][5])
    assert rows["d"][-1] == "diverged"


def test_a_word_that_is_seen_once_keeps_its_vector(work_folder, tmp_path):
    """With word vectors, rare words of a small training set are known: that is what the vectors are for."""
    words = [f"{chr(0xAC00 + 28 * i)}말" for i in range(40)]
    lines = ["40 4", *(f"{word} {i % 7} {i % 5} {i % 3} 1" for i, word in enumerate(words))]
    (tmp_path / "v.vec").write_text("\n".join(lines) + "\n", encoding="utf-8")
    rows = [{"text": word, "label": str(i % 2)} for i, word in enumerate(words)]
    settings = {"tune": {"epochs": 1, "vectors": str(tmp_path / "v.vec"), "baseline": False}}
    run = formers.finetune("textcnn", rows, task="classify", out=tmp_path / "run", **settings)
    known = {run.former.tokenizer.get_token_text(i) for i in range(len(run.former.tokenizer))}
    assert sum(word in known for word in words) == 36  # but the four that are held out


def test_a_run_that_was_given_steps_answers_in_steps(capsys, work_folder):
    words = ["finetune", "bert", "--train", "reviews.tsv", *TINY, "--train.steps", 2, "--out", "run"]
    words += ["--batch-size", 16, "--train.warmup_steps", 0]
    assert run_command(capsys, *words)[0] == 0
    assert "finished before, after 2 steps; raise --train.steps above 2" in run_command(capsys, *words, "--resume")[2]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["finetune", "bert", "--trian", "reviews.tsv"], "unknown option --trian. Did you mean --train?"),
        (["finetune", "--trian=reviews.tsv", "bert"], "Did you mean --train?"),
        (["finetune", "bert", "--ecnoding", "cp949"], "Did you mean --encoding?"),
        (["pretrain", "gpt2", "--dat", "글.txt"], "Did you mean --data?"),
        (["finetune", "bert", "--zzzz", "1"], "See formers finetune --help; settings have a dot"),
        (["pretrain", "word2vec", "--zzzz", "1"], "settings have a dot: --train.lr 0.01"),
        (["pretrain", "word2vec", "--max_steps", "1"], "--max_steps. See formers pretrain FAMILY --help"),
        (["pretrain", "word2vec", "--batch_size", "1"], "--batch_size. See formers pretrain FAMILY --help"),
        (["pretrain", "word2vec", "--negatives", "1"], "it is a setting: --model.negatives".capitalize()),
        (["resume"], "formers finetune --resume --out RUN"),
        (["resume", "runs/bert-1", "--epochs", "3"], "formers pretrain FAMILY --resume --out runs/bert-1"),
        (["pretrain", "--config", "f.yaml", "gpt2"], "formers pretrain gpt2 --config f.yaml"),
        (["pretrain", "--config", "f.yaml"], "formers pretrain FAMILY --config f.yaml"),
        (["tree", "bert-base-uncased"], "formers tree bert; the model is hub:google-bert/bert-base-uncased on the hub"),
        (["tree", "klue/bert-base"], "hub:klue/bert-base"),
        (["tree", "bert-base"], "a preset of bert"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, list) else "",
)
def test_a_slip_of_the_pen_is_answered_with_what_to_type(capsys, work_folder, words, message):
    code, _, error = run_command(capsys, *words)
    assert code == 2
    assert message in error
    assert len(error.splitlines()) == 1


@pytest.mark.parametrize("verb", [["finetune", "bert", "--train", "reviews.tsv"], ["pretrain", "gpt2"]])
def test_dtype_is_the_precision_of_training(capsys, work_folder, verb):
    for name, kind in (("bf16", "bf16"), ("float16", "fp16"), ("float32", "fp32")):
        code, out, _ = run_command(capsys, *verb, "--dtype", name, "--print-config")
        assert code == 0
        assert yaml.safe_load(out)["train"]["precision"] == kind
    same = run_command(capsys, *verb, "--dtype", "bfloat16", "--train.precision", "bf16", "--print-config")
    assert same[0] == 0
    code, _, error = run_command(capsys, *verb, "--dtype", "bf16", "--train.precision", "fp32", "--print-config")
    assert code == 2
    assert "--dtype bf16 and --train.precision fp32 contradict each other. Give one of them" in error
    assert run_command(capsys, *verb, "--dtype", "int8", "--print-config")[0] == 2


def test_a_stage_without_details_ends_without_a_comma(capsys):
    from formers.cli.terminal import SafeConsole, build_line_reporter

    tell = build_line_reporter(SafeConsole(stderr=True), "finetune")
    tell("reading", 8, 8, "")
    tell("training", 8, 8, "loss 1")
    assert capsys.readouterr().err.splitlines() == ["finetune: reading 8/8", "finetune: training 8/8, loss 1"]
