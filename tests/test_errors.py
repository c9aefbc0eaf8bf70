"""Messages count in the singular and in the plural."""

from __future__ import annotations

import pytest

from formers.errors import format_counted


@pytest.mark.parametrize(
    ("count", "things", "words"),
    [
        (1, "shards", "1 shard"), (2, "shards", "2 shards"), (0, "rows", "0 rows"), (1200, "steps", "1,200 steps"),
        (1, "batches", "1 batch"), (1, "processes", "1 process"), (1, "pieces", "1 piece"), (1, "windows", "1 window"),
        (1, "broken rows skipped", "1 broken row skipped"), (1, "NUL removed", "1 NUL removed"),
        (1, "empty documents left out", "1 empty document left out"),
    ],
)  # fmt: skip
def test_one_is_singular(count, things, words):
    assert format_counted(count, things) == words
