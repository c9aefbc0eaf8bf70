"""Published word vectors: word2vec's text and binary files, GloVe's text, fastText's .vec and .bin, each also as .gz.
Nobody vouches for these files. What a file claims is held against its size before memory is taken; a row that is not
what it should be is an Error that names the file and the line."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .. import config as settings
from ..atomic_files import create_file
from ..config import ProgressCallback, format_value
from ..errors import Error
from ..former import Former, build_empty
from ..models.vectors import VectorsConfig
from ..text.backend_safety import MAX_PIECE_CHARACTERS
from ..text.word_level import UNKNOWN_TOKEN, build_word_tokenizer, hash_ngrams
from . import safe_files

VectorFormat = Literal["auto", "text", "glove", "binary", "fasttext"]
MAX_LINE_BYTES = 2**20  # bytes of a row of text
ROWS_PER_BLOCK = 1024  # rows that are read at a time
FASTTEXT_MAGIC, FASTTEXT_VERSIONS = 793712314, (11, 12)  # of fastText's .bin; the two differ for classifiers only
DAMAGED_HINT = "the file is damaged, or no file of word vectors: fetch it again"
UNKNOWN_WORDS = (UNKNOWN_TOKEN, "<unk>")  # words that files have for all others


def build_vectors_model(words: Sequence[str], table: Tensor, lower: bool = True, **more: object) -> Former:
    """Build a model from words and their vectors (rows beyond the words are fastText's buckets), with a row of zeros
    for unknown words if there is none yet."""
    known = dict.fromkeys(words)
    unknown = next((word for word in UNKNOWN_WORDS if word in known), "")
    if not unknown:
        head, rest = table[: len(words)], table[len(words) :]
        words, unknown = [*words, UNKNOWN_TOKEN], UNKNOWN_TOKEN
        table = torch.cat((head, head.new_zeros(1, head.shape[1]), rest))
    values = {**more, "vocab": len(words), "dim": table.shape[1]}
    former = build_empty("vectors", settings.build_config(VectorsConfig, values), "none")
    former.model.body.word = torch.nn.Embedding.from_pretrained(table.contiguous(), freeze=False)
    former.tokenizer = build_word_tokenizer(words, lower, unknown)
    return former


def read_word_vectors(
    path: str | Path, format: VectorFormat = "auto", max_words: int | None = None, tell: ProgressCallback | None = None,
    **more: object,
) -> Former:  # fmt: skip
    """Read word vectors from a file; `max_words` reads only the first (files begin with the frequent ones). `format` is
    text (word2vec's, fastText's .vec: a first line with the number of words and the width), glove (no such line),
    binary (word2vec's) or fasttext (.bin); `more` are settings of VectorsConfig, to say how they were made."""
    if max_words is not None and max_words < 1:
        raise Error(f"{max_words} words are none", fix="ask for at least one")
    with safe_files.open_stream(path) as (file, size):
        start = file.peek(MAX_LINE_BYTES)  # type: ignore[attr-defined]
        kind = detect_format(start) if format == "auto" else format
        if kind == "fasttext":
            return read_fasttext_vectors(file, size, path, tell)
        read = read_binary_vectors if kind == "binary" else read_text_vectors
        words, table = read(file, size, path, kind, max_words, tell)
    lower = not any(word != word.lower() for word in words)
    more = ({"kind": "glove"} if kind == "glove" else {}) | more
    return build_vectors_model(words, torch.from_numpy(table), lower, **more)


def detect_format(start: bytes) -> VectorFormat:
    """Detect the format from a file's beginning."""
    if start[:4] == struct.pack("<i", FASTTEXT_MAGIC):
        return "fasttext"
    first, _, rest = start.partition(b"\n")
    fields = first.split()
    if len(fields) != 2 or not all(f.isdigit() for f in fields):
        return "glove"
    second = rest.partition(b"\n")[0].split(b" ", 1)[-1]
    return "text" if second and not set(second) - set(b"0123456789+-.eE \r") else "binary"


def parse_header(line: bytes, size: int, smallest: int, path: str | Path) -> tuple[int, int]:
    """Parse the number of words and the width from a first line, if the file can hold them at `smallest` bytes each
    number."""
    fields = line.split()
    if len(fields) != 2 or not all(f.isdigit() and len(f) < 12 for f in fields):
        what = f"the first line {format_value(line[:60])} is not a number of words and a width"
        raise Error(what, where=f"{path}, line 1", fix='a file without such a line is read by format="glove"')
    rows, dim = map(int, fields)
    check_table_size(rows, dim, size, smallest, path)
    return rows, dim


def check_table_size(rows: int, dim: int, size: int, smallest: int, path: str | Path) -> None:
    """Refuse sizes that cannot be."""
    if not (0 < rows <= settings.MAX_SIZE and 0 < dim <= settings.MAX_SIZE) or rows * (dim * smallest + 1) > size:
        raise Error(f"{rows:,} words of {dim:,} numbers do not fit into {size:,} bytes", where=path, fix=DAMAGED_HINT)


class WordList:
    """The words of a file, each once, in valid UTF-8."""

    def __init__(self, path: str | Path):
        self.path, self.words = path, dict[str, None]()

    def add_word(self, data: bytes, line: int) -> None:
        """Take one more word."""
        try:
            word = data.decode("utf-8")
        except UnicodeDecodeError:
            raise self.make_line_error(f"the word {format_value(data[:40])} is not UTF-8", line) from None
        if not word or len(word) > MAX_PIECE_CHARACTERS:
            raise self.make_line_error(f"a word of {len(word):,} characters", line)
        if word in self.words:
            raise self.make_line_error(f"the word {format_value(word)} is there twice", line)
        self.words[word] = None

    def make_line_error(self, what: str, line: int) -> Error:
        """Build an error about a line."""
        return Error(what, where=f"{self.path}, line {line:,}", fix=DAMAGED_HINT)


def read_text_vectors(
    file: BinaryIO, size: int, path: str | Path, kind: str, most: int | None, tell: ProgressCallback | None
) -> tuple[list[str], np.ndarray]:
    """Read rows "word number number …", after a line with their number and width (text) or without (glove)."""
    names, line, rows, dim = WordList(path), 0, None, 0
    if kind == "text":
        rows, dim = parse_header(file.readline(MAX_LINE_BYTES), size, 2, path)
        line = 1
    row_limit = min(x for x in (rows, most, settings.MAX_SIZE) if x is not None)
    blocks: list[np.ndarray] = []
    while len(names.words) < row_limit:
        numbers: list[bytes] = []
        first = line + 1
        for data in read_rows(file, min(ROWS_PER_BLOCK, row_limit - len(names.words)), path, line):
            line += 1
            word, _, rest = data.partition(b" ")
            dim = dim or rest.count(b" ") + 1
            if rest.count(b" ") + 1 != dim:
                word, rest = split_spaced_word(data, dim, names, line)
            names.add_word(word, line)
            numbers.append(rest)
        if not numbers:
            break
        blocks.append(parse_numbers(numbers, dim, names, first))
        if tell is not None:
            tell("reading", len(names.words), row_limit if rows or most else len(names.words), f"{dim} numbers each")
    if not names.words or (rows is not None and len(names.words) < row_limit):
        claimed = "" if rows is None else f" of {row_limit:,}"
        raise Error(f"the file ends after {len(names.words):,}{claimed} words", where=path, fix=DAMAGED_HINT)
    if most is None and file.readline(MAX_LINE_BYTES).strip():
        raise names.make_line_error(f"there are more than the {row_limit:,} words of the first line", line + 1)
    return list(names.words), np.concatenate(blocks)


def read_rows(file: BinaryIO, number: int, path: str | Path, line: int) -> Iterator[bytes]:
    """Read the next lines, without their ends."""
    for _ in range(number):
        line += 1
        if not (data := file.readline(MAX_LINE_BYTES)):
            return
        if len(data) == MAX_LINE_BYTES and data[-1:] != b"\n":
            what = f"a line of more than {MAX_LINE_BYTES:,} bytes"
            raise Error(what, where=f"{path}, line {line:,}", fix=DAMAGED_HINT)
        yield data.rstrip(b" \r\n")


def split_spaced_word(data: bytes, dim: int, names: WordList, line: int) -> tuple[bytes, bytes]:
    """Split a row whose word has spaces in it (GloVe's largest file has some); any other ragged row is an error."""
    fields = data.rsplit(b" ", dim)
    if len(fields) == dim + 1:
        try:
            float(fields[0].rsplit(b" ", 1)[-1])
        except ValueError:
            return fields[0], data[len(fields[0]) + 1 :]
    raise names.make_line_error(f"{max(0, data.count(b' ')):,} numbers instead of {dim:,}", line)


def parse_numbers(numbers: list[bytes], dim: int, names: WordList, first: int) -> np.ndarray:
    """Parse rows of numbers (n, dim); an error names the first row that has none."""

    def parse_floats(text: bytes, count: int) -> np.ndarray | None:
        with warnings.catch_warnings(), suppress(DeprecationWarning, RuntimeWarning, ValueError):
            warnings.simplefilter("error")
            values = np.fromstring(text, np.float32, sep=" ")
            if values.size == count and np.isfinite(values).all():
                return values
        return None

    if (values := parse_floats(b" ".join(numbers), len(numbers) * dim)) is not None:
        return values.reshape(-1, dim)
    for line, text in enumerate(numbers, first):
        if parse_floats(text, dim) is None:
            shown = format_value(text[:60].decode(errors="replace"))
            raise names.make_line_error(f"{shown} is not {dim:,} numbers", line)
    raise names.make_line_error("the numbers make no sense", first)


def read_binary_vectors(
    file: BinaryIO, size: int, path: str | Path, kind: str, most: int | None, tell: ProgressCallback | None
) -> tuple[list[str], np.ndarray]:
    """Read rows of a word, a space and four-byte numbers; some programs end a row with a line end."""
    rows, dim = parse_header(file.readline(MAX_LINE_BYTES), size, 4, path)
    rows = rows if most is None else min(rows, most)
    names, table = WordList(path), np.empty((rows, dim), np.float32)
    buffer, at, width, longest = b"", 0, 4 * dim, 4 * MAX_PIECE_CHARACTERS
    for row in range(rows):
        if len(buffer) - at < width + longest:
            buffer, at = buffer[at:] + file.read(max(MAX_LINE_BYTES, 2 * (width + longest))), 0
        end = buffer.find(b" ", at, at + longest)
        if end < 0 or len(buffer) < end + 1 + width:
            raise names.make_line_error(f"word {row + 1:,} of {rows:,} is cut off", row + 2)
        names.add_word(buffer[at:end].lstrip(b"\n"), row + 2)
        table[row] = np.frombuffer(buffer, "<f4", dim, end + 1)
        at = end + 1 + width
        if tell is not None and row % ROWS_PER_BLOCK == 0:
            tell("reading", row, rows, f"{dim} numbers each")
    if not np.isfinite(table).all():
        row = int(np.flatnonzero(~np.isfinite(table).all(1))[0])
        what = f"the vector of {format_value(list(names.words)[row])} is not made of numbers"
        raise names.make_line_error(what, row + 2)
    if most is None and (buffer[at:] + file.read(MAX_LINE_BYTES)).strip(b"\n"):
        raise Error(f"there is more than the {rows:,} words of the first line", where=path, fix=DAMAGED_HINT)
    return list(names.words), table


FASTTEXT_ARGUMENTS = "dim ws epoch minCount neg wordNgrams loss model bucket minn maxn rate".split()  # noqa: SIM905
FASTTEXT_MODELS = {1: "cbow", 2: "skipgram"}


def read_fasttext_vectors(file: BinaryIO, size: int, path: str | Path, tell: ProgressCallback | None) -> Former:
    """Read fastText's .bin of versions 11 and 12, neither quantised nor pruned, made without labels."""

    def read_struct(form: str) -> tuple[Any, ...]:  # dynamic: the types are those of the form
        data = file.read(struct.calcsize(form))
        if len(data) < struct.calcsize(form):
            raise Error("the file ends too early", where=path, fix=DAMAGED_HINT)
        return struct.unpack(form, data)

    def make_refusal(what: str) -> Error:
        return Error(what, where=path, fix="formers reads unlabelled, unquantised models of versions 11 and 12")

    if read_struct("<ii") not in [(FASTTEXT_MAGIC, version) for version in FASTTEXT_VERSIONS]:
        raise make_refusal("not a fastText file of version 11 or 12")
    args = dict(zip(FASTTEXT_ARGUMENTS, read_struct("<12i"), strict=True))
    read_struct("<d")
    entries, words, labels, _, pruned = read_struct("<iiiqq")
    if args["model"] not in FASTTEXT_MODELS or labels or entries != words:
        raise make_refusal("this is a classifier")
    if pruned >= 0:
        raise make_refusal("this model is quantised")
    check_table_size(words, args["dim"], size, 4, path)
    names = WordList(path)
    counted = 0
    for number in range(1, words + 1):
        data = bytearray()
        while (byte := read_struct("<c")[0]) != b"\0":
            data += byte
            if len(data) > 4 * MAX_PIECE_CHARACTERS:
                raise names.make_line_error("a word without an end", number)
        names.add_word(bytes(data), number)
        counted += read_struct("<qb")[0]
    if read_struct("<?")[0]:
        raise make_refusal("this model is quantised")
    rows, dim = read_struct("<qq")
    hashed = args["maxn"] > 0 and args["bucket"] > 0
    if dim != args["dim"] or rows != words + (args["bucket"] if hashed else 0):
        claimed = f"{words:,} words and {args['bucket']:,} buckets of {args['dim']:,} numbers"
        raise Error(f"a table of {rows:,} × {dim:,} does not fit {claimed}", where=path, fix=DAMAGED_HINT)
    check_table_size(rows, dim, size, 4, path)
    data = bytearray(rows * dim * 4)
    if file.readinto(data) < len(data):  # type: ignore[attr-defined]
        raise Error("the file ends too early", where=path, fix=DAMAGED_HINT)
    table = torch.frombuffer(data, dtype=torch.float32).view(rows, dim)
    if not table.isfinite().all():
        raise Error("the table is not made of numbers", where=path, fix=DAMAGED_HINT)
    about = {"window": args["ws"], "negatives": max(1, args["neg"]), "min_count": max(1, args["minCount"])}
    lower = not any(word != word.lower() for word in names.words)
    if not hashed:
        return build_vectors_model(list(names.words), table, lower, kind=FASTTEXT_MODELS[args["model"]], **about)
    about |= {"buckets": args["bucket"], "min_n": args["minn"], "max_n": args["maxn"]}
    c = settings.build_config(VectorsConfig, {"kind": "fasttext", **about}, where=path)
    combine_ngram_rows(list(names.words), table, c, tell)
    return build_vectors_model(list(names.words), table, lower, kind="fasttext", **about)


def combine_ngram_rows(
    words: Sequence[str], table: Tensor, c: VectorsConfig, tell: ProgressCallback | None = None, invert: bool = False
) -> None:
    """Turn the words' own rows into their finished vectors, the mean of a word's rows, or (`invert`) back."""
    own, buckets = table[: len(words)], table[len(words) :]
    for begin in range(0, len(words), 4096):
        some = words[begin : begin + 4096]  # fastText's mark for the end of a line has no n-grams
        lists = [[] if word == "</s>" else hash_ngrams(word, c.min_n, c.max_n, c.buckets) for word in some]
        sizes = torch.tensor([[len(one)] for one in lists])
        flat = torch.tensor([row for one in lists for row in one], dtype=torch.long)
        sums = F.embedding_bag(flat, buckets, (sizes.cumsum(0) - sizes)[:, 0], mode="sum")
        part = own[begin : begin + 4096]
        part.copy_(part * (sizes + 1) - sums if invert else (part + sums) / (sizes + 1))
        if tell is not None:
            tell("n-grams", min(begin + 4096, len(words)), len(words), f"{len(flat):,}")


def write_word_vectors(
    former: Former, path: str | Path, format: VectorFormat = "text", tell: ProgressCallback | None = None
) -> None:
    """Write word vectors in a published format (see `read_word_vectors`); a name that ends in .gz is packed. The row
    for unknown words is left out if it is only zeros. A fasttext file has no output table: it can be looked up with,
    but not trained on."""
    if not former.definition.is_static or former.tokenizer is None:
        raise Error(f"{former.family} is not word vectors", fix="write models by formers.save or formers.export")
    c, table = former.config, former.model.body.embedding_table.detach().float().cpu()
    words = [former.tokenizer.backend.id_to_token(i) for i in range(c.vocab)]
    unknown = former.tokenizer.id("unk")
    keep = [i for i in range(c.vocab) if i != unknown or bool(table[i].any())]
    rows, words = table[keep], [words[i] for i in keep]
    if format == "fasttext" and c.kind != "fasttext":
        raise Error(f"{c.kind} vectors have no n-grams", fix='write format="text" or "binary"')
    bad = next((w for w in words if "\n" in w or "\0" in w or (" " in w and format != "fasttext")), None)
    if bad is not None:
        what = f"the word {format_value(bad)} cannot stand in such a file"
        raise Error(what, where=path, fix="write it by formers.save")
    if format == "fasttext":
        parts: Iterable[bytes] = encode_fasttext_file(words, torch.cat((rows, table[c.vocab :])), c)
    elif format == "binary":
        top = [f"{len(words)} {c.dim}\n".encode()]
        parts = (*top, *(w.encode() + b" " + r.tobytes() + b"\n" for w, r in zip(words, rows.numpy(), strict=True)))
    else:
        parts = encode_text_rows(words, rows, format != "glove")
    with create_file(path) as file:
        for number, part in enumerate(parts, 1):
            file.write(part)
            if tell is not None and number % ROWS_PER_BLOCK == 0:
                tell("writing", number, len(words), "rows")


def encode_text_rows(words: Sequence[str], rows: Tensor, header: bool) -> Iterator[bytes]:
    """Encode lines of text; nine digits are what a four-byte number has."""
    if header:
        yield f"{len(words)} {rows.shape[1]}\n".encode()
    form = " ".join(["%.9g"] * rows.shape[1])
    for word, row in zip(words, rows, strict=True):
        yield f"{word} {form % tuple(row.tolist())}\n".encode()


def encode_fasttext_file(words: Sequence[str], table: Tensor, c: VectorsConfig) -> Iterator[bytes]:
    """Encode fastText's .bin; counts are not known, so the words' order stands in for them."""
    table = table.clone()
    combine_ngram_rows(words, table, c, invert=True)
    values = (c.dim, c.window, 5, c.min_count, c.negatives, 1, 2, 2, c.buckets, c.min_n, c.max_n, 100)
    yield struct.pack("<ii12id", FASTTEXT_MAGIC, FASTTEXT_VERSIONS[-1], *values, c.sample)
    yield struct.pack("<iiiqq", len(words), len(words), 0, sum(range(len(words) + 1)), -1)
    for place, word in enumerate(words):
        yield word.encode() + b"\0" + struct.pack("<qb", len(words) - place, 0)
    yield struct.pack("<?qq", False, *table.shape) + table.numpy().tobytes()
    yield struct.pack("<?qq", False, len(words), c.dim) + bytes(4 * c.dim * len(words))
