"""Memory (Transformer-XL): segments that are cut off from each other against a memory that is carried on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..batch import Batch
from ..errors import Error
from ..former import Former
from ..nn.attention.segment_memory import SegmentMemory
from ..reports.pictures import draw_curves
from .page import Page
from .small_models import prepare_corpus, train_small

EXPLANATION = (
    ("Text is read in segments; without a memory the first tokens of each segment have hardly any context: look for a higher loss there.",
     "텍스트는 세그먼트로 나누어 읽습니다. 메모리가 없으면 세그먼트의 앞쪽 토큰은 문맥이 거의 없습니다. 그곳의 손실이 더 큰지 보십시오."),
    ("If that rise almost disappears with a memory of earlier states, the memory has repaired the context fragmentation.",
     "이전 상태를 담은 메모리가 있을 때 그 증가가 거의 사라지면, 메모리가 문맥 단절을 해소한 것입니다."),
    ("The model was trained with a memory of two segments: see up to which length a longer memory helps, and whether it still does beyond that.",
     "모델은 세그먼트 두 개 길이의 메모리로 학습했습니다. 메모리가 어느 길이까지 도움이 되고, 그 이상에서도 도움이 되는지 보십시오."),
    ("The memory of one layer holds states that had a memory themselves, so the reach is layers × length of the memory, plus the distance to the end of the token's own segment.",
     "한 레이어의 메모리에는 스스로 메모리를 본 상태가 들어 있으므로, 도달 거리는 레이어 수×메모리 길이에 그 토큰이 속한 세그먼트의 끝까지의 거리를 더한 값입니다."),
    ("The last picture changes one token and shows how far away the output still changes: without a memory, only within the segment.",
     "마지막 그림은 토큰 하나를 바꾸고 출력이 얼마나 멀리까지 변하는지 봅니다. 메모리가 없으면 세그먼트 안에서만 변합니다."),
)  # fmt: skip
MIN_SEGMENT = 3  # tokens


@dataclass(frozen=True)
class Settings:
    """Settings of this experiment.

    Attributes:
        steps: Training steps.
        segment: Tokens of a segment.
        memories: Lengths of the memory that are compared.
        layers: Layers of the model.
        dim: Width of the model.
        rows: Parts of the validation text that are read side by side, each from every place of a segment.
        characters: Characters of the training text.
    """

    steps: int = 350
    segment: int = 16
    memories: tuple[int, ...] = (0, 8, 16, 32, 64, 128)
    layers: int = 2
    dim: int = 96
    rows: int = 8
    characters: int = 400_000


def shift_streams(stream: Tensor, rows: int, segment: int) -> Tensor:
    """Cut a stream of tokens into parts, and begin each at every place of a segment, so that the same tokens stand at
    all places: (rows · segment, length)."""
    part = len(stream) // rows
    length = min(12 * segment + 1, part - segment)
    starts = [row * part + shift for row in range(rows) for shift in range(segment)]
    return torch.stack([stream[low : low + length] for low in starts])


@torch.no_grad()
def measure_losses(former: Former, tokens: Tensor, segment: int, memory: int) -> Tensor:
    """Measure the loss by the place in its segment (segment,), over streams (rows, length) that are read segment by
    segment; nothing is carried on without a memory. The first segment, which has no past, does not count."""
    rows, state = tokens.shape[0], SegmentMemory(tokens.shape[0], memory) if memory else None
    losses = []
    for low in range(0, tokens.shape[1] - segment, segment):
        ids, labels = tokens[:, low : low + segment], tokens[:, low + 1 : low + segment + 1]
        hidden = former.model(Batch.from_padded(ids), **({} if state is None else {"memory": state}))
        losses.append(
            F.cross_entropy(former.model.logits(hidden), labels.flatten(), reduction="none").view(rows, segment)
        )
    return torch.stack(losses[1:]).mean((0, 1))


@torch.no_grad()
def measure_reach(former: Former, tokens: Tensor, segment: int, memory: int) -> list[tuple[float, float]]:
    """Change the first token of a stream (1, length) and measure how much the hidden states after it change."""
    changed = tokens.clone()
    changed[0, 0] = (tokens[0, 0] + 7) % former.config.vocab
    outputs = []
    for ids in (tokens, changed):
        state = SegmentMemory(1, memory) if memory else None
        parts = [
            former.model(Batch.from_padded(ids[:, low : low + segment]), **({} if state is None else {"memory": state}))
            for low in range(0, ids.shape[1] - segment + 1, segment)
        ]
        outputs.append(torch.cat(parts))
    change = (outputs[0] - outputs[1]).norm(dim=-1) / outputs[0].norm(dim=-1)
    return [(float(i), float(value)) for i, value in enumerate(change)]


def run(page: Page, settings: Settings) -> dict[str, float]:
    """Train a small Transformer-XL, and read validation text with memories of several lengths."""
    local, s = page.localise, settings
    if s.segment < MIN_SEGMENT:
        what = f"--segment must be at least {MIN_SEGMENT}, got {s.segment}"
        raise Error(what, fix="leave --segment out for the default")
    data = prepare_corpus(page, "gpt2", max_characters=s.characters)  # pieces: words would mostly be unknown here
    assert data.valid_store is not None
    sizes = {
        "dim": s.dim,
        "embed": s.dim,
        "heads": 4,
        "head_dim": s.dim // 4,
        "ff": 4 * s.dim,
        "layers": s.layers,
        "memory": 2 * s.segment,
        "same_length": False,
    }
    stream = torch.as_tensor(np.asarray(data.valid_store.tokens).astype(np.int64))
    needed = 3 * s.segment + 1  # the shift, a first segment, which does not count, and another
    if len(stream) < needed:
        what = f"the validation text has {len(stream)} tokens, and {needed} are needed"
        raise Error(what, fix="give a longer file, or a smaller --segment")
    tokens = shift_streams(stream, min(s.rows, len(stream) // needed), s.segment)
    trained_model = train_small(page, "transformer_xl", data, s.steps, model=sizes, train={"seq_length": s.segment})
    by_place = {m: measure_losses(trained_model.former, tokens, s.segment, m) for m in s.memories}
    reach = {
        m: measure_reach(trained_model.former, tokens[:1, : 10 * s.segment], s.segment, m)
        for m in (0, s.segment, 2 * s.segment)
    }

    def find_reach(line: list[tuple[float, float]]) -> int:
        return max((int(x) for x, y in line if y > 1e-6), default=0)

    first = max(1, s.segment // 8)
    page.add_note(local(f"One Transformer-XL of {s.layers} layers is trained, with segments of {s.segment} tokens and a memory of {2 * s.segment}; "
                        "no separate model is trained for memory 0 or any other length, only the memory of this one is changed when it reads.",
                        f"레이어 {s.layers}개의 Transformer-XL 하나를 토큰 {s.segment}개짜리 세그먼트와 길이 {2 * s.segment}의 메모리로 학습합니다. "
                        "메모리 0이나 다른 길이를 위한 모델을 따로 학습하지 않으며, 읽을 때 이 모델의 메모리 길이만 바꿉니다."), shown=True)  # fmt: skip
    rows = [(m, float(v.mean()), float(v[:first].mean()), float(v[-first:].mean())) for m, v in by_place.items()]
    head = (
        local("memory", "메모리"),
        local("loss", "손실"),
        local(f"first {first} of {s.segment} tokens", f"세그먼트의 토큰 {s.segment}개 중 앞 {first}개"),
        local(f"last {first} tokens", f"뒤 {first}개"),
    )
    page.add_table(local("Loss on validation text", "검증 텍스트의 손실"), head, rows)
    page.add_table(
        local("Reach of one changed token", "바꾼 토큰 하나의 도달 거리"),
        (local("memory", "메모리"), local("tokens", "토큰")),
        [(m, find_reach(line)) for m, line in reach.items()],
    )
    named = {
        f"{local('memory', '메모리')} {m}": [(i + 1, float(x)) for i, x in enumerate(v)]
        for m, v in reversed(by_place.items())  # the first name stands lowest
    }
    page.add_picture(
        draw_curves(
            named,
            local("loss by the place in the segment", "세그먼트 내 위치별 손실"),
            local("place", "위치"),
            local("loss", "손실"),
        )
    )
    page.add_picture(
        draw_curves(
            {local("loss", "손실"): [(float(m), float(v.mean())) for m, v in by_place.items()]},
            local("loss by the length of the memory", "메모리 길이별 손실"),
            local("memory", "메모리"),
            local("loss", "손실"),
        )
    )
    far = {  # all lengths, so that each has the colour that it has above
        f"{local('memory', '메모리')} {m}": [(x, max(y, 1e-9)) for x, y in reach.get(m, [])]
        for m in dict.fromkeys((*reversed(s.memories), *reach))
    }
    page.add_picture(
        draw_curves(
            far,
            local(
                "relative change of the output by the distance from a changed token (10⁻⁹: none)",
                "바꾼 토큰과의 거리별 출력의 상대 변화량(10⁻⁹: 변화 없음)",
            ),
            local("distance in tokens", "거리(토큰)"),
            local("change", "변화량"),
            log_y=True,
        )
    )
    return {"fragmented": rows[0][1], "carried": rows[-1][1], "start": rows[0][2], "start_carried": rows[-1][2],
            **{f"reach {m}": float(find_reach(line)) for m, line in reach.items()}}  # fmt: skip
