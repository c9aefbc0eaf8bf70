"""formers import, formers export: checkpoints in and out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from ..config import ProgressCallback, Settings, parse_byte_size
from ..errors import Error
from .common import DtypeName, OverwriteFlag, get_torch_dtype, load_with_notes, summarise_warnings
from .terminal import SafeConsole, escape_line, show_progress

if TYPE_CHECKING:
    from ..former import Former

ReaderName = Literal["transformers", "sentence-transformers", "vllm", "tei", "ctranslate2", "onnx"]


def import_checkpoint(
    source: str, out: Path, *, head: str = "auto", family: str | None = None, dtype: DtypeName | None = None,
    shard: str = "5GB", pickle: bool = False, ignore: tuple[str, ...] = (), overwrite: OverwriteFlag = False,
) -> None:  # fmt: skip
    """Turn a published checkpoint or a file of word vectors into a formers directory.

    formers import path/to/bert-base-uncased bert
    formers import hub:openai-community/gpt2 gpt2
    formers import path/to/old-model old --pickle
    formers import glove.6B.100d.txt glove

    Args:
        source: A Hugging Face directory, hub:owner/name@revision, a directory with ELMo's options.json and one hdf5
            file, fairseq's model.pt (RoBERTa, BART) or Paddle's .pdparams (ERNIE), or a file of word vectors:
            word2vec's text or binary, GloVe's, fastText's .vec or .bin, also as .gz.
        out: The formers directory to write; one that exists is refused without --overwrite.
        head: A head other than the checkpoint's own: none, lm, mlm, pretraining, nsp, double, classify, tag, answer,
            choose.
        family: The family, if config.json does not say it (model_type).
        dtype: The type of the weights; unchanged by default.
        shard: The largest size of a weights file.
        pickle: Read a pytorch_model.bin if there are no safetensors, a model.pt, .pdparams or vocab.pkl. Only for files
            whose author you trust.
        ignore: A key of config.json to ignore; may be given several times.
    """
    from ..interop.model_directory import save
    from ..interop.safe_files import check_output_folder

    limit = parse_byte_size(shard)
    check_output_folder(out, overwrite)
    with show_progress(SafeConsole(stderr=True), "import", delay_seconds=2) as tell:
        if Path(source).expanduser().is_file():
            former = read_vector_file(source, head, family, dtype, tell)
        else:
            how: Settings = {"head": head, "family": family, "pickle": pickle, "ignore": ignore, "tell": tell}
            former = load_with_notes(source, dtype=dtype, **how)
        save(former, out, shard=limit, overwrite=overwrite, tell=tell)
    print_model_summary(former, out)


def read_vector_file(
    source: str, head: str, family: str | None, dtype: DtypeName | None, tell: ProgressCallback
) -> Former:
    """Read word vectors from a published file; they have no head, and no family but their own."""
    from ..interop.word_vectors import read_word_vectors

    for option, value, allowed in (("--head", head, ("auto", "none")), ("--family", family, (None, "vectors"))):
        if value not in allowed:
            what = f"{option} {value} does not apply to a file of word vectors"
            raise Error(what, where=source, fix="leave it out, or give the directory of a checkpoint")
    former = read_word_vectors(source, tell=tell)
    return former if dtype is None else former.to(dtype=get_torch_dtype(dtype))


def export(
    source: str, out: Path | None = None, *,
    to: Annotated[ReaderName | None, Parameter(name=("--for", "--to"))] = None,
    head: str = "auto", dtype: DtypeName | None = None, shard: str = "5GB",
    pool: Literal["mean", "first", "last", "max", "weighted"] = "mean", normalise: bool = False,
    language: Literal["en", "ko"] | None = None, pickle: bool = False,
    check: ReaderName | None = None, overwrite: OverwriteFlag = False,
) -> None:  # fmt: skip
    """Write a model as a directory that transformers or a server opens, with a model card (README.md).

    ELMo becomes options.json and hdf5, the format of bilm-tf.

    formers export my-bert bert-for-hf
    formers export my-gpt2 gpt2-half --dtype bfloat16 --shard 500MB
    formers export my-bert sentences --for sentence-transformers --normalise
    formers export runs/gpt2-1 gpt2-for-hf --check transformers
    formers export my-bert bert-onnx --for onnx

    Args:
        source: A formers directory, the folder of a training run, or anything that import takes.
        out: The directory to write; one that exists is refused without --overwrite.
        to: The library or server that will open the directory; transformers by default. For sentence-transformers, the
            model is written without its head, with a pooling module. For vllm, tei (Hugging Face's
            text-embeddings-inference), ctranslate2 and onnx, the export is also opened there and its results are
            compared with those of formers, if it is installed.
        head: A head other than the model's own.
        dtype: The type of the weights; unchanged by default.
        shard: The largest size of a weights file.
        pool: With --for sentence-transformers, vllm or tei: how the vectors of a text's tokens are pooled.
        normalise: With --for sentence-transformers, vllm or tei: normalise vectors to length 1.
        language: The language of the model card; ko adds README.ko.md. By default it depends on the share of Hangul in
            the vocabulary.
        pickle: Read a pytorch_model.bin if there are no safetensors. Only for files whose author you trust.
        check: Load the export with this library, in a separate process, and compare tokens and outputs with those of
            formers: exit code 0, or 2 and the reason. If it is not installed, nothing is compared, and for vllm and
            tei the answer says whether they support the model. Without OUT, the export is removed again.
    """
    from ..interop.huggingface import extract_encoder
    from ..interop.model_directory import export as write_export
    from ..interop.safe_files import check_output_folder
    from ..interop.serving_targets import SERVING_TARGETS

    limit = parse_byte_size(shard)
    if out is None and check is None:
        raise Error("no directory to write is named", fix=f"formers export {source} OUT")
    if (pool != "mean" or normalise) and not {to, check} & {"sentence-transformers", "vllm", "tei"}:
        raise Error("--pool and --normalise make one vector of a text", fix="add --for sentence-transformers")
    if out is not None and to not in (None, "transformers") and check not in (None, to):
        raise Error(f"{check} does not open an export for {to}", fix=f"--check {to}, or leave --for out")
    if out is not None:
        check_output_folder(out, overwrite)
    kind = get_torch_dtype(dtype)
    vectors: Settings = {"pool": pool, "normalise": normalise}
    files: Settings = {"language": language, "overwrite": overwrite}
    with show_progress(SafeConsole(stderr=True), "export", delay_seconds=2) as tell:
        former = load_with_notes(source, head=head, pickle=pickle, tell=tell)
        if out is not None:
            with summarise_warnings():
                write_export(former, out, to=to, dtype=kind, shard=limit, tell=tell, **files, **vectors)
    if out is not None:
        print_model_summary(extract_encoder(former) if to == "sentence-transformers" else former, out)
    checked = to if check is None and to in SERVING_TARGETS else check
    if checked is not None:
        print_export_check(former, checked, out if checked == (to or "transformers") else None, dtype=kind, **vectors)


def print_export_check(
    former: Former, reader: str, where: Path | None, **how: Any  # dynamic: the options of check_export
) -> None:  # fmt: skip
    """Open an export in a reader and say what was found."""
    from ..interop.export_check import check_export

    with summarise_warnings():
        verdict = check_export(former, reader, where, **how)
    if reader in ("vllm", "tei") and verdict.startswith("not checked"):
        verdict += ". No numbers were compared; --check transformers opens the same files and compares them"
    SafeConsole().print(f"{reader}: {verdict}")


def print_model_summary(former: Former, out: Path) -> None:
    """Say what was written."""
    from ..former import count_trainable

    words = "with its tokenizer" if former.tokenizer is not None else "without a tokenizer"
    size = f"{count_trainable(former.model):,} parameters"
    SafeConsole().print(f"{escape_line(out)}: {former.family}, head {former.head}, {size}, {words}")
