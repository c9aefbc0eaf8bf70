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
        The formers directory to write; it must not exist yet.
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
    free(out)
    with progress(Screen(stderr=True), "import", quiet=2) as tell:
        former = opened(source, head=head, family=family, dtype=dtype, pickle=pickle, ignore=ignore, tell=tell)
        save(former, out, shard=limit, tell=tell)
    report(former, out)


def export(
    source: str,
    out: Path | None = None,
    *,
    head: str = "auto",
    dtype: Dtype | None = None,
    shard: str = "5GB",
    pickle: bool = False,
    check: Literal["transformers", "vllm", "tei"] | None = None,
) -> None:
    """Turn a model into a directory that transformers' from_pretrained opens; ELMo, into options.json and hdf5.

    formers export my-bert bert-for-hf
    formers export my-gpt2 gpt2-half --dtype bfloat16 --shard 500MB
    formers export runs/gpt2-1 --check vllm

    Parameters
    ----------
    source
        A formers directory, the folder of a training run, or anything that import takes.
    out
        The directory to write; it must not exist yet.
    head
        Another head than the model's own.
    dtype
        The type of the weights; as they are by default.
    shard
        The largest size of one file of weights.
    pickle
        Read a pytorch_model.bin if there are no safetensors. Only for files whose author you trust.
    check
        Write nothing; say whether this reader could load the exported model (exit code 0) or why not (2). tei is
        Hugging Face's text-embeddings-inference.
    """
    from ..interop.directory import export as write
    from ..interop.safe import free

    limit = size(shard)
    if check is not None:
        answer(source, check, head=head, pickle=pickle)
        return
    if out is None:
        raise Error("no directory to write is named", fix=f"formers export {source} OUT")
    free(out)
    with progress(Screen(stderr=True), "export", quiet=2) as tell:
        former = opened(source, head=head, dtype=None, pickle=pickle, tell=tell)
        with noted():
            write(former, out, dtype=None if dtype is None else torch_dtype(dtype), shard=limit, tell=tell)
    report(former, out)


def answer(source: str, reader: str, **how: Any) -> None:
    """Say whether a reader can load what an export would write."""
    from ..interop.serving import check

    with progress(Screen(stderr=True), "check", quiet=2) as tell:
        former = opened(source, dtype=None, tell=tell, **how)
    with noted():
        said = check(former, reader)
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
        words = f"formers: note: {first}" + (f" ({len(more)} more like this)" if set(more) - {first} else "")
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
