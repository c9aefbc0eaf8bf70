"""Few-shot evaluation: against transformers and plain logits, draws, contexts that overflow, templates."""

from __future__ import annotations

import warnings

import pytest
import torch

from formers import Error
from formers.evaluation import few_shot
from formers.evaluation.few_shot import (
    PromptRow,
    ShotRunner,
    draw_shots,
    evaluate_shots,
    parse_label_words,
    parse_shots,
    parse_template,
)
from formers.former import Former
from tests.small_models import build_language_model

TEMPLATE = "{text} is {answer}"
WORDS = {"0": "the cat", "1": "좋아요"}
ROWS = [{"text": f"the mat {'on ' * (i % 3)}{i}", "label": "01"[i * 7 % 3 % 2]} for i in range(9)]
PAIRS = [{"text": f"the cat {i}", "target": str(i)} for i in range(6)]


@pytest.fixture(scope="module")
def gpt2():
    return build_language_model("gpt2", context=128)


def make_prompt_rows():
    words = tuple(WORDS.values())
    return [PromptRow({**row, "other": None}, WORDS[row["label"]], words, int(row["label"])) for row in ROWS]


def test_likelihoods_by_transformers(gpt2, tmp_path):
    """Sum, mean and ratio of every answer, computed by another program from prompts written out by hand."""
    transformers = pytest.importorskip("transformers")
    gpt2.export(tmp_path / "hf")
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")

    @torch.inference_mode()
    def score(prompt, answer):
        whole = tokenizer(prompt + answer, add_special_tokens=False).input_ids
        count = len(whole) - len(tokenizer(prompt.rstrip(), add_special_tokens=False).input_ids)
        ids = torch.tensor([[gpt2.tokenizer.id("bos"), *whole]])
        logs = reference(ids[:, :-1]).logits[0].log_softmax(-1)
        return [float(logs[i, ids[0, i + 1]]) for i in range(len(whole) - count, len(whole))]

    rows = make_prompt_rows()
    for shots in (0, 2):
        drawn = draw_shots(rows, rows, shots, "5/0", False)
        prompts = []
        for row, some in zip(rows, drawn, strict=True):
            solved = [f"{one.fields['text']} is {one.right_text}" for one in some]
            prompts.append("\n".join(["choose", *solved, f"{row.fields['text']} is "]))
        scores = [[score(prompt, word) for word in WORDS.values()] for prompt in prompts]
        alone = [sum(score("It is ", word)) for word in WORDS.values()]
        rules = {
            "accuracy": lambda i, logs: sum(logs), "accuracy_token": lambda i, logs: sum(logs) / len(logs),
            "accuracy_ratio": lambda i, logs, alone=alone: sum(logs) - alone[i],
        }  # fmt: skip
        result = evaluate_shots(
            gpt2, ROWS, shots, template=TEMPLATE, label_words=WORDS, instruction="choose", separator="\n",
            null_context="It is", draws=1, seed=5,
        )  # fmt: skip
        assert result.prompt == prompts[0]
        for name, rule in rules.items():
            right = 0
            for row, some in zip(rows, scores, strict=True):
                values = [rule(i, logs) for i, logs in enumerate(some)]
                right += values.index(max(values)) == row.right
            assert result.scores[0].mean[name] == pytest.approx(right / len(rows)), (shots, name)
        form = parse_template(TEMPLATE)
        runner = ShotRunner(gpt2, form, "classify", ("likelihood",), 4, True, None, "", None)
        likelihoods = runner.compute_likelihoods(prompts, [row.answers for row in rows], None)
        for some, want in zip(likelihoods, scores, strict=True):
            for one, logs in zip(some, want, strict=True):
                torch.testing.assert_close(one.log_probs, torch.tensor(logs), rtol=0, atol=2e-4)


def test_prefixes_are_read_once(gpt2, monkeypatch):
    """The tokens that pass through the model, with and without shared prefixes, and the same metrics."""
    read = {True: 0, False: 0}
    metrics = {}
    for share in (True, False):
        hook = gpt2.model.register_forward_pre_hook(
            lambda _, args, share=share: read.__setitem__(share, read[share] + len(args[0].ids))
        )
        result = evaluate_shots(
            gpt2, ROWS, 4, template=TEMPLATE, label_words=WORDS, draws=1, same_shots=True, share_prefixes=share
        )
        hook.remove()
        metrics[share] = result.scores[0].mean
    assert metrics[True] == metrics[False]
    assert read[True] < read[False] / 2  # of each set of examples, and of each prompt before its answers


def test_draws():
    rows = make_prompt_rows()
    for same in (False, True):
        for seed in range(20):
            drawn = draw_shots(rows, rows, 4, str(seed), same)
            assert drawn == draw_shots(rows, rows, 4, str(seed), same)
            for row, some in zip(rows, drawn, strict=True):
                assert len(some) == 4
                assert row not in some
                assert len({one.fields["text"] for one in some}) == 4
    assert draw_shots(rows, rows, 4, "0", False) != draw_shots(rows, rows, 4, "1", False)
    common = draw_shots(rows, rows, 4, "0", True)
    assert max(common.count(some) for some in common) == len(rows) - 4  # one set, but for those that are in it
    double = [*rows, *rows]  # a row that stands there twice is never its own example
    assert all(row not in some for row, some in zip(double, draw_shots(double, double, 12, "3", False), strict=True))
    with pytest.raises(Error, match="8 examples to draw 9 shots from"):
        draw_shots(rows, rows, 9, "0", False)


def test_shots_come_from_the_training_file(gpt2):
    train = [{"text": f"좋아요 {i}", "label": str(i % 2)} for i in range(5)]
    result = evaluate_shots(gpt2, ROWS, [1], train=train, template=TEMPLATE, label_words=WORDS, draws=2)
    assert result.prompt.startswith("좋아요 ")
    assert len(result.scores[0].draws) == 2
    assert set(result.scores[0].spread) == set(result.scores[0].mean)


def test_examples_that_do_not_fit_are_dropped():
    f = build_language_model("gpt2")  # a context of 40 tokens
    with pytest.warns(UserWarning, match="context of 40 tokens is short .*: at 6 shots, 9 of 9 prompts have fewer"):
        result = evaluate_shots(f, ROWS, [0, 6], template=TEMPLATE, label_words=WORDS, draws=1, separator="\n")
    assert [one.shortened for one in result.scores] == [0, 9]
    rows = make_prompt_rows()
    runner = ShotRunner(
        f, parse_template(TEMPLATE, separator="\n"), "classify", ("likelihood",), 4, True, None, "", None
    )
    drawn = draw_shots(rows, rows, 6, "0/0", False)
    prompts, shortened = runner.build_prompts(rows, drawn)
    assert shortened == 9
    for prompt, row, some in zip(prompts, rows, drawn, strict=True):
        assert max(runner.find_overflow([row], [prompt])) <= 0
        kept = prompt.count("\n")
        assert prompt == runner.form.join(some[len(some) - kept :], row)  # the last ones, whole
        longer = runner.form.join(some[len(some) - kept - 1 :], row)
        assert runner.find_overflow([row], [longer])[0] > 0
    long = [*ROWS, {"text": "the cat " * 60, "label": "0"}]
    with pytest.warns(UserWarning, match="1 of 10 rows left out, even without examples"):
        assert evaluate_shots(f, long, 0, template=TEMPLATE, label_words=WORDS).num_examples == 9


def test_a_masked_model_fills_the_answer_in():
    f = build_language_model("bert")
    words = {"0": "cat", "1": "the"}
    texts = ["the cat sat on", "배를 타고"]
    data = [{"text": text, "label": str(i)} for i, text in enumerate(texts)]
    wanted = []
    for text in texts:
        ids = f.tokenizer.encode(f"{text} was {f.tokenizer.get_token_text(f.tokenizer.id('mask'))} .")
        place = ids.index(f.tokenizer.id("mask"))
        with torch.inference_mode():
            logs = f.logits(torch.tensor([ids]))
        logs = (logs["mlm"] if isinstance(logs, dict) else logs)[0, place].log_softmax(-1)
        wanted.append([float(logs[f.tokenizer.encode(word, special=False)[0]]) for word in words.values()])
    runner = ShotRunner(
        f, parse_template("{text} was {answer} ."), "classify", ("likelihood",), 4, True, None, "", None
    )
    likelihoods = runner.compute_likelihoods([f"{text} was " for text in texts], [tuple(words.values())] * 2, None)
    assert [[one.total_log_prob for one in some] for some in likelihoods] == [
        pytest.approx(v, abs=1e-4) for v in wanted
    ]
    result = evaluate_shots(f, data, 0, template="{text} was {label} .", label_words=words)
    right = [v.index(max(v)) == i for i, v in enumerate(wanted)]
    assert result.scores[0].mean["accuracy"] == sum(right) / 2
    with pytest.raises(Error, match="does not write answers"):
        evaluate_shots(f, data, 0, label_words=words, scoring="generation")


def test_an_encoder_decoder_reads_the_prompt():
    f = build_language_model("t5")
    runner = ShotRunner(f, parse_template("{text}: {answer}"), "classify", ("likelihood",), 4, True, None, "", None)
    (found,) = runner.compute_likelihoods(["the cat: "], [("the mat", "x")], None)
    want = [f.score(("the cat:", answer)).total_log_prob for answer in ("the mat", "x")]
    assert [one.total_log_prob for one in found] == pytest.approx(want, abs=1e-5)


def test_written_answers(gpt2, monkeypatch):
    def write(self, prompts, room, temperature):
        assert temperature == 0
        texts = [self.tokenizer.decode(ids[1:]) for ids in prompts]  # without the mark of the beginning
        assert all(text.endswith("A:") for text in texts)
        return [self.tokenizer.encode(f" {text[-4]}\nQ: x", special=False) for text in texts]

    monkeypatch.setattr(Former, "continue_ids", write, raising=False)
    result = evaluate_shots(gpt2, PAIRS, [0, 2], task="complete", draws=1, template="Q: {text}\nA: {target}")
    assert [one.mean for one in result.scores] == [{"exact": 1.0}] * 2
    wrong = [*PAIRS[:-1], {"text": "the cat 5", "target": "15"}]
    assert evaluate_shots(gpt2, wrong, 0, task="complete").scores[0].mean == {"exact": pytest.approx(5 / 6)}


def test_greedy_text_is_that_of_generate(gpt2):
    runner = ShotRunner(gpt2, parse_template("{text}{answer}"), "complete", ("generation",), 4, True, 6, "", None)
    rows = [PromptRow(row, row["target"]) for row in PAIRS[:3]]
    texts = runner.write_answers(rows, [row["text"] for row in PAIRS[:3]], None)
    for text, row in zip(texts, PAIRS, strict=False):
        ids = [gpt2.tokenizer.id("bos"), *gpt2.tokenizer.encode(row["text"], special=False)]
        new = gpt2.tokenizer.decode(gpt2.continue_ids([ids], 6, temperature=0)[0])
        assert text == new.lstrip().partition("\n")[0].strip()


def test_targets_by_likelihood(gpt2):
    result = evaluate_shots(gpt2, PAIRS, 0, task="complete", scoring="likelihood", template="{text} {answer}")
    # a target is two tokens here: the space belongs to it
    likelihoods = [gpt2.score(f"{row['text']} {row['target']}").log_probs[-2:] for row in PAIRS]
    assert result.scores[0].mean["loss"] == pytest.approx(-float(torch.cat(likelihoods).mean()), abs=1e-4)


@pytest.mark.parametrize("task", ["answer", "choose"])
def test_other_tasks(gpt2, task):
    rows = {
        "answer": [{"question": "who sat", "context": f"the cat {i} sat", "answers": [f"cat {i}"]} for i in range(4)],
        "choose": [{"text": f"the {i}", "choices": ["cat", "the mat on the mat"], "label": i % 2} for i in range(4)],
    }[task]  # fmt: skip
    result = evaluate_shots(gpt2, rows, [0, 1], draws=1)
    assert result.task == task
    assert set(result.scores[1].mean) >= ({"f1", "exact"} if task == "answer" else {"accuracy", "accuracy_ratio"})


def test_korean_rows_get_korean_templates(gpt2):
    rows = [{"text": f"좋아요 {i}", "label": "가나"[i % 2]} for i in range(4)]
    result = evaluate_shots(gpt2, rows, 0)
    assert result.prompt == "문장: 좋아요 0\n분류: "
    assert result.majority == 0.5


def test_numbers_as_labels_are_noted(gpt2):
    with pytest.warns(UserWarning, match="--label-words 0=WORD,1=WORD"):
        evaluate_shots(gpt2, ROWS, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate_shots(gpt2, ROWS, 0, label_words="0=cat,1=the")


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("Review: {text}", "names its answer 0 times"), ("{answer} {label} {text}", "names its answer 2 times"),
        ("{answer} was {text}", "its question behind its answer"), ("so {answer}", "no question before its answer"),
        ("{title}: {answer}", "the template has {title}, and rows have {text}"),
    ],
)  # fmt: skip
def test_refused_templates(gpt2, template, message):
    with pytest.raises(Error, match=message):
        evaluate_shots(gpt2, ROWS, 0, template=template, label_words=WORDS)


def test_template_parts():
    form = parse_template("Review: {text}\nSentiment: {answer}.")
    assert (form.before, form.after, form.null_context) == ("Review: {text}\nSentiment: ", ".", "Sentiment:")
    assert parse_template("{text} {answer}").null_context == "Answer:"
    braces = few_shot.PromptTemplate("{text} = ")
    assert braces.fill({"text": "{answer} {0} {text}"}) == "{answer} {0} {text} = "  # values are not templates


def test_refused_options(gpt2):
    assert parse_shots("0, 1,8") == [0, 1, 8]
    assert parse_shots(2) == [2]
    assert parse_label_words("0=bad, 1=not bad") == {"0": "bad", "1": "not bad"}
    for wrong in ("", "1,x", [-1], "1001", [True]):
        with pytest.raises(Error, match="shots are numbers from 0 to 1,000"):
            parse_shots(wrong)
    for options, message in (
        ({"label_words": "bad"}, "'bad' is not of the form label=word"),
        ({"label_words": {"2": "x"}}, "no row has the label '2'"),
        ({"label_words": {"0": "x", "1": "x"}}, "each label needs a word of its own"),
        ({"scoring": "guess"}, "cannot be scored by 'guess'"),
        ({"task": "tag"}, "tag cannot be put as a prompt"),
        ({"draws": 0}, "draws and batch_size must be at least 1"),
    ):
        with pytest.raises(Error, match=message):
            evaluate_shots(gpt2, ROWS, 0, **{"label_words": WORDS, **options})
    f = build_language_model("gpt2")
    f.task = {"name": "classify"}
    with pytest.raises(Error, match="shots are for a language model"):
        evaluate_shots(f, ROWS, 0)
