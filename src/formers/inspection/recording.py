"""One forward pass with everything that can be seen of it: hidden states after every layer, attention, routing.

What is recorded is computed beside the pass or copied from it: the result is bit for bit that of a pass without it.
N tokens (packed), T tokens of a side.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from ..batch import Batch
from ..config import Settings
from ..errors import NonFinite
from ..former import Former
from ..nn.attention.context import Capture
from ..nn.attention.segment_memory import SegmentMemory
from ..nn.block import BlockStack, TransformerBody
from ..nn.encoder_decoder import EncoderDecoder, RecurrentEncoderDecoder, TransformerStack
from ..nn.head_pruning import find_attentions
from .sides import TextInputs

HookResult = TypeVar("HookResult")
QUERY_STREAM = "query"  # XLNet's second stream, as a kind of attention and of states


@dataclass(frozen=True)
class Recording:
    """What one forward pass of a text left behind."""

    hidden: Tensor  # (N, dim) what the head reads
    states: dict[str, list[Tensor]]  # by stack: its input, then the output of every layer, (N, dim), not normed
    capture: Capture


@torch.no_grad()
def record_pass(
    former: Former, inputs: TextInputs, order: Tensor | None = None, *, with_hidden: bool = False,
    with_attention: bool = False, with_vectors: bool = False,
) -> Recording:  # fmt: skip
    """Run a model over a text and record the pass; with XLNet's `order` (N,), in two streams. The rest is what a
    `Capture` is asked for; states of blocks are always recorded."""
    batch = inputs.get_batch()
    batch = batch if order is None else batch.replace(order=order)
    capture = Capture(with_hidden, with_attention, with_vectors, routing=[])
    how = fill_memory(former, inputs)
    with record_blocks(former.model.body) as states:
        hidden = former.model(batch, capture=capture, **how)
    if not is_all_finite(hidden):
        raise NonFinite("hidden states")
    if order is not None:
        length = batch.ids.shape[0]
        states = {QUERY_STREAM: [x[length:] for x in next(iter(states.values()))]}
    if not states:
        states = {name: list(layers) for name, layers in capture.hidden_states.items()}
        if states and not isinstance(former.model.body, EncoderDecoder):  # the last state is what the body returns
            last = list(states)[-1]
            states[last].append(hidden)
    return Recording(hidden, states, capture)


def is_all_finite(x: Tensor) -> bool:
    """Return whether all numbers are finite: the smallest and the largest are NaN if any is."""
    return not x.numel() or all(bool(edge.isfinite()) for edge in x.aminmax())


def fill_memory(former: Former, inputs: TextInputs) -> Settings:
    """Read what came before a text into a new segment memory; returns it as an argument of the forward pass."""
    if inputs.memory_ids is None:
        return {}
    length = former.config.memory or len(inputs.memory_ids)
    state = former.create_state(1, max(length, 1))
    how = former.build_forward_args(state, None)
    before = Batch.from_rows([inputs.memory_ids.tolist()], former.device)
    former.model(before, **how)
    assert isinstance(state, SegmentMemory)
    return how


def count_remembered(former: Former, inputs: TextInputs) -> int:
    """Count the earlier tokens that a memory keeps."""
    if inputs.memory_ids is None:
        return 0
    return min(len(inputs.memory_ids), former.config.memory or len(inputs.memory_ids))


def limit_to_thread(hook: Callable[..., HookResult]) -> Callable[..., HookResult | None]:
    """Return a hook that acts on the passes of this thread alone: a server runs other requests on the same modules."""
    owner = threading.get_ident()

    def run_hook(*given: object) -> HookResult | None:
        return hook(*given) if threading.get_ident() == owner else None

    return run_hook


@contextlib.contextmanager
def record_blocks(body: nn.Module) -> Iterator[dict[str, list[Tensor]]]:
    """Collect the input of every stack of blocks and the output of every layer, by the name of the stack."""
    states: dict[str, list[Tensor]] = {}
    hooks = []

    def make_hooks(stack: BlockStack, name: str) -> None:
        def keep_input(module: nn.Module, given: tuple[Tensor, ...]) -> None:
            states[name] = [given[0]]

        def keep_output(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
            states[name].append(output)

        hooks.append(stack.register_forward_pre_hook(limit_to_thread(keep_input)))
        hooks.extend(block.register_forward_hook(limit_to_thread(keep_output)) for block in stack)

    for name, stack in find_stacks(body).items():
        make_hooks(stack, name)
    try:
        yield states
    finally:
        for hook in hooks:
            hook.remove()


def find_stacks(body: nn.Module) -> dict[str, BlockStack]:
    """Find the stacks of blocks of a body by their names: encoder, decoder."""
    stacks = {}
    for path, stack in body.named_modules():
        if isinstance(stack, BlockStack):
            owner = body.get_submodule(path.rpartition(".")[0])
            name = owner.stack_name if isinstance(owner, TransformerBody | TransformerStack) else "decoder"
            stacks[name] = stack
    return stacks


def find_final_norm(body: nn.Module) -> nn.Module | None:
    """Find the norm between the last block and the head, if the body has one (pre-norm models)."""
    if isinstance(body, EncoderDecoder):
        return (body.decoder or body.encoder).norm  # type: ignore[union-attr]
    return body.norm if isinstance(body, TransformerBody) else None


def get_model_kind(former: Former) -> str:
    """Return what a model is: encoder, decoder, encoder-decoder, recurrent, convolution or vectors."""
    body = former.model.body
    if former.definition.is_static:
        return "vectors"
    if isinstance(body, RecurrentEncoderDecoder) or former.definition.reads_characters:
        return "recurrent"
    if former.is_encoder_decoder:
        return "encoder-decoder"
    attentions = find_attentions(body)
    if not attentions:
        return "convolution"
    if former.is_two_stream:
        return "decoder" if former.config.causal else "encoder"
    is_causal = former.definition.can_be_causal and former.config.causal
    return "decoder" if is_causal or next(iter(attentions))[0] == "decoder" else "encoder"


def repeat_document(batch: Batch, count: int) -> Batch:
    """Return a batch of `count` copies of a batch's one document, with all that is read beside it."""
    length = batch.ids.shape[0]
    starts = torch.arange(count + 1, device=batch.ids.device, dtype=torch.int32) * length

    def repeat(x: Tensor | None) -> Tensor | None:
        return None if x is None else x.repeat(count, *[1] * (x.dim() - 1))

    return Batch(
        batch.ids.repeat(count, *[1] * (batch.ids.dim() - 1)), starts, length, positions=repeat(batch.positions),
        segments=repeat(batch.segments), tasks=repeat(batch.tasks), order=repeat(batch.order),
        source=None if batch.source is None else repeat_document(batch.source, count),
    )  # fmt: skip
