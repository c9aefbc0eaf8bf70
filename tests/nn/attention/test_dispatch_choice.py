"""Which kernel is chosen, and what it does on a GPU as far as a CPU can tell: the call of the packed kernel."""

from __future__ import annotations

import pytest
import torch
import torch.utils._triton

from formers.nn import gpu_support
from formers.nn.attention import dispatch
from formers.nn.attention.context import AttentionContext
from formers.nn.attention.dispatch import AttentionCall, attend, force_kernel
from formers.nn.attention.masks import WindowMask, causal, combine_masks
from tests.nn import reference
from tests.nn.packing import make_layout


def run_documented_flash(
    q, k, v, q_starts, k_starts, q_longest, k_longest, dropout, is_causal, debug, *, scale, **window
):
    """torch's packed kernel as documented: `window_size_left` keys back and `_right` ahead, -1 for all."""
    assert q_longest == q_starts.diff().max()
    assert k_longest == k_starts.diff().max()
    assert (dropout, is_causal, debug) == (0.0, False, False)
    left, right = window["window_size_left"], window["window_size_right"]

    def see(h, i, j):
        return (left < 0 or i - j <= left) and (right < 0 or j - i <= right)

    return reference.attend(q, k, v, q_starts.tolist(), k_starts.tolist(), scale, see)


@pytest.mark.parametrize("scale", [0.25, 0.7])
@pytest.mark.parametrize(
    "mask", [None, causal, combine_masks(causal, WindowMask(2))], ids=["nothing", "causal", "window"]
)
def test_the_packed_kernel_is_asked_for_the_same_as_the_dense_path(mask, scale, monkeypatch):
    monkeypatch.setattr(torch.ops.aten, "_flash_attention_forward", run_documented_flash)
    mine, theirs = make_layout([4, 1, 6]), make_layout([3, 2, 7])
    q, k, v = torch.randn(11, 2, 16), torch.randn(12, 2, 16), torch.randn(12, 2, 16)
    for attn_context, keys in (
        (AttentionContext(mine, mask=mask), 11),
        *([(AttentionContext(mine, theirs), 12)] if mask is None else []),
    ):
        with force_kernel("dense"):
            want = attend(q, k[:keys], v[:keys], attn_context, scale)
        with force_kernel("varlen"):
            got = attend(q, k[:keys], v[:keys], attn_context, scale)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("there", "capability", "modern"), [
    (False, (9, 0), False), (True, (7, 5), False), (True, (8, 0), True), (True, (8, 6), True), (True, (9, 0), True),
])  # fmt: skip
def test_flash_kernels_start_with_ampere(there, capability, modern, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert gpu_support.is_ampere_or_newer() is modern
    assert gpu_support.is_hopper() is (there and capability == (9, 0))


def test_widths_of_a_head_that_the_kernels_take(monkeypatch):
    """Flash: multiples of 8 up to 256. FlexAttention: powers of two from 16."""
    monkeypatch.setattr(dispatch, "is_ampere_or_newer", lambda: True)
    monkeypatch.setattr(dispatch, "has_triton", lambda: True)
    heads = {width: torch.empty(5, 3, width, dtype=torch.float16, device="meta") for width in range(1, 300)}
    assert [width for width, q in heads.items() if dispatch._supports_flash(q)] == list(range(8, 257, 8))
    assert [width for width, q in heads.items() if dispatch._supports_flex(q)] == [16, 32, 64, 128, 256]


@pytest.mark.parametrize("there", [True, False])
def test_triton_is_asked_for(there, monkeypatch):
    monkeypatch.setattr(torch.utils._triton, "has_triton", lambda: there)
    assert gpu_support.has_triton() is there


def test_a_grid_has_no_padding_only_if_both_sides_have_none():
    even, ragged = make_layout([3, 3]), make_layout([2, 4])
    assert AttentionContext(even).is_uniform
    assert AttentionContext(even, make_layout([5, 5])).is_uniform
    assert not AttentionContext(ragged).is_uniform
    assert not AttentionContext(even, ragged).is_uniform
    assert not AttentionContext(ragged, even).is_uniform


def test_little_padding_is_cheaper_than_a_loop():
    def path(lengths):
        q = torch.zeros(sum(lengths), 2, 8)
        return dispatch.choose_kernel(AttentionCall(q, q, q, AttentionContext(make_layout(lengths)), 1.0))

    assert path([5, 5, 3, 3]) == "dense"  # a quarter more places than tokens
    assert path([5, 5, 3, 2]) == "by_length"


@pytest.mark.parametrize("path", ["by_length", "varlen", "flex"])
def test_the_way_chosen_is_the_way_taken_unless_one_is_forced(path, monkeypatch):
    q, here, answer = torch.randn(6, 2, 8), AttentionContext(make_layout([4, 2])), torch.tensor(7)
    monkeypatch.setattr(dispatch, "choose_kernel", lambda *a: path)
    monkeypatch.setitem(dispatch.KERNELS, path, lambda call: answer)
    assert attend(q, q, q, here, 1.0) is answer
    with force_kernel("dense"):
        assert attend(q, q, q, here, 1.0).shape == (6, 2, 8)


def test_ragged_documents_compile_without_a_break():
    here = make_layout([1, 9, 2])
    q, k, v = (torch.randn(12, 2, 8) for _ in range(3))

    def run(q, k, v):
        return attend(q, k, v, AttentionContext(here, mask=causal), 0.3)

    assert dispatch.choose_kernel(AttentionCall(q, k, v, AttentionContext(here, mask=causal), 0.3)) == "by_length"
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(q, k, v), run(q, k, v))


def test_whole_grids_need_no_dense_mask():
    attn_context, q = AttentionContext(make_layout([4, 4]), mask=causal), torch.randn(8, 2, 8)
    attend(q, q, q, attn_context, 0.3)
    assert not attn_context.forms.dense
