"""The tasks of ERNIE 2.0: what each asks for, in what order they are added, and that all of them learn."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import formers
from formers.batch import IGNORE_INDEX
from formers.data.plans import SentenceTable
from formers.models.ernie import TEXT_TASK_CLASSES, TOKEN_TASK_CLASSES
from formers.objectives.continual import (
    CONNECTIVES,
    FIRST_LABELS,
    NUM_CLASSES,
    ORDERS,
    TASKS,
    TEXT_TASKS,
    ContinualTasks,
    find_tasks,
)
from formers.objectives.registry import build_objective
from formers.registry import train_tokenizer
from formers.training.config_merge import configure_pretraining
from tests.objectives import toys

WORDS = ["Anna", "went", "to", "Rome", "and", "saw", "the", "old", "town", "again", "with", "Paul"]
RNG = np.random.default_rng(5)
TEXT = [
    " ".join(
        " ".join([*(["But"] if i % 3 == 2 else ["Because"] if i % 5 == 4 else []), *RNG.permutation(WORDS)[:6]]) + "."
        for i in range(9)
    )
    for _ in range(30)
]
TOKENIZER = train_tokenizer("bert", TEXT, 400)
STORE = formers.Store.from_documents(TEXT, TOKENIZER, sentences="rules", units=lambda text: [(0, 4, "phrase")])
GOAL = build_objective("continual", TOKENIZER, 40)
BOOK = SentenceTable.from_store(STORE, GOAL.eos)


def plan_task(name, epoch=0):
    plan = GOAL.plan_tasks(STORE, 1, epoch)[TASKS.index(name)]
    spans = list(zip(plan.begin.tolist(), plan.end.tolist(), strict=True))
    cuts = plan.span_offsets.tolist()
    rows = [spans[a:b] for a, b in itertools.pairwise(cuts)]
    return rows, (plan.label - FIRST_LABELS[TASKS.index(name)]).tolist()


def find_document(place):
    return int(np.searchsorted(STORE.starts, place, side="right")) - 1


def test_the_head_has_a_part_for_each_task():
    assert {**TOKEN_TASK_CLASSES, **TEXT_TASK_CLASSES} == NUM_CLASSES
    assert formers.build("ernie", head="multitask", vocab=50, dim=8, layers=1, heads=2, ff=8).model.parts.keys() == (
        GOAL.head_parts
    )
    assert find_tasks(FIRST_LABELS).tolist() == list(range(len(TASKS)))


def test_sentences_are_put_in_the_order_that_the_class_names():
    rows, kinds = plan_task("reorder")
    assert len(set(kinds)) == len(ORDERS)
    for spans, kind in zip(rows, kinds, strict=True):
        assert len(spans) == len(ORDERS[kind])
        right = sorted(spans)
        assert [right.index(span) for span in spans] == list(ORDERS[kind])
        assert len({find_document(begin) for begin, _ in spans}) == 1


def test_distances_are_what_they_say():
    rows, kinds = plan_task("distance")
    assert set(kinds) == {0, 1, 2}
    for (first, second), kind in zip(rows, kinds, strict=True):
        a, b = (int(np.searchsorted(BOOK.begin, begin)) for begin, _ in (first, second))
        same = find_document(first[0]) == find_document(second[0])
        assert kind == (2 if not same else 0 if b == a + 1 else 1)
        assert abs(a - b) > 1 or kind != 1


def test_connectives_are_removed_and_asked_for():
    rows, kinds = plan_task("discourse")
    assert {CONNECTIVES[kind][0] for kind in kinds} == {"but", "because"}
    for (_, second), kind in zip(rows, kinds, strict=True):
        before = TOKENIZER.decode([int(STORE.tokens[second[0] - 1])]).strip().lower()
        assert before in CONNECTIVES[kind]


def test_relevance_is_by_document():
    rows, kinds = plan_task("relevance")
    assert set(kinds) == {0, 1, 2}
    for (first, second), kind in zip(rows, kinds, strict=True):
        assert first[0] in BOOK.begin[BOOK.document_begins]
        assert (find_document(first[0]) != find_document(second[0])) == (kind == 2)
        if kind == 0:
            assert second[0] == BOOK.begin[int(np.searchsorted(BOOK.begin, first[0])) + 1]


def test_capitals_are_asked_for_only_where_there_are_some():
    """In Korean, and with a lower-casing tokenizer, the task had one answer for every token."""
    texts = ["그는 어제 서울에 갔다. 그리고 책을 샀다. 오늘은 집에 있다.", "They saw Anna. She went home. It rained."]
    store = formers.Store.from_documents(texts * 5, TOKENIZER, sentences="rules")
    masking, capital = (GOAL.plan_tasks(store, 1, 0)[TASKS.index(name)] for name in ("masking", "capital"))
    assert 0 < len(capital) < len(masking)
    for begin, end in zip(capital.begin.tolist(), capital.end.tolist(), strict=True):
        assert any(TOKENIZER.decode([int(token)]).strip()[:1].isupper() for token in store.tokens[begin:end])
    korean = formers.Store.from_documents(texts[:1] * 5, TOKENIZER, sentences="rules")
    assert not len(GOAL.plan_tasks(korean, 1, 0)[TASKS.index("capital")])
    assert not (find_tasks(GOAL.plan(korean, 1, 0).label) == TASKS.index("capital")).any()


def test_labels_belong_to_the_task_of_their_example():
    plan, raw, batch = toys.make_examples(GOAL, STORE)
    task = batch.tasks[batch.starts[:-1]]
    assert set(task.tolist()) == set(range(len(TASKS)))
    assert ((batch.document_labels == IGNORE_INDEX) == ~np.isin(task, [TASKS.index(t) for t in TEXT_TASKS])).all()
    counts = GOAL.count_labels(batch)
    assert all(counts[name] > 0 for name in ("mlm", *NUM_CLASSES))
    assert sum(counts[name] for name in TEXT_TASKS) == (batch.document_labels != IGNORE_INDEX).sum()
    whole = GOAL.frame_examples(raw)[0].ids  # before anything is hidden
    for name in ("capital", "document"):
        mine = batch.tasks[batch.chosen] == TASKS.index(name)
        assert (batch.ids[batch.chosen[mine]] == GOAL.mask).all(), "the input does not show the answer"
        assert set(batch.labels[mine].tolist()) == {0, 1}
        for place, label in zip(batch.chosen[mine].tolist(), batch.labels[mine].tolist(), strict=True):
            row = int(np.searchsorted(batch.starts, place, side="right")) - 1
            if name == "capital":
                assert label == TOKENIZER.decode([int(whole[place])]).strip()[:1].isupper()
            else:
                example = whole[batch.starts[row] : batch.starts[row + 1]]
                assert label == ((example == whole[place]).sum() > 1)
    assert GOAL.select_labels(batch).max() < len(TOKENIZER)
    assert len(plan) == len(task)


def test_tasks_are_added_one_after_the_other():
    count = len(GOAL.plan(STORE, 1, 0))
    starts = tuple(count * n // 4 for n in range(len(TASKS)))  # the last ones begin in the second epoch
    goal = build_objective("continual", TOKENIZER, 40, task_starts=starts)
    seen = np.concatenate([find_tasks(goal.plan(STORE, 1, epoch).label) for epoch in (0, 1)])
    assert len(seen) == 2 * count, "epochs are equally long"
    for number in range(len(TASKS)):
        assert int(np.flatnonzero(seen == number)[0]) >= starts[number]
        assert (seen[starts[number] :] == number).any()
    assert set(seen[: starts[1]].tolist()) == {0}
    assert set(seen[starts[6] :].tolist()) == set(range(len(TASKS))), "those before it go on"
    assert goal.plan(STORE, 1, 1).label.tolist() == goal.plan(STORE, 1, 1).label.tolist()


def test_all_tasks_are_learned_in_a_run(tmp_path, monkeypatch):
    seen, corrupt = [], ContinualTasks.corrupt

    def record(self, raw, seed):
        if self.task_starts is not None:
            seen.append(set(find_tasks(raw.label).tolist()))
        return corrupt(self, raw, seed)

    monkeypatch.setattr(ContinualTasks, "corrupt", record)
    sizes = {"dim": 16, "layers": 1, "heads": 2, "ff": 16, "context": 48, "use_tasks": True, "tasks": 8, "segments": 4}
    train = {"steps": 14, "batch_tokens": 480, "seq_length": 40, "warmup_steps": 1, "samples": 0, "eval_every": 7}
    asked = {"model": sizes, "train": train, "data": {"vocab_size": 300, "valid_fraction": 0.2}}
    run = formers.pretrain("ernie", TEXT, out=tmp_path / "run", objective={"name": "continual"}, **asked)
    assert run.former.head == "multitask"
    assert {"mlm", *NUM_CLASSES} <= set(run.score.metrics)
    firsts = [next(step for step, tasks in enumerate(seen, 1) if n in tasks) for n in range(len(TASKS))]
    assert firsts == pytest.approx([2 * n + 1 for n in range(len(TASKS))], abs=1.1), "long windows first, then pairs"
    again = formers.load(tmp_path / "run")
    assert again.head == "multitask"
    del sizes["use_tasks"]
    with pytest.raises(formers.Error, match="no embedding for each"):
        formers.pretrain("ernie", TEXT, out=tmp_path / "other", objective={"name": "continual"}, **asked)
    del sizes["tasks"]  # nobody chose a number: the objective brings its own
    said: list[str] = []
    run = formers.pretrain(
        "ernie", TEXT, out=tmp_path / "own", objective={"name": "continual"}, say=said.append, **asked
    )  # fmt: skip
    assert (run.former.config.use_tasks, run.former.config.tasks) == (True, len(TASKS))
    assert any(line.startswith("tasks: masking from step 1, capital from step 3, ") for line in said), said


def test_the_papers_recipe_of_version_2_is_this():
    asked = configure_pretraining("ernie", recipe="paper", preset="ernie-2.0-base-en")
    assert asked.objective == {"name": "continual", "mask_rate": 0.15}
    assert asked.data.units == "auto"
    assert configure_pretraining("ernie", recipe="paper").objective["name"] == "ernie-units"
