"""formers.prepare: text and a tokenizer, wherever it lies, into a token store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..atomic_files import replace_folder
from ..data.preparation.pipeline import prepare as make
from ..data.preparation.pipeline import resolve_rank
from ..data.store import STORE_FOLDER, Store
from ..errors import Error
from ..text.tokenizer import Tokenizer
from .tokenizer_files import load_tokenizer


def prepare(
    source: Any, tokenizer: Tokenizer | str | Path, out: str | Path, *, overwrite: bool = False, **options: Any
) -> Store | None:
    """Make a token store of files, or of a list, DataFrame or dataset of documents; go on where an earlier run ended.

    `tokenizer` may be a tokenizer, a file of one, or the directory of a model, a store or a Hugging Face checkpoint.
    The options are those of formers.data.preparation.pipeline.prepare: unit, column, encoding, skip, delimiter, header,
    workers, splitter, units, held_out, deduplicate, tests, tests_column, drop_tests, shard, rank, ranks, tell.
    """
    pieces = tokenizer if isinstance(tokenizer, Tokenizer) else load_tokenizer(tokenizer)
    if overwrite and resolve_rank(options.get("rank"), options.get("ranks"))[1] > 1:
        raise Error("several processes cannot replace a store together", where=out, fix="remove it first")
    inputs = (source, tokenizer, options.get("tests"), options.get("units"))
    with replace_folder(Path(out), STORE_FOLDER, overwrite, inputs):
        return make(source, pieces, out, **options)
