"""formers import, formers export: checkpoints in and out."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from ..config import size
from ..errors import Error
from .common import Overwrite, name_options
from .progress import progress
from .screen import Screen, show_line

Dtype = Literal["float32", "float16", "bfloat16"]


def import_(
    source: str,
    out: Path,
    *,
    head: str = "auto",
    family: str | None = None,
    dtype: Dtype | None = None,
    shard: str = "5GB",
    pickle: bool = False,
    ignore: tuple[str, ...] = (),
    overwrite: Overwrite = False,
) -> None:
    """Turn a Hugging Face checkpoint, or ELMo's options.json and hdf5 file, into a formers directory.

    formers import path/to/bert-base-uncased bert
    formers import hub:openai-community/gpt2 gpt2
    formers import path/to/old-model old --pickle

    Parameters
    ----------
    source
        A Hugging Face directory, hub:owner/name@revision, or a directory with options.json and one hdf5 file.
    out
        The formers directory to write; one that exists is refused without --overwrite.
    head
        Another head than the checkpoint's own: none, lm, mlm, pretraining, nsp, double, classify, tag, answer, choose.
    family
        The family, if config.json does not say it (model_type).
    dtype
        The type of the weights; as they are by default.
    shard
        The largest size of one file of weights.
    pickle
        Read a pytorch_model.bin if there are no safetensors. Only for files whose author you trust.
    ignore
        A key of config.json to pass over; may be given several times.
    """
    from ..interop.directory import save
    from ..interop.safe import free

    limit = size(shard)
    free(out, overwrite)
    with progress(Screen(stderr=True), "import", quiet=2) as tell:
        former = opened(source, head=head, family=family, dtype=dtype, pickle=pickle, ignore=ignore, tell=tell)
        save(former, out, shard=limit, overwrite=overwrite, tell=tell)
    report(former, out)


def export(
    source: str,
    out: Path | None = None,
    *,
    to: Literal["transformers", "sentence-transformers"] | None = None,
    head: str = "auto",
    dtype: Dtype | None = None,
    shard: str = "5GB",
    pool: Literal["mean", "first", "last", "max", "weighted"] = "mean",
    normalise: bool = False,
    language: Literal["en", "ko"] | None = None,
    pickle: bool = False,
    check: Literal["transformers", "sentence-transformers", "vllm", "tei"] | None = None,
    overwrite: Overwrite = False,
) -> None:
    """Turn a model into a directory that transformers' from_pretrained opens, with a model card (README.md).

    ELMo becomes options.json and hdf5, as bilm-tf has them.

    formers export my-bert bert-for-hf
    formers export my-gpt2 gpt2-half --dtype bfloat16 --shard 500MB
    formers export my-bert sentences --to sentence-transformers --normalise
    formers export runs/gpt2-1 gpt2-for-hf --check transformers

    Parameters
    ----------
    source
        A formers directory, the folder of a training run, or anything that import takes.
    out
        The directory to write; one that exists is refused without --overwrite.
    to
        sentence-transformers writes the model without its head, with modules that pool its states, for
        SentenceTransformer(path).
    head
        Another head than the model's own.
    dtype
        The type of the weights; as they are by default.
    shard
        The largest size of one file of weights.
    pool
        With --to sentence-transformers: what makes one vector of a text's tokens.
    normalise
        With --to sentence-transformers: vectors have length 1.
    language
        The language of the model card; ko adds README.ko.md. By default the share of Hangul in the vocabulary tells.
    pickle
        Read a pytorch_model.bin if there are no safetensors. Only for files whose author you trust.
    check
        transformers and sentence-transformers: open the export in this reader, in a process of its own, and compare
        tokens and numbers with formers' own for a text, a pair and an over-long text: exit code 0, or 2 and the reason.
        vllm and tei (Hugging Face's text-embeddings-inference) are not started: only whether they have a class for the
        model, and take its settings, is looked up. Without OUT, nothing is left behind.
    """
    from ..interop.directory import export as write
    from ..interop.safe import free
    from ..interop.sentence_encoder import take_encoder

    limit = size(shard)
    if out is None and check is None:
        raise Error("no directory to write is named", fix=f"formers export {source} OUT")
    if to != "sentence-transformers" and (pool != "mean" or normalise) and check != "sentence-transformers":
        raise Error("--pool and --normalise make one vector of a text", fix="add --to sentence-transformers")
    if out is not None and to == "sentence-transformers" and check not in (None, to):
        raise Error(f"{check} does not open an export to {to}", fix=f"--check {to}, or leave --to out")
    if out is not None:
        free(out, overwrite)
    kind = None if dtype is None else torch_dtype(dtype)
    vectors: dict[str, Any] = {"pool": pool, "normalise": normalise}
    files: dict[str, Any] = {"language": language, "overwrite": overwrite}
    with progress(Screen(stderr=True), "export", quiet=2) as tell:
        former = opened(source, head=head, dtype=None, pickle=pickle, tell=tell)
        if out is not None:
            with noted():
                write(former, out, to=to, dtype=kind, shard=limit, tell=tell, **files, **vectors)
    if out is not None:
        report(take_encoder(former) if to == "sentence-transformers" else former, out)
    if check is not None:
        fits = check == (to or "transformers") or (to is None and check in ("vllm", "tei"))
        run_check(former, check, out if fits else None, dtype=kind, **vectors)


def run_check(former: Any, reader: str, where: Path | None, **how: Any) -> None:
    """Open an export in a reader and say what was found."""
    from ..interop.export_check import check_export

    with noted():
        said = check_export(former, reader, where, **how)
    if reader in ("vllm", "tei"):
        said += ". No numbers were compared; --check transformers opens the same files and compares them"
    Screen().print(f"{reader}: {said}")


def opened(source: str, *, dtype: Dtype | None, **how: Any) -> Any:
    """Load a model."""
    from ..interop.directory import load

    with noted():
        return load(source, dtype=None if dtype is None else torch_dtype(dtype), **how)


@contextmanager
def noted() -> Iterator[None]:
    """What formers has to say about a model goes to the terminal, not into a Python warning."""
    with warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        yield
    said: dict[str, list[str]] = {}
    for note in notes:  # of those that differ in their numbers alone, the first stands for all
        said.setdefault(re.sub(r"\d[\d,.]*", "", str(note.message)), []).append(str(note.message))
    for first, *more in said.values():
        words = f"formers: note: {name_options(first)}" + (
            f" ({len(more)} more like this)" if set(more) - {first} else ""
        )
        Screen(stderr=True).print(words)


def report(former: Any, out: Path) -> None:
    """Say what was written."""
    from ..former import count

    words = "with its tokenizer" if former.tokenizer is not None else "without a tokenizer"
    text = f"{show_line(out)}: {former.family}, head {former.head}, {count(former.model):,} parameters, {words}"
    Screen().print(text)


def torch_dtype(name: Dtype) -> Any:
    """A torch type by its name."""
    import torch

    return getattr(torch, name)
