"""The three steps of a task's data: a table, examples, encoded examples."""

from __future__ import annotations

import numpy as np
import pytest

import formers
from formers.batch import Batch
from formers.registry import train_tokenizer
from formers.task import Task
from formers.tasks.api import compute_outputs
from formers.tasks.encoding import TaskEncoder, encode_examples
from formers.tasks.example_tables import read_table
from formers.tasks.examples import EXAMPLE_BUILDERS, TASK_COLUMNS, build_examples, read_examples

ROWS = [{"text": f"the cat sat on mat {i}", "label": "ab"[i % 2]} for i in range(6)]
SMALL = {"dim": 16, "layers": 1, "heads": 2, "ff": 32}


@pytest.fixture(scope="module")
def model():
    tokenizer = train_tokenizer("wordpiece", [row["text"] for row in ROWS], 80)
    former = formers.build("bert", head="classify", labels=["a", "b"], vocab=len(tokenizer), **SMALL)
    former.tokenizer = tokenizer
    return former


def test_a_table_becomes_examples_becomes_batches(tmp_path, model):
    path = tmp_path / "rows.tsv"
    path.write_text("text\tlabel\n" + "".join(f"{row['text']}\t{row['label']}\n" for row in ROWS))
    table = read_table(path)
    assert [row for _, row in table.rows] == ROWS
    examples = build_examples(table, needs_labels=True)
    assert examples == read_examples(path)
    assert (examples.task, examples.labels) == ("classify", ("a", "b"))
    task = Task(name="classify", length=16)
    encoded = encode_examples(task, examples.rows, TaskEncoder.from_former(model, task), examples.labels)
    assert encoded.answers.tolist() == [0, 1, 0, 1, 0, 1]
    batch = encoded.make_batch(np.arange(4))
    assert isinstance(batch, Batch)
    assert len(batch.starts) == 5


def test_every_task_has_columns_and_a_builder():
    assert set(EXAMPLE_BUILDERS) == set(TASK_COLUMNS)


def test_a_failing_head_leaves_the_model_in_training_mode(model):
    task = Task(name="classify", length=16)
    data = encode_examples(task, ROWS, TaskEncoder.from_former(model, task), ("a", "b"))

    def fail(*_):
        raise RuntimeError("stop")

    model.model.train()
    with pytest.raises(RuntimeError, match="stop"):
        compute_outputs(model, data, "classify", on_batch=fail)
    assert model.model.training
    model.model.eval()
