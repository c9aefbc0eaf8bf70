"""Expert parallelism: each process has its share of the experts, and tokens travel to theirs (Fedus et al. 2021, §5.4).

The rest of the model is copied to all (DDP). An expert's gradient comes from the tokens of all processes by itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.nn.functional import all_to_all_single

from ...errors import Error
from ...nn.experts import Experts
from .ddp import DataParallel, FullySharded, get_local_tensor


class ExpertParallel(FullySharded):
    """Each process has some of the experts, and a copy of all else. Whole tensors are gathered as those of shards."""

    def wrap_step(self, step: nn.Module) -> nn.Module:
        """Keep this process's experts."""
        from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

        layers = [(name, part) for name, part in step.named_modules() if isinstance(part, Experts)]
        if not layers or any(layer.num_experts % self.size for _, layer in layers):
            what = f"{layers[0][1].num_experts} experts" if layers else "a model without experts"
            raise Error(f"{what} cannot be shared by {self.size} processes", fix="--train.parallel ddp, or fsdp")
        mesh = init_device_mesh(self.device.type, (self.size,))
        for _, layer in layers:
            for name in ("up", "down"):
                part = nn.Parameter(distribute_tensor(getattr(layer, name).detach(), mesh, [Shard(0)]))
                part.register_hook(lambda gradient: gradient / self.size)  # DDP takes the mean of all else
                setattr(layer, name, part)
            layer.remote_dispatch = torch.compiler.disable(
                self.dispatch_tokens
            )  # how many tokens go where depends on the data
        apart = [f"{prefix}.{name}" for prefix, _ in layers for name in ("up", "down")]
        nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(step, apart)
        return DataParallel.wrap_step(self, step)

    @contextlib.contextmanager
    def sync_gradients(self, step: nn.Module, is_last_batch: bool) -> Iterator[None]:
        """Gradients are exchanged after the last batch of a step only."""
        with DataParallel.sync_gradients(self, step, is_last_batch):
            yield

    def clip_grad_norm(self, model: nn.Module, max_norm: float) -> Tensor:
        """The norm of the gradient: every process's experts count, and what is copied counts once."""
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        squares = [torch.zeros((), device=self.device) for _ in range(2)]
        for g in gradients:
            squares[get_local_tensor(g) is not g] += get_local_tensor(g).float().square().sum()
        dist.all_reduce(squares[1])
        norm = (squares[0] + squares[1]).sqrt()
        share = (max_norm / (norm + 1e-6)).clamp(max=1.0)  # as torch's clip_grad_norm_
        for g in gradients:
            get_local_tensor(g).mul_(share)
        return norm

    def dispatch_tokens(self, layer: Experts, x: Tensor, chosen: Tensor) -> Tensor:
        """(N, dim) → (N, dim): every token goes to the process that has its expert, and comes back."""
        order = chosen.argsort(stable=True)
        leave = torch.bincount(chosen, minlength=layer.num_experts).view(self.size, -1)  # (processes, their experts)
        come = torch.empty_like(leave)
        dist.all_to_all_single(come, leave)
        out, back = leave.sum(1).tolist(), come.sum(1).tolist()
        guests = exchange_rows(x.index_select(0, order), out, back)
        own = torch.arange(leave.shape[1], device=x.device).repeat(self.size).repeat_interleave(come.flatten())
        y = exchange_rows(layer.run_experts(guests, own), back, out)
        return torch.zeros_like(y).index_copy(0, order, y)


def exchange_rows(x: Tensor, out: list[int], back: list[int]) -> Tensor:
    """Rows to all processes, `out` to each; those that come, `back` from each. Gradients go the other way."""
    return all_to_all_single(x.new_empty(sum(back), x.shape[1]), x.contiguous(), back, out)
