"""formers compare on the command line: what its words become."""

from __future__ import annotations

import pytest

from formers.cli.compare import parse_named_files, parse_tasks
from formers.errors import Error


def test_tasks_are_read():
    assert parse_tasks(["a=x.tsv", "b=x.tsv,y.tsv,z.tsv", "c=x.tsv,,z.tsv"]) == {
        "a": {"train": "x.tsv"}, "b": {"train": "x.tsv", "valid": "y.tsv", "test": "z.tsv"},
        "c": {"train": "x.tsv", "test": "z.tsv"},
    }  # fmt: skip
    assert parse_named_files(None) == {}


@pytest.mark.parametrize("words", ["a", "=x.tsv", "a=", "a=1,2,3,4"])
def test_tasks_that_name_no_file(words):
    with pytest.raises(Error, match=r"names no file|more than three"):
        parse_tasks([words])
