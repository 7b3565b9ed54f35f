"""Projections of a single row, with what stands before and after them in a layer: one launch instead of three.

Shapes: K inputs, N outputs. Weights are [N, K], as torch.nn.Linear keeps them.

A decode step is bound by reading weights, so a projection of one row is a sum of products and needs no tensor cores,
and what a launch saves (norm, activation, residual) is worth more than the arithmetic. From two rows on the vendor's
matrix product is faster (benchmarks/linear.py).
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """How a launch cuts its work: outputs a program, inputs a step, warps."""

    outputs: int
    inputs: int
    warps: int


def shape_for(num_inputs: int, num_outputs: int, *, has_norm: bool, is_gated: bool) -> Shape:
    """What was fastest on an H200 (benchmarks/results/linear), by shape alone: one setting always adds up alike."""
    if num_inputs <= 2048:
        return Shape(2, 2048, 4) if is_gated else Shape(8, 1024, 8)
    if is_gated or num_outputs > 32768:
        return Shape(16, 256, 4)
    return Shape(8, 512, 4) if has_norm else Shape(8, 1024, 8)


def linear(
    x_1K: Tensor,
    weight_NK: Tensor,
    *,
    norm: tuple[Tensor, float] | None = None,
    residual_1N: Tensor | None = None,
    shape: Shape | None = None,
) -> Tensor:
    """norm(x) @ weightᵀ (+ residual, updated in place and returned). norm: weight [K] and eps of an RMS norm."""
    out = x_1K.new_empty(1, len(weight_NK)) if residual_1N is None else residual_1N
    _launch(x_1K, weight_NK, out, norm, shape, add=residual_1N is not None, is_gated=False)
    return out


def gated(
    x_1K: Tensor, weight_JK: Tensor, *, norm: tuple[Tensor, float] | None = None, shape: Shape | None = None
) -> Tensor:
    """silu(norm(x) @ gateᵀ) · (norm(x) @ upᵀ), [1, N]; weight_JK holds the N gate rows, then the N up rows."""
    out = x_1K.new_empty(1, len(weight_JK) // 2)
    _launch(x_1K, weight_JK, out, norm, shape, add=False, is_gated=True)
    return out


def _launch(
    x: Tensor,
    weight: Tensor,
    out: Tensor,
    norm: tuple[Tensor, float] | None,
    shape: Shape | None,
    *,
    add: bool,
    is_gated: bool,
) -> None:
    assert len(x) == 1
    num_inputs, num_outputs = x.shape[1], out.shape[1]
    shape = shape or shape_for(num_inputs, num_outputs, has_norm=norm is not None, is_gated=is_gated)
    norm_weight, eps = norm or (x, 0.0)
    _linear[(triton.cdiv(num_outputs, shape.outputs),)](
        *(x, weight, out, norm_weight, num_inputs, num_outputs, eps),
        HAS_NORM=norm is not None,
        ADD=add,
        GATED=is_gated,
        BLOCK_N=shape.outputs,
        BLOCK_K=shape.inputs,
        WHOLE_K=triton.next_power_of_2(num_inputs),
        num_warps=shape.warps,
    )


@triton.jit
def _linear(
    x_ptr, weight_ptr, out_ptr, norm_ptr, num_inputs, num_outputs, eps,
    HAS_NORM: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, WHOLE_K: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    real_n = n < num_outputs
    weight_row = weight_ptr + n.to(tl.int64)[:, None] * num_inputs
    up_row = weight_row + num_outputs.to(tl.int64) * num_inputs if GATED else weight_row
    dtype = x_ptr.dtype.element_ty
    scale = 1.0
    if HAS_NORM:
        whole = tl.arange(0, WHOLE_K)
        row = tl.load(x_ptr + whole, mask=whole < num_inputs, other=0.0).to(tl.float32)
        scale = 1.0 / tl.sqrt(tl.sum(row * row, axis=0) / num_inputs + eps)
    out = tl.zeros([BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_N], tl.float32)
    for start in range(0, num_inputs, BLOCK_K):
        inside = start + k < num_inputs
        x = tl.load(x_ptr + start + k, mask=inside, other=0.0)
        if HAS_NORM:
            gain = tl.load(norm_ptr + start + k, mask=inside, other=0.0).to(tl.float32)
            x = (gain * (x.to(tl.float32) * scale).to(dtype).to(tl.float32)).to(dtype)
        x = x.to(tl.float32)[None, :]
        tile = real_n[:, None] & inside[None, :]
        weight = tl.load(weight_row + start + k[None, :], mask=tile, other=0.0).to(tl.float32)
        out += tl.sum(x * weight, axis=1)
        if GATED:
            weight = tl.load(up_row + start + k[None, :], mask=tile, other=0.0).to(tl.float32)
            up += tl.sum(x * weight, axis=1)
    if GATED:
        gate = out.to(dtype).to(tl.float32)
        activated = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        out = activated * up.to(dtype).to(tl.float32)
    if ADD:
        out += tl.load(out_ptr + n, mask=real_n, other=0.0).to(tl.float32)
    tl.store(out_ptr + n, out.to(dtype), mask=real_n)
