"""A run that learns nothing says so, once, with a setting that helps; one that learns is not disturbed."""

from __future__ import annotations

import json
import random

import formers
from formers.reports.run_report import write_report
from formers.reports.translations import KOREAN
from formers.training import plateau_monitor
from formers.training.plateau_monitor import PlateauMonitor
from formers.training.run_folder import RunFolder
from formers.training.train_config import TrainConfig
from tests.training.toy_runs import DATA_SETTINGS, TEXT

MODEL = {"dim": 512, "layers": 12, "heads": 8}


def build_monitor(family="bert", lr=1e-3, **train):
    return PlateauMonitor(family, MODEL, TrainConfig(steps=5000, lr=lr, warmup_steps=100, **train), 7.0, "mlm")


def feed_losses(watch, losses, training=None, after=0):
    found = []
    for number, loss in enumerate(losses):
        for _ in range(100):  # steps between two evaluations
            watch.record_step({"mlm": loss if training is None else training[number]})
        found.append(watch.record_evaluation(after + 250 * (number + 1), loss))
    return [line for line in found if line]


def test_a_loss_that_stays_at_the_unigram_is_said_once_with_settings_that_help():
    (line,) = feed_losses(build_monitor(), [7.1, 6.9, 6.85, 6.84, 6.83, 6.83, 6.83])
    assert "6.8" in line
    assert "unigram 7.00" in line
    assert "12 layers" in line
    assert "post-norm" in line
    assert "--train.lr 0.00019" in line
    assert "--train.warmup_steps" in line
    assert "--train.residual_init 0.2" in line


def test_a_loss_that_falls_is_left_alone():
    assert not feed_losses(build_monitor(), [7.1, 6.9, 6.7, 6.4, 6.1, 5.9, 5.8])
    assert not feed_losses(build_monitor(), [7.1, 7.0, 6.95, 6.9, 6.8, 6.7, 6.5, 6.2])  # it learns late
    assert not feed_losses(build_monitor(), [5.0] * 20)  # far below the unigram, and flat: it has learned


def test_nothing_is_said_before_the_warmup_is_over():
    watch = PlateauMonitor("bert", MODEL, TrainConfig(steps=9000, warmup_steps=5000), 7.0, "mlm")
    assert not feed_losses(watch, [7.0] * 19)
    assert len(feed_losses(watch, [7.0] * 25)) == 1


def test_a_low_rate_is_to_be_raised_and_other_norms_get_other_advice():
    (line,) = feed_losses(build_monitor(lr=1e-6), [7.0] * 6)
    assert "low for this size" in line
    assert "--train.lr 0.00019" in line
    (line,) = feed_losses(build_monitor("gpt2", lr=0.1), [7.0] * 6)
    assert "post-norm" not in line
    assert "too high" in line


def test_frequent_evaluations_are_no_reason_to_speak_early():
    watch = PlateauMonitor("gpt2", MODEL, TrainConfig(steps=500, lr=1e-3, warmup_steps=0), 6.0, "lm")
    falling = [6.8 - 0.01 * step for step in range(1, 86)]  # 0.03 in three evaluations, 0.5 in fifty steps
    assert not [line for step, loss in enumerate(falling, 1) if (line := watch.record_evaluation(step, loss))]
    flat = [line for step in range(86, 400) if (line := watch.record_evaluation(step, 5.95))]
    assert len(flat) == 1
    assert "hardly better" in flat[0]


def test_the_rate_of_another_optimizer_is_not_compared():
    (line,) = feed_losses(build_monitor("elmo", lr=0.2, optimizer="adagrad"), [7.0] * 6)
    assert "--train.optimizer adamw --train.lr" in line
    (line,) = feed_losses(
        build_monitor("t5", lr=1e-3), [7.0] * 6
    )  # AdamW's; the recipe's 5e-3 is relative to the weights
    assert "--train.optimizer rms-adamw --train.lr" in line
    (line,) = feed_losses(build_monitor("gpt2", lr=0.1, optimizer="adam"), [7.0] * 6)
    assert "--train.optimizer" not in line
    (line,) = feed_losses(build_monitor("bert", lr=5e-5), [7.0] * 6)  # a quarter of the recipe's is not too high
    assert "low for this size" in line


def test_the_advised_warmup_ends_within_the_run():
    for warmup, advised in ((50, "--train.warmup_steps 200"), (300, "--train.warmup_steps 500"), (600, None)):
        watch = PlateauMonitor("bert", MODEL, TrainConfig(steps=1000, lr=1e-3, warmup_steps=warmup), 7.0, "mlm")
        (line,) = [line for step in range(50, 1001, 50) if (line := watch.record_evaluation(step, 7.0))]
        assert (advised or "--train.lr") in line
        assert ("--train.warmup_steps" in line) == (advised is not None)


def test_what_a_crash_took_back_is_measured_again_and_not_twice():
    watch = build_monitor()
    rows = [(250, 6.0), (500, 5.0), (750, 4.0)]
    watch.load_history([{"step": step, "valid": {"mlm": loss}} for step, loss in rows])
    watch.record_evaluation(500, 5.2)  # the newest checkpoint was of step 250
    assert [seen[:2] for seen in watch.evaluations] == [(250, 6.0), (500, 5.2)]


def test_a_run_that_gets_worse_than_its_best_says_why():
    worse = [6.0, 5.0, 4.0, *[4.0 + 0.1 * i for i in range(1, 9)]]
    (line,) = feed_losses(build_monitor(), worse, training=[6.0 - 0.3 * i for i in range(len(worse))])
    assert "its best was 4.00 at step 750" in line
    assert "by heart" in line
    (line,) = feed_losses(build_monitor(), worse)
    assert "too high" in line
    assert "--train.lr 0.00033" in line


def test_noise_around_a_flat_loss_is_no_decline():
    draw = random.Random(0)
    for _ in range(20):
        flat = [6.0, 5.0, 4.0, *(3 * (1 + draw.gauss(0, 0.01)) for _ in range(17))]
        assert not feed_losses(build_monitor(), flat), flat
    one = [6.0, 5.0, 4.0, 3.0, 2.9, *[3.0] * 8, 3.3, 3.0, 3.3, 3.0]  # one lucky evaluation, then unlucky ones
    assert not feed_losses(build_monitor(), one)
    worse = [6.0, 5.0, 4.0, 3.0, *(3 + 0.06 * i + 3 * draw.gauss(0, 0.01) for i in range(1, 16))]
    assert len(feed_losses(build_monitor(), worse)) == 1


def test_a_run_that_leaves_its_plateau_says_so_once():
    stuck = [7.1, 6.9, 6.85, 6.84, 6.83, 6.83, 6.83]
    said = feed_losses(
        build_monitor(), [*stuck, 6.7, 6.83, 6.83, 6.7, 6.5, 6.2, 5.9]
    )  # one lower evaluation is not enough
    assert len(said) == 2
    assert "learns again: its validation loss fell to 6.50 after step 3,000; it had stopped falling at 6.83" in said[1]
    watch = build_monitor()
    watch.load_history([{"step": 250 * i, "valid": {"mlm": loss}} for i, loss in enumerate([*stuck, 6.5, 6.2], 1)])
    assert not feed_losses(watch, [6.0, 5.8], after=2250)
    assert watch.final_note is None
    worse = [6.0, 5.0, 4.0, *[4.0 + 0.1 * i for i in range(1, 9)], 3.9, 3.8]
    assert "falls again: 3.90 after step 3,000 is its new best" in feed_losses(build_monitor(), worse)[1]


def test_everything_that_a_report_says_of_a_stuck_run_is_there_in_korean():
    forms = [value for name, value in vars(plateau_monitor).items() if name.isupper() and isinstance(value, str)]
    assert len(forms) >= 10
    assert not {form for form in forms if form not in KOREAN} - {
        plateau_monitor.ESCAPE_NOTE,
        plateau_monitor.NEW_BEST_NOTE,
    }, "on the screen alone"


def test_what_was_said_before_a_run_was_stopped_is_not_said_again():
    watch = build_monitor()
    watch.load_history([{"step": 250 * i, "valid": {"mlm": 6.9}} for i in range(1, 8)])
    assert watch.reported
    assert not feed_losses(watch, [6.9] * 3, after=1500)  # the last evaluation is repeated
    assert watch.final_note is not None


def test_nothing_is_said_without_a_finite_loss_or_a_unigram():
    watch = build_monitor()
    assert watch.record_evaluation(250, float("nan")) is None
    assert not watch.evaluations
    watch = PlateauMonitor("elmo", MODEL, TrainConfig(), None, "lm")
    assert not [line for i in range(9) if (line := watch.record_evaluation(100 * (i + 1), 7.0))]


def test_a_stuck_run_tells_the_user_and_its_file(tmp_path):
    said: list[str] = []
    sizes = {"dim": 16, "layers": 1, "heads": 2, "ff": 16, "context": 16}
    train = {
        "steps": 30, "batch_tokens": 256, "seq_length": 16, "lr": 1e-9, "warmup_steps": 1, "eval_every": 5,
        "samples": 0,
    }  # fmt: skip
    run = formers.pretrain(
        "gpt2", TEXT, out=tmp_path / "run", model=sizes, train=train, data=DATA_SETTINGS, say=said.append
    )
    notes = [line for line in said if "has learned little" in line]
    assert len(notes) == 1
    assert "--train.lr" in notes[0]
    result = json.loads((run.folder / "run.json").read_text(encoding="utf-8"))["result"]
    assert "has learned little" in result["stuck"]
    assert "has learned little" in (run.folder / "report.html").read_text(encoding="utf-8")
    assert "has learned little" in (run.folder / "report.md").read_text(encoding="utf-8")
    write_report(RunFolder(run.folder), "ko")
    for name in ("report.html", "report.md"):
        page = (run.folder / name).read_text(encoding="utf-8")
        assert "모델이 거의 학습하지 못했습니다" in page
        assert "학습률이 낮습니다" in page
        assert "has learned little" not in page
        assert "learning rate" not in page


def test_a_run_that_learns_says_nothing(tmp_path):
    said: list[str] = []
    train = {"steps": 40, "eval_every": 5, "samples": 0, "batch_tokens": 512, "warmup_steps": 5, "lr": 1e-2}
    run = formers.pretrain("gpt2", TEXT, out=tmp_path / "run", train=train, data=DATA_SETTINGS, say=said.append)
    assert not [line for line in said if line.startswith("note:")]
    assert "stuck" not in json.loads((run.folder / "run.json").read_text(encoding="utf-8"))["result"]
