"""Suites: published layouts, official metrics against scikit-learn, scipy and seqeval, the average, what is missing."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from formers import Error
from formers.evaluation.metrics import (
    KLUE_RELATIONS,
    compute_auprc,
    score_dialogue_states,
    score_klue_answers,
    score_klue_tags,
    score_klue_trees,
    score_relations,
)
from formers.evaluation.suites import (
    SUITES,
    SuiteResult,
    TaskScore,
    decode_state,
    decode_tree,
    encode_tree,
    evaluate_suite,
    read_suite_rows,
    select_tasks,
)
from tests.command_line import run_command

MNLI_HEAD = "index\tpromptID\tpairID\tgenre\ts1bp\ts2bp\ts1p\ts2p\tsentence1\tsentence2\tlabel1\tgold_label"
STSB_HEAD = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
GLUE_FILES = {
    "CoLA/dev.tsv": 'gj04\t1\t\tThe "sailors rode.\ngj04\t0\t*\tSailors the rode.\ngj04\t1\t\tWe sang.\n',
    "CoLA/test.tsv": "index\tsentence\n0\tThe boat.\n1\tBoat the.\n",
    "SST-2/dev.tsv": "sentence\tlabel\nfine film\t1\ndull\t0\n",
    "MRPC/dev.tsv": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
                    '1\t1\t2\tHe said "so\t"So" he said\n0\t3\t4\ta b\tc d\n1\t5\t6\te\tf\n',
    "STS-B/dev.tsv": STSB_HEAD + "".join(
        f"\n{i}\tg\tf\t2012\t{i}\tx\ty\tone {i}\ttwo {i}\t{score}" for i, score in enumerate(("5.000", "1.25", "3.4"))
    ) + "\n",
    "QQP/dev.tsv": "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
                   "7\t1\t2\tWhy?\tWhy so?\t1\n9\t3\t4\tWho?\t\t0\n",
    "MNLI/dev_matched.tsv": f"{MNLI_HEAD}\n0\t1\t1e\tfic\t(\t(\t(\t(\tIt rained.\tIt was wet.\tneutral\tentailment\n",
    "MNLI/dev_mismatched.tsv": f"{MNLI_HEAD}\n0\t1\t1e\tfic\t(\t(\t(\t(\tIt is.\tIt was.\tneutral\tneutral\n"
                               "1\t1\t1e\tfic\t(\t(\t(\t(\tA\tB\tneutral\tcontradiction\n",
    "QNLI/dev.tsv": "index\tquestion\tsentence\tlabel\n0\tWho?\tKim.\tentailment\n",
    "RTE/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment\n1\tC\tD\tentailment\n",
    "WNLI/dev.tsv": "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t0\n",
}  # fmt: skip
ANSWERS = {
    "CoLA": ["1", "1", "0"], "SST-2": ["1", "1"], "MRPC": ["1", "1", "0"], "STS-B": [4.5, 2.0, 2.5], "QQP": ["1", "0"],
    "MNLI": ["entailment", "entailment"], "QNLI": ["entailment"], "RTE": ["entailment", "entailment"], "WNLI": ["1"],
}  # fmt: skip
LABELS = {
    "MNLI": ("contradiction", "entailment", "neutral"), "QNLI": ("entailment", "not_entailment"),
    "RTE": ("not_entailment", "entailment"),
}  # fmt: skip


class ScriptedModel(SimpleNamespace):
    """A model that says what it is told to, and remembers what it was asked."""

    def classify(self, inputs, tell=None):
        self.inputs = inputs
        answers = [self.answers[i % len(self.answers)] for i in range(len(inputs))]
        shares = [{label: 0.7 if label == one else 0.3 / len(self.labels) for label in self.labels} for one in answers]
        return [SimpleNamespace(label=one, probabilities=s) for one, s in zip(answers, shares, strict=True)]

    def score(self, inputs, tell=None):
        self.inputs = inputs
        return self.answers[: len(inputs)]

    def tag(self, inputs, tell=None):
        return [[SimpleNamespace(tag=tag) for tag in tags] for tags in self.answers]

    def answer(self, inputs, tell=None):
        self.inputs = inputs
        return [SimpleNamespace(text=text) for text in self.answers]


def script(task, answers, labels=("0", "1")):
    return ScriptedModel(task={"name": task}, head=task, labels=labels, answers=answers)


def write_files(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


@pytest.fixture
def glue_models():
    return {
        name: script("regress" if name == "STS-B" else "classify", answers, LABELS.get(name, ("0", "1")))
        for name, answers in ANSWERS.items()
    }


def test_glue_files_and_metrics(tmp_path, glue_models):
    stats, metrics = pytest.importorskip("scipy.stats"), pytest.importorskip("sklearn.metrics")
    result = evaluate_suite("glue", write_files(tmp_path, GLUE_FILES), glue_models)
    scores = {one.name: one.metrics for one in result.scores}
    assert scores["CoLA"] == {"matthews": pytest.approx(metrics.matthews_corrcoef([1, 0, 1], [1, 1, 0]))}
    assert glue_models["CoLA"].inputs[0] == 'The "sailors rode.'  # a quote is a letter
    assert scores["MRPC"] == {
        "f1": pytest.approx(metrics.f1_score([1, 0, 1], [1, 1, 0])), "accuracy": pytest.approx(1 / 3)
    }  # fmt: skip
    assert glue_models["MRPC"].inputs[0] == ('He said "so', '"So" he said')
    right, guess = [5.0, 1.25, 3.4], ANSWERS["STS-B"]
    assert scores["STS-B"]["pearson"] == pytest.approx(stats.pearsonr(right, guess)[0])
    assert scores["STS-B"]["spearman"] == pytest.approx(stats.spearmanr(right, guess)[0])
    assert scores["QQP"] == {"f1": 1.0, "accuracy": 1.0}
    assert glue_models["QQP"].inputs[1] == ("Who?", ".")  # an empty question
    assert (scores["MNLI-m"], scores["MNLI-mm"]) == ({"accuracy": 1.0}, {"accuracy": 0.0})
    assert glue_models["MNLI"].inputs[0] == ("It is.", "It was.")
    assert scores["RTE"] == {"accuracy": 0.5}
    assert not result.is_partial
    means = {one.name: one.score for one in result.scores}
    mnli = (means.pop("MNLI-m") + means.pop("MNLI-mm")) / 2
    assert result.average == pytest.approx((sum(means.values()) + mnli) / 9)


def test_the_average_of_a_published_row():
    """BERT-large on GLUE's leaderboard: 80.5, where MNLI counts once and two metrics are averaged."""
    row = {
        "CoLA": [60.5], "SST-2": [94.9], "MRPC": [89.3, 85.4], "STS-B": [87.6, 86.5], "QQP": [72.1, 89.3],
        "MNLI-m": [86.7], "MNLI-mm": [85.9], "QNLI": [92.7], "RTE": [70.1], "WNLI": [65.1],
    }  # fmt: skip
    groups = {task.name: task.group for task in SUITES["glue"].tasks}
    scores = [TaskScore(name, groups[name], 1, dict(enumerate(values))) for name, values in row.items()]
    assert round(SuiteResult("glue", "test", scores).average, 1) == 80.5


def test_missing_files_and_models(tmp_path, glue_models):
    folder = write_files(
        tmp_path, {name: text for name, text in GLUE_FILES.items() if name[:3] in ("CoL", "RTE", "SST")}
    )
    del glue_models["SST-2"]
    result = evaluate_suite("glue", folder, glue_models.get)
    assert [one.name for one in result.scores] == ["CoLA", "RTE"]
    assert result.is_partial
    assert result.missing["SST-2"] == "no model"
    assert result.missing["MNLI-mm"] == "no file MNLI/dev_mismatched.tsv"
    assert len(result.missing) == 8
    assert not evaluate_suite("glue", folder, glue_models, tasks=["cola", "rte"]).is_partial
    with pytest.raises(Error, match="no task of glue can be evaluated"):
        evaluate_suite("glue", folder, {})
    with pytest.raises(Error, match="glue has no task 'COPA'"):
        select_tasks("glue", ["COPA"])


def test_submissions(tmp_path, glue_models):
    folder = write_files(tmp_path / "data", GLUE_FILES)
    result = evaluate_suite("glue", folder, glue_models, split="test", out=tmp_path / "out", tasks=["CoLA"])
    assert [path.name for path in result.files] == ["CoLA.tsv"]
    assert result.files[0].read_text() == "index\tprediction\n0\t1\n1\t1\n"
    assert not result.scores
    result = evaluate_suite("glue", folder, glue_models, out=tmp_path / "dev", tasks=["STS-B", "QQP"])
    assert result.files[0].read_text() == "index\tprediction\n0\t4.500\n1\t2.000\n2\t2.500\n"
    assert result.files[1].read_text() == "index\tprediction\n7\t1\n9\t0\n"
    with pytest.raises(Error, match="exists already"):
        evaluate_suite("glue", folder, glue_models, out=tmp_path / "dev", tasks=["QQP"])
    with pytest.raises(Error, match="the test sets have no labels"):
        evaluate_suite("glue", folder, glue_models, split="test")


def test_wrong_models_and_rows(tmp_path, glue_models):
    folder = write_files(tmp_path, GLUE_FILES)
    with pytest.raises(Error, match="has the labels LABEL_0, LABEL_1, the task 0, 1"):
        evaluate_suite(
            "glue", folder, {"CoLA": script("classify", ["LABEL_0"], ("LABEL_0", "LABEL_1"))}, tasks=["CoLA"]
        )
    with pytest.raises(Error, match="the model of CoLA does tag, and the task is classify"):
        evaluate_suite("glue", folder, {"CoLA": script("tag", [])}, tasks=["CoLA"])
    write_files(tmp_path, {"CoLA/dev.tsv": "gj04\t1\tThe sailors rode.\n"})
    with pytest.raises(Error, match="a line has 3 fields, 4 are wanted"):
        evaluate_suite("glue", folder, glue_models, tasks=["CoLA"])
    write_files(tmp_path, {"RTE/dev.tsv": "a\tb\tlabel\nx\ty\tentailment\n"})
    with pytest.raises(Error, match="there is no column 'sentence1'"):
        evaluate_suite("glue", folder, glue_models, tasks=["RTE"])


def question(guid, text, answers, **more):
    listed = [{"text": answer, "answer_start": 0} for answer in answers]
    return {"guid": guid, "question": text, "answers": listed, **more}


def entity(start, end):
    return {"start_idx": start, "end_idx": end}


QUESTIONS = [
    question("q1", "무엇?", ["실리콘유"], is_impossible=False),
    question("q2", "누구?", ["x"], is_impossible=True),
]
KLUE_FILES = {
    "ynat-v1.1/ynat-v1.1_dev.json": [
        {"guid": "a", "title": "유튜브 신기록", "label": "IT과학"}, {"guid": "b", "title": "우승", "label": "스포츠"},
    ],
    "klue-sts-v1.1/klue-sts-v1.1_dev.json": [
        {"guid": str(i), "sentence1": "가", "sentence2": "나", "labels": {"label": 1, "real-label": v}}
        for i, v in enumerate((4.2, 1.0, 3.1))
    ],
    "klue-nli-v1.1/klue-nli-v1.1_dev.json": [
        {"guid": "a", "premise": "비", "hypothesis": "물", "gold_label": "entailment"},
    ],
    "klue-re-v1.1/klue-re-v1.1_dev.json": [
        {"guid": "a", "sentence": "조지 해리슨이 쓴 비틀즈", "label": "per:title",
         "subject_entity": entity(10, 12), "object_entity": entity(0, 5)},
        {"guid": "b", "sentence": "가나", "label": "no_relation",
         "subject_entity": entity(0, 0), "object_entity": entity(1, 1)},
    ],
    "klue-mrc-v1.1/klue-mrc-v1.1_dev.json": {
        "data": [{"title": "t", "paragraphs": [{"context": "실리콘유는 물질이다", "qas": QUESTIONS}]}]
    },
}  # fmt: skip
KLUE_NER = (
    "## klue-ner-v1_dev_1\t<경찰:OG>은\n경\tB-OG\n찰\tI-OG\n은\tO\n \tO\n또\tO\n\n"
    "## klue-ner-v1_dev_2\n김\tB-PS\n씨\tO\n"
)


KLUE_DP = (
    "## KLUE-DP-v1.1\n## INDEX\tWORD_FORM\tLEMMA\tPOS\tHEAD\tDEPREL\n\n"
    "## klue-dp-v1_dev_00000_wikitree\t나는 어제 학교에 갔다.\n"
    "1\t나는\t나 는\tNP+JX\t4\tNP_SBJ\n2\t어제\t어제\tMAG\t4\tAP\n"
    "3\t학교에\t학교 에\tNNG+JKB\t4\tNP_AJT\n4\t갔다.\t가 았 다 .\tVV+EP+EF+SF\t0\tVP\n\n"
    "## klue-dp-v1_dev_00001_airbnb\t좋다 정말\n1\t좋다\t좋 다\tVA+EF\t0\tVP\n2\t정말\t정말\tMAG\t1\tAP\n"
)
DIALOGUE = {
    "guid": "wos-v1_dev_00000", "domains": ["관광"],
    "dialogue": [
        {"role": "user", "text": "안녕하세요.", "state": []}, {"role": "sys", "text": "무엇을 찾으세요?"},
        {"role": "user", "text": "서울 북쪽 공원이요.", "state": ["관광-종류-공원", "관광-지역-서울 북쪽"]},
        {"role": "sys", "text": "알겠습니다."},
    ],
}  # fmt: skip


def test_klue_trees_are_tags(tmp_path):
    write_files(tmp_path, {"klue-dp-v1.1/klue-dp-v1.1_dev.tsv": KLUE_DP})
    first, second = read_suite_rows("klue", "DP", tmp_path, "dev")
    assert first["words"] == ["나는", "어제", "학교에", "갔다."]
    assert first["tags"] == ["NP_SBJ>3", "AP>2", "NP_AJT>1", "VP^"]
    assert (second["id"], second["tags"]) == ("klue-dp-v1_dev_00001_airbnb", ["VP^", "AP<1"])
    for row in (first, second):
        assert decode_tree(encode_tree(row["reference"])) == row["reference"]
    assert decode_tree(["NP>5", "AP<2", "VP>1"]) == [(0, "NP"), (0, "AP"), (0, "VP")], "beyond the sentence"
    model = script("tag", [["NP_SBJ>3", "AP>1", "NP_AJT>1", "VP^"], ["VP^", "AP<1"]])
    result = evaluate_suite("klue", tmp_path, {"DP": model}, tasks=["DP"], out=tmp_path / "out")
    metrics = pytest.importorskip("sklearn.metrics")
    heads = metrics.f1_score([4, 4, 4, 0, 0, 1], [4, 3, 4, 0, 0, 1], average="macro")
    relations = metrics.f1_score(list("sapvva"), list("s-pvva"), average="macro")
    assert result.scores[0].metrics == {"uas_f1_macro": pytest.approx(heads), "las_f1_macro": pytest.approx(relations)}
    written = json.loads((tmp_path / "out" / "DP.json").read_text())
    assert written["klue-dp-v1_dev_00001_airbnb"] == [[0, "VP"], [1, "AP"]]
    write_files(tmp_path, {"klue-dp-v1.1/klue-dp-v1.1_dev.tsv": KLUE_DP.replace("4\tAP", "넷\tAP")})
    with pytest.raises(Error, match=r"line 6: a line has the word's number"):
        read_suite_rows("klue", "DP", tmp_path, "dev")


def test_klue_trees_by_scikit_learn():
    """The baseline's script: rare relations become one, and wrong heads a relation of their own."""
    metrics, rng = pytest.importorskip("sklearn.metrics"), np.random.default_rng(2)
    names = [*KLUE_RELATIONS[:5], "X_SBJ", "L", "VP_CMP"]
    heads, others = rng.integers(0, 6, 200).tolist(), rng.integers(0, 6, 200).tolist()
    heads_found = [h if rng.random() < 0.7 else o for h, o in zip(heads, others, strict=True)]
    kinds, found = (rng.integers(0, len(names), 200).tolist() for _ in range(2))
    found = [k if rng.random() < 0.8 else f for k, f in zip(kinds, found, strict=True)]
    right = [(h, names[k]) for h, k in zip(heads, kinds, strict=True)]
    guess = [(h, names[k]) for h, k in zip(heads_found, found, strict=True)]
    scores = score_klue_trees([right[:90], right[90:]], [guess[:90], guess[90:]])
    assert scores["uas_f1_macro"] == pytest.approx(metrics.f1_score(heads, heads_found, average="macro"))
    true = [k if k < 5 else -3 for k in kinds]
    got = [(k if k < 5 else -3) if a == b else -2 for k, a, b in zip(found, heads, heads_found, strict=True)]
    assert scores["las_f1_macro"] == pytest.approx(metrics.f1_score(true, got, average="macro"))


def test_klue_dialogue_states(tmp_path):
    write_files(tmp_path, {"wos-v1.1/wos-v1.1_dev.json": json.dumps([DIALOGUE], ensure_ascii=False)})
    first, second = read_suite_rows("klue", "DST", tmp_path, "dev")
    assert (first["text"], first["target"], first["reference"]) == ("user: 안녕하세요.", "none", [])
    assert second["text"] == "user: 서울 북쪽 공원이요.\nsys: 무엇을 찾으세요?\nuser: 안녕하세요.", (
        "the last turn first"
    )
    assert (second["id"], second["target"]) == ("wos-v1_dev_00000-1", "관광-종류-공원; 관광-지역-서울 북쪽")
    assert decode_state(second["target"]) == second["reference"]
    assert decode_state("관광 - 종류 -공원;; 관광-종류-공원 ;none") == ["관광-종류-공원"]
    assert decode_state("none") == []
    # turns: all right; nothing said and nothing found; one slot of two, and one that is wrong; one too many
    right = [["a-b-c"], [], ["a-b-c", "a-d-e"], []]
    guess = [["a-b-c"], [], ["a-b-c", "a-d-f"], ["a-b-c"]]
    scores = score_dialogue_states(right, guess)
    assert scores == {"joint_goal_accuracy": 0.5, "slot_f1": pytest.approx((1 + 1 + 0.5 + 0) / 4)}
    write_files(tmp_path, {"wos-v1.1/wos-v1.1_dev.json": json.dumps([{"guid": "x"}])})
    with pytest.raises(Error, match="record 1: a field is missing or invalid"):
        read_suite_rows("klue", "DST", tmp_path, "dev")


@pytest.mark.parametrize(("family", "group"), [("bert", "DP"), ("t5", "DST")])
def test_klue_models_are_trained_and_evaluated(tmp_path, capsys, family, group):
    """From the files to the score: a tagger for trees, an encoder-decoder for states, written as they are submitted."""
    far = "## a head at a distance that was not learned\n1\t가\t가\tNNG\t2\tNP\n2\t다\t다\tVV\t0\tVNP\n"
    for split in ("train", "dev"):
        write_files(tmp_path / "klue", {
            f"klue-dp-v1.1/klue-dp-v1.1_{split}.tsv": KLUE_DP * 8 if split == "train" else KLUE_DP + far,
            f"wos-v1.1/wos-v1.1_{split}.json": json.dumps([DIALOGUE] * 8, ensure_ascii=False),
        })  # fmt: skip
    config = tmp_path / "small.yaml"
    sizes = "{dim: 32, layers: 1, heads: 2, ff: 32}"
    config.write_text(f"model: {sizes}\ntune: {{epochs: 60, batch_size: 4, seq_length: 48, max_output_tokens: 48}}\n"
                      "train: {lr: 0.005}\n")  # fmt: skip
    runs = tmp_path / "runs"
    tasks = "DP,DST" if family == "bert" else group
    _, said, notes = run_command(
        capsys, "evaluate", family, tmp_path / "klue", "--suite", "klue", "--tasks", tasks, "--finetune-to", runs,
        "--config", config, "--out", tmp_path / "out", "--as-json",
    )  # fmt: skip
    assert ("left out: DST (bert cannot learn to summarise)" in notes) == (family == "bert")
    (scores,) = json.loads(said)["tasks"]
    assert scores["examples"] == (3 if group == "DP" else 16)
    assert scores["uas_f1_macro" if group == "DP" else "slot_f1"] > 0.6
    assert (tmp_path / "out" / f"{group}.json").exists()


def test_klue_files_and_metrics(tmp_path):
    write_files(tmp_path, {name: json.dumps(value, ensure_ascii=False) for name, value in KLUE_FILES.items()})
    write_files(tmp_path, {"klue-ner-v1.1/klue-ner-v1.1_dev.tsv": KLUE_NER})
    models = {
        "TC": script("classify", ["IT과학", "IT과학"], ("IT과학", "스포츠")), "STS": script("regress", [3.5, 3.2, 2.0]),
        "NLI": script("classify", ["entailment"], LABELS["MNLI"]),
        "NER": script("tag", [["B-OG", "I-OG", "O", "O"], ["O", "B-PS"]]),
        "RE": script("classify", ["per:title", "per:title"], ("no_relation", "per:title")),
        "MRC": script("answer", ["실리콘", ""]),
    }  # fmt: skip
    result = evaluate_suite("klue", tmp_path, models)
    scores = {one.name: one.metrics for one in result.scores}
    assert scores["TC"] == {"f1_macro": pytest.approx(1 / 3)}
    assert scores["STS"]["f1"] == pytest.approx(0.5)
    assert scores["STS"]["pearson"] == pytest.approx(np.corrcoef([4.2, 1.0, 3.1], [3.5, 3.2, 2.0])[0, 1])
    assert scores["NLI"] == {"accuracy": 1.0}
    assert scores["NER"]["entity_f1_macro"] == 0.5
    assert scores["RE"]["f1_micro"] == pytest.approx(2 / 3)
    assert models["RE"].inputs[0] == "<obj>조지 해리슨</obj>이 쓴 <subj>비틀즈</subj>"
    assert models["RE"].inputs[1] == "<subj>가</subj><obj>나</obj>"
    assert scores["MRC"] == {"exact": 0.5, "rouge_w": pytest.approx((2 * 3 / 7 + 1) / 2)}
    assert result.missing["DP"] == "no file DP/klue-dp-v1.1_dev.tsv or DP/klue-dp-v1_dev.tsv"
    assert set(result.missing) == {"DP", "DST"}
    assert result.is_partial
    assert result.average == pytest.approx(sum(one.score for one in result.scores) / 6)


def test_klue_tags_by_other_programs():
    metrics, seqeval = pytest.importorskip("sklearn.metrics"), pytest.importorskip("seqeval.metrics")
    from seqeval.scheme import IOB2

    rng = np.random.default_rng(0)
    tags = ["B-PS", "I-PS", "B-LC", "I-LC", "O", "O"]
    right, guess = ([rng.choice(tags, 30).tolist() for _ in range(20)] for _ in range(2))
    guess = [
        [t if rng.random() < 0.6 else g for t, g in zip(*pair, strict=True)] for pair in zip(right, guess, strict=True)
    ]
    scores = score_klue_tags(right, guess)
    want = seqeval.f1_score(right, guess, average="macro", mode="strict", scheme=IOB2)
    assert scores["entity_f1_macro"] == pytest.approx(want)
    flat = [[t for row in side for t in row] for side in (right, guess)]
    every = [f"{m}-{k}" for k in ("PS", "LC", "OG", "DT", "TI", "QT") for m in "BI"] + ["O"]
    want = metrics.f1_score(*flat, labels=every, average="macro", zero_division=1)
    assert scores["char_f1_macro"] == pytest.approx(want)


def test_relations_by_scikit_learn():
    metrics = pytest.importorskip("sklearn.metrics")
    rng, labels = np.random.default_rng(1), list("abcd")
    for digits in (1, 8):  # with and without equal scores
        shares = np.round(rng.dirichlet(np.ones(4), 60), digits)
        right = [labels[i] for i in rng.integers(0, 4, 60)]
        guess = [labels[i] for i in shares.argmax(1)]
        areas = []
        for column, label in enumerate(labels):
            precision, recall, _ = metrics.precision_recall_curve([r == label for r in right], shares[:, column])
            areas.append(metrics.auc(recall, precision))
        assert compute_auprc(right, shares, labels) == pytest.approx(np.mean(areas))
        want = metrics.f1_score(right, guess, labels=["b", "c", "d"], average="micro")
        assert score_relations(right, guess, "a") == pytest.approx(want)


def test_klue_answers():
    assert score_klue_answers([["가나 다."]], ["가나 다"]) == {"exact": 1.0, "rouge_w": 1.0}
    assert score_klue_answers([[]], ["가"]) == {"exact": 0.0, "rouge_w": 0.0}
    assert score_klue_answers([["abcd", "xy"]], ["bcy"])["rouge_w"] == pytest.approx(4 / 7)  # bc, of 4 and of 3


def test_squad_and_korquad(tmp_path):
    def make(items):
        return json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "Kim wrote it. 1989년", "qas": items}]}]})

    answerable = {"id": "1", "question": "Who?", "answers": [{"text": "Kim", "answer_start": 0}]}
    nobody = {"id": "2", "question": "When?", "answers": [], "is_impossible": True}
    korean = {**answerable, "answers": [{"text": "1989년", "answer_start": 14}]}
    files = {"dev-v1.1.json": [answerable], "dev-v2.0.json": [{**answerable, "is_impossible": False}, nobody],
             "KorQuAD_v1.0_dev.json": [korean]}  # fmt: skip
    write_files(tmp_path, {name: make(items) for name, items in files.items()})
    models = {"SQuAD1.1": script("answer", ["the Kim"]), "SQuAD2.0": script("answer", ["wrote", ""])}
    result = evaluate_suite("squad", tmp_path, models, out=tmp_path / "out")
    assert [one.metrics for one in result.scores] == [{"exact": 1.0, "f1": 1.0}, {"exact": 0.5, "f1": 0.5}]
    assert result.average is None
    assert json.loads(result.files[1].read_text()) == {"1": "wrote", "2": ""}
    result = evaluate_suite("korquad", tmp_path, {"KorQuAD1.0": script("answer", ["1989"])})
    assert result.scores[0].metrics == {"exact": 0.0, "f1": pytest.approx(8 / 9)}
    assert read_suite_rows("squad", "SQuAD2.0", tmp_path, "dev")[1]["answers"] == []
    assert read_suite_rows("squad", "SQuAD2.0", tmp_path, "train") is None
