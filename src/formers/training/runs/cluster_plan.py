"""What a run would need on many GPUs: memory of each, bytes sent in a step, expected speed, for every way to share it.

Sizes come from the model itself: weights and blocks from its shapes, activations from two shallow copies that are run
once on this machine, communication from what the strategies send (training/distributed/strategies.py). Speed comes from
what the family reached on an H200 (`Family.h200_speed`), scaled by operations per token and by the peak of the GPU.
Bandwidths are those of data sheets, given for one direction.
"""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ...config import build_config, suggest_name
from ...data.readers import load_bundled_corpus
from ...errors import Error
from ...former import build_empty, count_trainable
from ...model import Model, estimate_flops_per_token
from ...nn.attention.dispatch import forbid_plain_products
from ...nn.block import Block
from ...nn.encoder_decoder import EncoderDecoder
from ...nn.experts import Experts
from ...nn.linear_cross_entropy import PIECE_BYTES
from ...objectives.registry import OBJECTIVES
from ...registry import find_family
from ..config_merge import PretrainConfig, build_model_config
from ..distributed.process_group import ProcessGroup
from ..train_config import Parallel, TrainConfig
from .prepare_data import PreparedData, limit_characters, prepare_data, read_excerpt
from .pretrain import PretrainRun

FLOAT, HALF = 4, 2  # bytes of a weight, and of an activation in bf16
PROBE_DEPTHS = (2, 4)  # of the copies: families whose layers alternate have two kinds
PROBE_PARAMETERS = 150_000_000  # a copy is made narrower until it has no more
DDP_BUCKET = 25 * 2**20  # bytes of gradients that torch sends at once
BACKWARD_SHARE = 2 / 3  # of the operations of a batch, and taken for its share of the time
RECOMPUTED_FLOPS = 4 / 3  # of a batch whose blocks run forward twice (activation checkpointing)
LATENCY = 20e-6  # seconds of a collective operation, whatever its size: assumed, not measured
PROBE_CHARS = 400_000  # of text that the copies read
PROBE_VOCAB = 2000  # tokens of the copies' vocabulary: logits are counted apart
USABLE_MEMORY = 0.95  # of a GPU; the rest is CUDA's own
DEFAULT_EFFICIENCY = 0.35  # of the peak, for families that were not measured; the others reached 19 to 44 %


@dataclass(frozen=True)
class Gpu:
    """A GPU as its data sheet describes it, and the network card that machines with it usually have."""

    memory: float  # GB
    teraflops: float  # bf16 with dense matrices
    link: float  # GB/s to others of the same machine
    network: float  # GB/s to other machines; an assumption that --network replaces


GPUS = {
    "a100-40": Gpu(40, 312, 300, 25),
    "a100": Gpu(80, 312, 300, 25),
    "h100": Gpu(80, 989, 450, 50),
    "h200": Gpu(141, 989, 450, 50),
    "b200": Gpu(180, 2250, 900, 50),
    "l40s": Gpu(48, 362, 32, 25),
    "l4": Gpu(24, 121, 32, 12.5),
    "a10": Gpu(24, 125, 32, 12.5),
    "rtx4090": Gpu(24, 165, 32, 12.5),
}


@dataclass(frozen=True)
class Cluster:
    """Equal GPUs in equal machines."""

    gpu: Gpu
    gpus: int
    gpus_per_node: int = 8

    @property
    def bandwidth(self) -> float:
        """Bytes a second that a GPU sends in a ring: the slowest link decides."""
        return 1e9 * (self.gpu.link if self.gpus <= self.gpus_per_node else min(self.gpu.link, self.gpu.network))

    def time_exchange(self, sent: float) -> float:
        """Return the seconds in which each GPU sends `sent` bytes, evenly spread over all others."""
        outside = max(0, self.gpus - self.gpus_per_node) / max(1, self.gpus - 1)
        return sent * (1 - outside) / (1e9 * self.gpu.link) + sent * outside / (1e9 * self.gpu.network)


@dataclass(frozen=True)
class ModelSize:
    """Everything about a model that a plan depends on."""

    parameters: int  # that are trained; those of all experts, too
    block_parameters: int  # of these, inside of blocks
    block_reuse: float  # how often a block is used in one pass (ALBERT: as often as it has layers)
    largest_block: int
    expert_parameters: int
    expert_layers: int
    expert_visits: float  # of these, how many a token meets: those of its side
    num_experts: int
    dim: int
    optimizer_bytes: float  # of a parameter
    fixed_bytes: float  # of weights in bf16 that a backward pass needs
    token_bytes: float  # of activations of a token, all layers
    layer_token_bytes: float  # of these, one layer
    layers: int  # of both stacks of an encoder-decoder
    batch_tokens: float  # of both sides
    flops: float  # of training on one token
    h200_flops: float | None  # operations a second that the family reached on an H200; None: not measured


@dataclass(frozen=True)
class StrategyPlan:
    """What a run needs if it is shared by one strategy."""

    parallel: Parallel
    state_bytes: float  # weights, gradients and optimizer state of one process
    buffer_bytes: float  # of the exchange
    activation_bytes: float
    sent_bytes: float  # by each process in a step
    compute_seconds: float  # of a step
    wait_seconds: float  # for the exchange that does not overlap with computation
    tokens: int  # of a step, all processes

    @property
    def memory(self) -> float:
        """Bytes that one GPU needs at most."""
        return self.state_bytes + self.buffer_bytes + self.activation_bytes

    @property
    def tokens_per_second(self) -> float:
        """Tokens a second of all GPUs."""
        return self.tokens / (self.compute_seconds + self.wait_seconds)


def describe_cluster(gpu: str, gpus: int, gpus_per_node: int = 8, network: float | None = None) -> Cluster:
    """Return a cluster by the name of its GPUs; `network` is GB/s per GPU, if it is not the usual card."""
    if gpu.lower() not in GPUS:
        raise Error(f"the GPU {gpu!r} is not known", fix=suggest_name(gpu.lower(), GPUS))
    if gpus < 1 or gpus_per_node < 1 or (network is not None and not network > 0):
        raise Error("GPUs and bandwidths are numbers above 0", fix="give for example --gpus 64 --gpus-per-node 8")
    one = GPUS[gpu.lower()]
    return Cluster(one if network is None else dataclasses.replace(one, network=network), gpus, gpus_per_node)


def plan_pretraining(config: PretrainConfig, cluster: Cluster) -> tuple[list[StrategyPlan], list[str]]:
    """Return a plan for each strategy that the family has, and notes on how they were made."""
    if config.init is not None:
        raise Error("a plan needs the sizes of a new model", fix="give --preset in place of --init")
    size, notes = measure_model(config)
    s, n = config.train, cluster.gpus
    if s.accumulate % n:
        batches = f"{s.count_batches(s.steps, n)} batches a step are assumed"
        notes.append(f"train.accumulate {s.accumulate} is not a multiple of {n} GPUs: {batches}")
    ways: list[Parallel] = ["ddp", "fsdp"]
    if size.num_experts % n == 0 and size.num_experts:
        ways.append("expert")
    elif size.num_experts:
        notes.append(f"{size.num_experts} experts cannot be shared by {n} GPUs: no expert parallelism")
    return [make_plan(way, size, s, cluster) for way in ways], notes


def list_plans(config: PretrainConfig, cluster: Cluster) -> tuple[list[tuple[str, ...]], list[str]]:
    """Return the plans as rows of a table whose columns are PLAN_COLUMNS, and the notes."""
    plans, notes = plan_pretraining(config, cluster)
    rows = []
    for plan in plans:
        seconds = plan.compute_seconds + plan.wait_seconds
        fits = plan.memory <= USABLE_MEMORY * 1e9 * cluster.gpu.memory
        parts = (plan.state_bytes, plan.activation_bytes, plan.buffer_bytes)
        rows.append((
            plan.parallel, f"{plan.memory / 1e9:,.1f} GB{'' if fits else ', too much'}",
            *(f"{part / 1e9:,.1f} GB" for part in parts), f"{plan.sent_bytes / 1e9:,.2f} GB", f"{seconds:,.3f} s",
            f"{plan.wait_seconds / seconds:.0%}", f"{plan.tokens_per_second:,.0f}",
        ))  # fmt: skip
    return rows, notes


PLAN_COLUMNS = (
    "strategy", "memory per GPU", "state", "activations", "buffers", "sent per step", "step", "waiting", "tokens/s",
)  # fmt: skip


def make_plan(parallel: Parallel, size: ModelSize, s: TrainConfig, cluster: Cluster) -> StrategyPlan:
    """Compute what one strategy needs."""
    n, batches = cluster.gpus, s.count_batches(s.steps, cluster.gpus) // cluster.gpus
    ring = (n - 1) / n
    each = 2 * FLOAT + size.optimizer_bytes  # weight, gradient, optimizer state
    if s.ema:
        each += FLOAT
    copied, experts = size.parameters - size.expert_parameters, size.expert_parameters
    flops = size.flops * (RECOMPUTED_FLOPS if s.activation_checkpointing else 1)
    batch_seconds = size.batch_tokens * flops / compute_speed(size, cluster.gpu)
    backward = BACKWARD_SHARE * batch_seconds
    buffers, sent = 0.0, 0.0
    if n == 1:
        state, wait = size.parameters * each, 0.0
    elif parallel == "ddp":
        state, buffers, sent = size.parameters * each, FLOAT * size.parameters, 2 * ring * FLOAT * size.parameters
        wait = compute_wait(sent, -(-FLOAT * size.parameters // DDP_BUCKET), backward, cluster)
    elif parallel == "fsdp":
        root = size.parameters - size.block_parameters
        state = size.parameters * each / n
        # Two blocks are whole at a time, the one in use and the next; what lies outside of blocks stays whole.
        buffers = FLOAT * (2 * size.largest_block + root)
        if batches > 1:  # gradients of all but the last batch are added up whole
            buffers += FLOAT * size.parameters
        blocks = ring * FLOAT * size.block_parameters * size.block_reuse  # once forward, once backward
        reduced, calls = ring * FLOAT * size.parameters, size.layers + 1
        sent = batches * (2 * blocks + ring * FLOAT * root) + reduced
        wait = batches * compute_wait(blocks + ring * FLOAT * root, calls, batch_seconds - backward, cluster)
        wait += (batches - 1) * compute_wait(blocks, calls, backward, cluster)
        wait += compute_wait(blocks + reduced, 2 * calls, backward, cluster)
    else:
        state, buffers = copied * each + experts * each / n, FLOAT * copied
        reduced = 2 * ring * FLOAT * copied
        # Tokens travel there and back, forward and backward; nothing can be computed meanwhile.
        travelling = 4 * ring * size.batch_tokens * size.dim * HALF * size.expert_visits * batches
        sent = reduced + travelling
        wait = compute_wait(reduced, -(-FLOAT * copied // DDP_BUCKET), backward, cluster)
        wait += cluster.time_exchange(travelling) + 4 * size.expert_layers * batches * LATENCY
    activations = size.fixed_bytes + size.batch_tokens * size.token_bytes
    if s.activation_checkpointing:  # the inputs of all blocks, and one block whole
        inputs = size.layers * size.dim * HALF
        activations -= size.batch_tokens * (size.layers * size.layer_token_bytes - inputs - size.layer_token_bytes)
    tokens = round(size.batch_tokens * batches * n)
    return StrategyPlan(parallel, state, buffers, activations, sent, batches * batch_seconds, wait, tokens)


def compute_wait(sent: float, calls: float, overlapped: float, cluster: Cluster) -> float:
    """Return the seconds of an exchange that do not pass while something is computed."""
    seconds = sent / cluster.bandwidth + calls * LATENCY
    last = min(sent, 2 * DDP_BUCKET) / cluster.bandwidth + LATENCY  # nothing is left to compute after the last part
    return max(last, seconds - overlapped)


def compute_speed(size: ModelSize, gpu: Gpu) -> float:
    """Return operations a second that training reaches on a GPU: as large a share of its peak as on an H200."""
    if size.h200_flops is None:
        return DEFAULT_EFFICIENCY * (gpu.teraflops * 1e12)
    return size.h200_flops * gpu.teraflops / GPUS["h200"].teraflops


def measure_model(config: PretrainConfig) -> tuple[ModelSize, list[str]]:
    """Collect the sizes of a model: from its shapes, and from shallow copies that run one batch forward."""
    family, s = find_family(config.family).definition, config.train
    vocab = config.model.get("vocab", config.data.vocab_size)
    sizes = build_model_config(config, vocab=vocab)
    model = build_empty(config.family, sizes, family.pretraining_head).model
    blocks = [count_trainable(part) for part in model.modules() if isinstance(part, Block)]
    if not blocks:
        raise Error(f"{config.family} has no blocks to spread over GPUs", fix="a plan is for Transformers")
    probe = probe_activations(config)
    notes = [f"activations: measured on copies of {PROBE_DEPTHS[0]} and {PROBE_DEPTHS[1]} layers"]
    if probe.narrowed > 1:
        notes[0] += f", {probe.narrowed} times narrower than the model"
    h200_flops = None
    if (measured := family.h200_speed) is None:
        notes.append(f"speed: {config.family} was not measured, {DEFAULT_EFFICIENCY:.0%} of the peak is assumed")
    else:
        known = {**(family.presets[measured.model] if isinstance(measured.model, str) else measured.model)}
        one = build_empty(config.family, build_config(family.config_class, known), family.pretraining_head).model
        flops = estimate_flops_per_token(one, measured.length, probe.predicted_share, measured.target_share)
        h200_flops = measured.tokens_per_second * flops
        share = h200_flops / (GPUS["h200"].teraflops * 1e12)
        notes.append(f"speed: from {measured.tokens_per_second:,} tokens/s on an H200, {share:.0%} of its peak")
    experts = [part for part in model.modules() if isinstance(part, Experts)]
    depth = sizes.layers + sizes.num_decoder_layers
    logits = min(PIECE_BYTES, s.batch_tokens * probe.predicted_share * vocab * HALF)
    size = ModelSize(
        parameters=count_trainable(model), block_parameters=sum(blocks), block_reuse=depth / len(blocks),
        largest_block=max(blocks),
        expert_parameters=sum(layer.up.numel() + layer.down.numel() for layer in experts), expert_layers=len(experts),
        expert_visits=count_expert_visits(model, probe.target_share),
        num_experts=experts[0].num_experts if experts else 0, dim=sizes.dim, optimizer_bytes=probe.optimizer_bytes,
        fixed_bytes=HALF * count_trainable(model) + logits, token_bytes=probe.base_bytes + depth * probe.layer_bytes,
        layer_token_bytes=probe.layer_bytes, layers=depth,
        # train.batch_tokens counts the longer side of an encoder-decoder alone.
        batch_tokens=s.batch_tokens / max(probe.target_share, 1 - probe.target_share), h200_flops=h200_flops,
        flops=estimate_flops_per_token(model, s.seq_length, probe.predicted_share, probe.target_share),
    )  # fmt: skip
    return size, notes


def count_expert_visits(model: Model, target_share: float) -> float:
    """Return how many layers of experts a token meets on average; one of an encoder-decoder meets those of its side."""
    sides: list[tuple[nn.Module | None, float]] = [(model, 1.0)]
    if isinstance(body := model.body, EncoderDecoder):
        sides = [(body.encoder, 1 - target_share), (body.decoder, target_share)]
    return sum(share for side, share in sides if side is not None for m in side.modules() if isinstance(m, Experts))


@dataclass(frozen=True)
class Probe:
    """What shallow copies of a model showed."""

    base_bytes: float  # of activations of a token, outside of layers and without logits
    layer_bytes: float  # of one layer, as wide as the model
    optimizer_bytes: float  # of a parameter
    predicted_share: float  # of the tokens
    target_share: float  # of the tokens of an encoder-decoder
    narrowed: int  # how many times narrower the copies were


def probe_activations(config: PretrainConfig) -> Probe:
    """Run one batch forward through copies of two depths, and count what a backward pass would need."""
    narrowed = 1
    while count_trainable(build_probe_model(shrink_config(config, narrowed, PROBE_DEPTHS[1]))) > PROBE_PARAMETERS:
        narrowed *= 2
    small_config = shrink_config(config, narrowed, PROBE_DEPTHS[0])
    with tempfile.TemporaryDirectory() as folder:
        data = prepare_data(config.family, small_config.data, Path(folder), read_probe_text(small_config))
        measured = [measure_batch(shrink_config(config, narrowed, depth), data) for depth in PROBE_DEPTHS]
    (low, optimizer_bytes, *shares), (high, *_) = measured
    layers = [build_model_config(shrink_config(config, 1, depth)) for depth in PROBE_DEPTHS]
    depths = [sizes.layers + sizes.num_decoder_layers for sizes in layers]
    layer = (high - low) / (depths[1] - depths[0])
    base = low - depths[0] * layer
    return Probe(narrowed * base, narrowed * layer, optimizer_bytes, shares[0], shares[1], narrowed)


def build_probe_model(config: PretrainConfig) -> Model:
    """Build a copy's shapes."""
    head = find_family(config.family).definition.pretraining_head
    return build_empty(config.family, build_model_config(config, vocab=PROBE_VOCAB), head).model


def shrink_config(config: PretrainConfig, narrowed: int, depth: int) -> PretrainConfig:
    """Return the settings of a shallow and narrow copy that trains on batches of a few examples, without dropout: a
    compiled step on a GPU keeps no masks of it."""
    model = {name: value for name, value in config.model.items() if name != "vocab"}
    model |= build_model_config(config).shrink_settings(narrowed, depth)
    s = config.train
    train = dataclasses.replace(
        s, batch_tokens=2 * s.seq_length, accumulate=1, short_length=None, batch_rampup_steps=0, precision="fp32",
        compile=False, workers=0, parallel="ddp", activation_checkpointing=False,
    )  # fmt: skip
    data = dataclasses.replace(config.data, vocab_size=PROBE_VOCAB)
    return dataclasses.replace(config, model=model, model_overrides={}, train=train, data=data)


def read_probe_text(config: PretrainConfig) -> object:
    """Return some of the run's text, or of the bundled corpus if it has none; pairs for translators."""
    if config.data.source:
        return read_excerpt(config.data)[0]
    text = list(limit_characters(iter(load_bundled_corpus()[0]), PROBE_CHARS))
    if not OBJECTIVES[config.objective["name"]].takes_pairs:
        return text
    return [f"{document}\t{document}" for document in (" ".join(one.split()) for one in text)]


def measure_batch(config: PretrainConfig, data: PreparedData) -> tuple[float, float, float, float]:
    """Run a batch forward in bf16 and count the bytes of a token that a backward pass would read, without weights and
    logits; returns these, the optimizer's bytes of a parameter, and the shares of predicted and of target tokens."""
    run = PretrainRun(config, data, ProcessGroup())
    step, optimizer = run.trainer.executor.step_module, run.trainer.executor.optimizer
    batch = next(run.iter_batches(1, 0))[0].to(torch.device("cpu"))
    width = run.former.config.output_vocab
    own = {p.untyped_storage().data_ptr() for p in step.parameters()}
    shapes = {shape for p in step.parameters() for shape in (tuple(p.shape), tuple(p.shape)[::-1])}
    kept: dict[int, Tensor] = {}  # by storage: several operations may need one tensor

    def pack(tensor: Tensor) -> Tensor:
        is_weight = tensor.untyped_storage().data_ptr() in own or tuple(tensor.shape) in shapes  # or a copy in bf16
        if not is_weight and not (tensor.dim() and tensor.shape[-1] == width):
            kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    step.train()
    hooks = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with hooks, torch.autocast("cpu", torch.bfloat16), forbid_plain_products():
        losses = step(batch)
    saved = sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    kept.clear()
    del losses
    for p in step.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    tensors = [t for state in optimizer.state.values() for t in state.values() if isinstance(t, Tensor) and t.dim()]
    target = len(batch.ids)
    tokens = target + (0 if batch.source is None else len(batch.source.ids))
    predicted = target if batch.chosen is None else len(batch.chosen)
    optimizer_bytes = sum(t.nbytes for t in tensors) / count_trainable(step)
    return saved / tokens, optimizer_bytes, predicted / tokens, target / tokens
