"""Models as ONNX graphs, for ONNX Runtime and what is built on it: padded ids in, logits or hidden states out.

A graph has two free axes, rows and tokens. Inside, models read packed documents; here they are handed a grid whose
padding is masked, so that no shape depends on the values. There is no KV cache: a graph scores texts, embeds and
classifies them; to generate, it reads the whole text again for each token.
"""

from __future__ import annotations

import importlib.util
import logging
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .. import __version__
from ..atomic_files import stage_directory
from ..batch import Batch, Layout
from ..errors import Error
from ..former import Former
from ..nn.attention.dispatch import force_kernel
from . import safe_files
from .huggingface import build_tokenizer_config, prepare_for_export
from .model_card import write_licence_note
from .safe_files import check_has_weights

ONNX_FILE, ABOUT_FILE = "model.onnx", "onnx.json"
ONNX_EXPORTER_PACKAGES = ("onnx", "onnxscript")
POOLINGS = (None, "first", "last", "eos")  # others would read the padding as well
EXAMPLE_ROWS, EXAMPLE_TOKENS, EXAMPLE_TARGET_TOKENS = 2, 9, 5
MAX_ROWS, MAX_TOKENS = 4096, 16_384  # of a model without a limit of its own
# Our name of a head's part, and of the output that holds it in transformers where it is not "logits".
OUTPUT_NAMES = {"nsp": "seq_relationship_logits", "sop": "sop_logits", "choose": "mc_logits"}


class PaddedLayout(Layout):
    """The layout of rows that keep their padding on the right; the places after a row's end are masked as keys."""

    def __init__(self, lengths: Tensor, rows: int, columns: int):
        self.rows, self.longest, self.num_tokens, self.lengths = rows, columns, rows * columns, lengths
        self.row_numbers = torch.arange(rows, device=lengths.device)
        columns_of_row = torch.arange(columns, device=lengths.device)
        self.document_ids = self.row_numbers[:, None].expand(rows, columns).reshape(-1)
        self.positions = columns_of_row[None].expand(rows, columns).reshape(-1)
        self.starts = torch.arange(rows + 1, device=lengths.device) * columns  # a row's end follows from `lengths`

    @property
    def is_uniform(self) -> bool:
        """False: whether there is padding is not known from the sizes."""
        return False

    def unpack(self, x: Tensor) -> Tensor:
        """(rows · columns, …) → (rows, columns, …)"""
        return x.unflatten(0, (self.rows, self.longest))

    def pack(self, grid: Tensor) -> Tensor:
        """(rows, columns, …) → (rows · columns, …)"""
        return grid.flatten(0, 1)

    def merge_documents(self, documents_each: int) -> Layout:
        """Return the layout itself: each row has a source of its own."""
        return self

    def get_first_slots(self) -> Tensor:
        """(rows,) the slot of each row's first token."""
        return self.row_numbers * self.longest

    def get_last_slots(self) -> Tensor:
        """(rows,) the slot of each row's last token that is not padding."""
        return self.get_first_slots() + self.lengths - 1


@dataclass(frozen=True)
class PaddedBatch(Batch):
    """A batch that keeps its padding; `starts` holds the lengths of the rows."""

    @property
    def layout(self) -> Layout:
        """Where this batch's rows lie."""
        return PaddedLayout(self.starts, self.starts.shape[0], self.longest)


class OnnxGraph(nn.Module):
    """What is exported: a model on padded tensors, under the names that transformers gives to inputs and outputs."""

    def __init__(self, former: Former):
        super().__init__()
        self.model = former.model
        self.head = former.head

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
    ) -> dict[str, Tensor]:  # fmt: skip
        """(rows, tokens) → outputs by name; the mask is 1 at real tokens, which come first in each row."""
        lengths = attention_mask.sum(1)
        segments = None if token_type_ids is None else token_type_ids.flatten()
        # with sample numbers, a row without an end mark is no error: a graph raises none
        batch: Batch = PaddedBatch(
            input_ids.flatten(), lengths, input_ids.shape[1], segments=segments, sample=lengths, keep=None
        )
        if decoder_input_ids is not None:
            columns = decoder_input_ids.shape[1]
            batch = PaddedBatch(
                decoder_input_ids.flatten(), torch.full_like(lengths, columns), columns, source=batch, sample=lengths
            )
        hidden = self.model(batch)
        if self.head == "none":
            return {"last_hidden_state": batch.layout.unpack(hidden)}
        outputs = {}
        for name, part in self.model.parts.items():
            if part.out is not None:
                answer = self.model.logits(hidden, batch, name)
                answer = answer if part.spec.pool is not None else batch.layout.unpack(answer)
                outputs[name] = answer.squeeze(-1) if part.spec.out == 1 else answer
        return name_outputs(self.head, next(iter(outputs.values())) if len(outputs) == 1 else outputs)


def name_outputs(head: str, outputs: Tensor | dict[str, Tensor]) -> dict[str, Tensor]:
    """Give what a head answers the names that transformers has for it."""
    if head == "answer":
        assert isinstance(outputs, Tensor)
        return {"start_logits": outputs[..., 0], "end_logits": outputs[..., 1]}
    if isinstance(outputs, Tensor):
        return {"logits": outputs}
    usual = "prediction_logits" if head == "pretraining" else "logits"
    return {OUTPUT_NAMES.get(name, usual): value for name, value in outputs.items()}


def list_pooled_outputs(former: Former) -> list[str]:
    """List the outputs that have one answer for each text, not for each token."""
    parts = {name: torch.empty(0) for name, part in former.model.parts.items() if part.spec.pool is not None}
    if former.head == "answer" or not parts:
        return []
    has_one = sum(part.out is not None for part in former.model.parts.values()) == 1
    return list(name_outputs(former.head, next(iter(parts.values())) if has_one else parts))


def check_onnx_support(former: Former) -> str:
    """Return what an ONNX graph of this model gives; an Error for a model that cannot become one."""
    if former.definition.onnx_refusal:
        why = f"{former.family} has no ONNX graph with free lengths: {former.definition.onnx_refusal}"
        raise Error(f"no, ONNX Runtime cannot run it: {why}", fix="serve it with formers serve, or on Ray Serve")
    if former.head in ("choose", "double", "beam"):
        what = f"no, ONNX Runtime cannot run it: the head {former.head} answers several texts together"
        raise Error(what, fix="export it with --head none, or serve it with formers serve")
    if former.is_encoder_decoder and former.head not in ("lm", "none"):
        what = f"no, ONNX Runtime cannot run it: the head {former.head} of a {former.family} decodes its own source"
        raise Error(what, fix="export it with --head none, or serve it with formers serve")
    for part in former.model.parts.values():
        if part.encoder is not None:
            what = f"no, ONNX Runtime cannot run it: its head has a {part.spec.encoder}, which would read the padding"
            raise Error(what, fix="export it with --head none, or serve it with formers serve")
        if part.spec.pool not in POOLINGS:
            what = f"no, ONNX Runtime cannot run it: its head pools by {part.spec.pool}, and padding would count"
            raise Error(what, fix="export it with --head none")
    return "hidden states" if former.head == "none" else "logits"


def check_onnx_exporter() -> None:
    """Refuse to begin where the packages that write ONNX files are missing."""
    missing = [name for name in ONNX_EXPORTER_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise Error(f"an export to ONNX needs {' and '.join(missing)}", fix="pip install 'formers[onnx]'")


def write_onnx(former: Former, out: Path, dtype: torch.dtype | None = None) -> None:
    """Write model.onnx (large weights beside it), the tokenizer, and onnx.json with the inputs, outputs and labels."""
    check_onnx_support(former)
    check_onnx_exporter()
    check_has_weights(former.model)
    if dtype not in (None, torch.float32):
        what = f"ONNX graphs are written in float32, not in {str(dtype)[6:]}"
        raise Error(what, fix="leave --dtype out; ONNX Runtime's own tools quantise a graph")
    former = prepare_for_export(former)
    was, device = former.dtype, former.device
    former.to("cpu", torch.float32)
    try:
        program, inputs, outputs = build_program(former)
    finally:
        former.to(device, was)
    about = {
        "formers": __version__, "family": former.family, "head": former.head, "inputs": inputs, "outputs": outputs,
        "pooled_outputs": [name for name in outputs if name in list_pooled_outputs(former)],
        "context": former.context, "padding": "right", "labels": list(former.labels),
    }  # fmt: skip
    with stage_directory(out) as folder:
        write_licence_note(folder, former)
        program.save(str(folder / ONNX_FILE), external_data=True)
        safe_files.write_json(folder / ABOUT_FILE, about)
        if former.tokenizer is not None:
            former.tokenizer.save(folder / "tokenizer.json")
            if (options := build_tokenizer_config(former)) is not None:
                safe_files.write_json(folder / "tokenizer_config.json", options)


def build_program(former: Former) -> tuple[Any, list[str], list[str]]:  # dynamic: a class of torch.onnx
    """Build the ONNX program of a model on the CPU; returns it with the names of its inputs and outputs."""
    graph = OnnxGraph(former).eval()
    most = former.context or MAX_TOKENS
    rows, tokens = torch.export.Dim("rows", max=MAX_ROWS), torch.export.Dim("tokens", min=2, max=most)
    columns = min(EXAMPLE_TOKENS, most)
    ids = (torch.arange(EXAMPLE_ROWS * columns).view(EXAMPLE_ROWS, columns) * 7 + 3) % former.config.vocab
    mask = torch.ones_like(ids)
    mask[-1, columns // 2 :] = 0
    arguments = {"input_ids": ids, "attention_mask": mask}
    if former.can_read_segments:
        arguments["token_type_ids"] = torch.zeros_like(ids)
    axes: dict[str, dict[int, object]] = {name: {0: rows, 1: tokens} for name in arguments}
    if former.is_encoder_decoder and former.head in ("lm", "none"):
        arguments["decoder_input_ids"] = ids[:, :EXAMPLE_TARGET_TOKENS] % former.output_vocab
        axes["decoder_input_ids"] = {0: rows, 1: torch.export.Dim("target_tokens", min=2, max=most)}
    exporter_log = logging.getLogger("torch.onnx")
    level = exporter_log.level
    exporter_log.setLevel(logging.ERROR)  # it names optional packages that nothing here needs
    try:
        with torch.no_grad(), force_kernel("dense"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch about itself
            outputs = list(graph(**arguments))
            program = torch.export.export(graph, (), arguments, dynamic_shapes=axes, strict=False)
            onnx_program = torch.onnx.export(
                program,
                (),
                kwargs=arguments,
                dynamo=True,
                verbose=False,
                input_names=list(arguments),
                output_names=outputs,
            )
    finally:
        exporter_log.setLevel(level)
    return onnx_program, list(arguments), outputs
