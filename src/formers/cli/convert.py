"""formers import, formers export: checkpoints in and out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ..config import Settings, parse_byte_size
from ..errors import Error
from .common import DtypeName, OverwriteFlag, get_torch_dtype, load_with_notes, summarise_warnings
from .terminal import SafeConsole, escape_line, show_progress

if TYPE_CHECKING:
    from ..former import Former


def import_checkpoint(
    source: str, out: Path, *, head: str = "auto", family: str | None = None, dtype: DtypeName | None = None,
    shard: str = "5GB", pickle: bool = False, ignore: tuple[str, ...] = (), overwrite: OverwriteFlag = False,
) -> None:  # fmt: skip
    """Turn a Hugging Face checkpoint, or ELMo's options.json and hdf5 file, into a formers directory.

    formers import path/to/bert-base-uncased bert
    formers import hub:openai-community/gpt2 gpt2
    formers import path/to/old-model old --pickle

    Args:
        source: A Hugging Face directory, hub:owner/name@revision, or a directory with options.json and one hdf5 file.
        out: The formers directory to write; one that exists is refused without --overwrite.
        head: A head other than the checkpoint's own: none, lm, mlm, pretraining, nsp, double, classify, tag, answer,
            choose.
        family: The family, if config.json does not say it (model_type).
        dtype: The type of the weights; unchanged by default.
        shard: The largest size of a weights file.
        pickle: Read a pytorch_model.bin if there are no safetensors. Only for files whose author you trust.
        ignore: A key of config.json to ignore; may be given several times.
    """
    from ..interop.model_directory import save
    from ..interop.safe_files import check_output_folder

    limit = parse_byte_size(shard)
    check_output_folder(out, overwrite)
    with show_progress(SafeConsole(stderr=True), "import", delay_seconds=2) as tell:
        former = load_with_notes(source, head=head, family=family, dtype=dtype, pickle=pickle, ignore=ignore, tell=tell)
        save(former, out, shard=limit, overwrite=overwrite, tell=tell)
    print_model_summary(former, out)


def export(
    source: str, out: Path | None = None, *, to: Literal["transformers", "sentence-transformers"] | None = None,
    head: str = "auto", dtype: DtypeName | None = None, shard: str = "5GB",
    pool: Literal["mean", "first", "last", "max", "weighted"] = "mean", normalise: bool = False,
    language: Literal["en", "ko"] | None = None, pickle: bool = False,
    check: Literal["transformers", "sentence-transformers", "vllm", "tei"] | None = None,
    overwrite: OverwriteFlag = False,
) -> None:  # fmt: skip
    """Turn a model into a directory that transformers' from_pretrained opens, with a model card (README.md).

    ELMo becomes options.json and hdf5, as bilm-tf has them.

    formers export my-bert bert-for-hf
    formers export my-gpt2 gpt2-half --dtype bfloat16 --shard 500MB
    formers export my-bert sentences --to sentence-transformers --normalise
    formers export runs/gpt2-1 gpt2-for-hf --check transformers

    Args:
        source: A formers directory, the folder of a training run, or anything that import takes.
        out: The directory to write; one that exists is refused without --overwrite.
        to: sentence-transformers writes the model without its head and with a pooling module, for
            SentenceTransformer(path).
        head: A head other than the model's own.
        dtype: The type of the weights; unchanged by default.
        shard: The largest size of a weights file.
        pool: With --to sentence-transformers: how the vectors of a text's tokens are pooled.
        normalise: With --to sentence-transformers: normalise vectors to length 1.
        language: The language of the model card; ko adds README.ko.md. By default it depends on the share of Hangul in
            the vocabulary.
        pickle: Read a pytorch_model.bin if there are no safetensors. Only for files whose author you trust.
        check: transformers and sentence-transformers: load the export with this library, in a separate process, and
            compare tokens and outputs with those of formers for a text, a pair and an over-long text: exit code 0, or 2
            and the reason. vllm and tei (Hugging Face's text-embeddings-inference) are not started: it is only checked
            whether they support the model's class and settings. Without OUT, nothing is kept.
    """
    from ..interop.huggingface import extract_encoder
    from ..interop.model_directory import export as write_export
    from ..interop.safe_files import check_output_folder

    limit = parse_byte_size(shard)
    if out is None and check is None:
        raise Error("no directory to write is named", fix=f"formers export {source} OUT")
    if to != "sentence-transformers" and (pool != "mean" or normalise) and check != "sentence-transformers":
        raise Error("--pool and --normalise make one vector of a text", fix="add --to sentence-transformers")
    if out is not None and to == "sentence-transformers" and check not in (None, to):
        raise Error(f"{check} does not open an export to {to}", fix=f"--check {to}, or leave --to out")
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
    if check is not None:
        fits = check == (to or "transformers") or (to is None and check in ("vllm", "tei"))
        print_export_check(former, check, out if fits else None, dtype=kind, **vectors)


def print_export_check(
    former: Former, reader: str, where: Path | None, **how: Any  # dynamic: the options of check_export
) -> None:  # fmt: skip
    """Open an export in a reader and say what was found."""
    from ..interop.export_check import check_export

    with summarise_warnings():
        verdict = check_export(former, reader, where, **how)
    if reader in ("vllm", "tei"):
        verdict += ". No numbers were compared; --check transformers opens the same files and compares them"
    SafeConsole().print(f"{reader}: {verdict}")


def print_model_summary(former: Former, out: Path) -> None:
    """Say what was written."""
    from ..former import count_trainable

    words = "with its tokenizer" if former.tokenizer is not None else "without a tokenizer"
    size = f"{count_trainable(former.model):,} parameters"
    SafeConsole().print(f"{escape_line(out)}: {former.family}, head {former.head}, {size}, {words}")
