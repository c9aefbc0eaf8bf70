"""formers embed, formers neighbours: texts as vectors, and what lies near."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from ..errors import Error
from .common import Overwrite, Placement, check_output, load_model
from .convert import noted
from .progress import progress
from .reading import Reading, lines
from .screen import Screen, print_text, show_line

CHUNK = 512  # texts between two writes


def embed(
    model: str,
    *,
    out: Path,
    file: Path | None = None,
    text: tuple[str, ...] = (),
    level: Literal["sentence", "word", "token"] = "sentence",
    pool: Literal["mean", "first", "last", "max", "sum", "weighted"] = "mean",
    layers: str = "-1",
    mix: Literal["mean", "sum", "max", "concat"] = "mean",
    normalise: bool = False,
    special: bool = True,
    window: int | None = None,
    batch: int = 32,
    overwrite: Overwrite = False,
    placement: Placement | None = None,
    reading: Reading | None = None,
) -> None:
    """Turn texts into vectors: of whole texts, of words or of tokens, from any layer.

    formers embed my-bert --file reviews.tsv --out vectors.npy --normalise
    formers embed hub:sentence-transformers/all-MiniLM-L6-v2 --file lines.txt --out vectors.npy
    formers embed my-gpt2 --text "강을 건넜다" --level word --layers sum4 --out words.jsonl

    A command that was stopped goes on when it is given again.

    Parameters
    ----------
    model
        A formers directory, a Hugging Face directory, hub:owner/name, or the folder of a training run.
    out
        vectors.npy, an array (texts, dim) for level sentence; or vectors.jsonl, a line for each text.
    file
        Texts: a line each of a txt file, or a column of jsonl, csv, tsv, parquet.
    text
        A text; may be given several times.
    level
        One vector for each text, for each word, or for each token.
    pool
        How one vector is made of several tokens; weighted counts later ones more, for decoders.
    layers
        A number (-1 is the last, 0 the embeddings), several as 1,2,3, or sum4, mean4, concat4 for the last four.
    mix
        How one layer is made of several numbers.
    normalise
        Give every vector the length 1.
    special
        Count marks such as [CLS] among the tokens of a text.
    window
        Tokens read at once; as many as the model can by default. Longer texts are read in windows that overlap.
    batch
        Texts at once.
    """
    from ..data.resumed import Resumed

    array = out.suffix == ".npy"
    if out.suffix not in (".npy", ".jsonl") or (array and level != "sentence"):
        raise Error(
            f"vectors of level {level} are not written as {out.suffix or 'this'}", where=out, fix="name it .jsonl"
        )
    check_output(out, overwrite)
    texts = read(file, text, reading or Reading())
    how: dict[str, Any] = {
        "level": level, "pool": pool, "layers": layer(layers), "mix": mix, "normalise": normalise, "special": special,
        "window": window, "batch": batch,
    }  # fmt: skip
    console = Screen(stderr=True)
    with progress(console, "embed", quiet=2) as tell, noted():
        former = load_model(model, placement, tell, pack=False)
        width = 4 * former.embed([texts[0].strip()[:64]], **how).shape[1] if array else None
        about = {"model": former.fingerprint, "texts": digest(texts), **{k: v for k, v in how.items() if k != "batch"}}
        with Resumed(out, about, width, overwrite) as made:
            for low in range(made.done, len(texts), CHUNK):
                some = texts[low : low + CHUNK]
                found = former.embed(some, **how)
                made.write(*(line(t, v, level, array) for t, v in zip(some, found, strict=True)))
                tell("texts", made.done, len(texts), f"to {out}")
            made.finish(rows_to_array(len(texts)) if array else None)
    Screen().print(f"{show_line(out)}: {len(texts):,} texts")


def neighbours(
    model: str,
    query: str,
    *,
    file: Path | None = None,
    text: tuple[str, ...] = (),
    word: str | None = None,
    same: bool = False,
    k: int = 10,
    layers: str = "-1",
    placement: Placement | None = None,
    reading: Reading | None = None,
) -> None:
    """Find what lies nearest to a text, or to a word as it is meant in a text.

    formers neighbours my-bert "a film about music" --file reviews.txt
    formers neighbours my-bert "배를 타고 건넜다" --word 배 --same --file lines.txt
    formers neighbours runs/word2vec-1 king
    formers neighbours glove.6B.100d.txt king

    Parameters
    ----------
    model
        A formers directory, a Hugging Face directory, hub:owner/name, the folder of a training run, or a published file
        of word vectors (GloVe, word2vec, fastText).
    query
        A text; of word vectors, without texts to look in, a word.
    file
        Texts to look in: a line each of a txt file, or a column of a table.
    text
        A text to look in; may be given several times.
    word
        A word of the query: words are compared rather than whole texts, each as it is meant where it stands.
    same
        Look for that word only.
    k
        How many.
    layers
        A number (-1 is the last), several as 1,2,3, or sum4, mean4, concat4 for the last four.
    """
    texts = [t for t in read(file, text, reading or Reading()) if t.strip()] if file is not None or text else None
    with progress(Screen(stderr=True), "neighbours", quiet=2) as tell, noted():
        former = load_model(model, placement, tell)
        how: dict[str, Any] = {} if texts is None else {"word": word, "same": same, "layers": layer(layers)}
        found = former.neighbours(query, k, texts, **how)
    for row in found:
        more = "" if len(row) < 4 or row[0] == row[2] else f"  {row[2][: row[3][0]]}[{row[0]}]{row[2][row[3][1] :]}"
        print_text(f"{row[1]:.4f}  {row[0]}{more}")


def read(file: Path | None, text: tuple[str, ...], reading: Reading) -> list[str]:
    """The texts of the command line or of a file."""
    if (file is None) == (not text):
        raise Error("say where the texts are", fix="give --file or --text, one of them")
    found = list(text) if file is None else lines(file, reading)
    if not found:
        raise Error("there are no texts", where=file, fix="give at least one")
    return found


def layer(text: str) -> int | list[int] | str:
    """-1, 1,2,3 or sum4."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        return text
    return found[0] if len(found) == 1 else found


def line(text: str, found: Any, level: str, array: bool) -> Any:
    """One record of the output."""
    if array:
        return found.numpy().astype("<f4").tobytes()
    if level == "sentence":
        return {"text": text, "vector": found.tolist()}
    return {"text": found.text, "names": found.names, "spans": found.spans, "vectors": found.vectors.tolist()}


def rows_to_array(texts: int) -> Any:
    """What turns rows of numbers into numpy's file."""
    import numpy as np

    return lambda path, file: np.save(file, np.memmap(path, "<f4", "r").reshape(texts, -1))


def digest(texts: list[str]) -> str:
    """What tells these texts from others."""
    import hashlib

    return hashlib.sha256("\0".join(texts).encode("utf-8", "surrogatepass")).hexdigest()
