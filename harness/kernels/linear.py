"""Projections of few rows, with what stands before and after them in a layer: one launch instead of three.

Shapes: M rows, K inputs, N outputs. Weights are [N, K], as torch.nn.Linear keeps them.

A decode step is bound by reading weights, so a projection of one row is a sum of products and needs no tensor cores;
what a launch saves (norm, activation, residual) is worth more than the arithmetic. With many rows and a large K, the
vendor's matrix product is faster: `fits` says which to use, by shape alone, so that one setting always computes the
same way.
"""

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor

MOST_ROWS = 64
SMALL_INPUTS = 2048  # above this, only a single row gains


def fits(num_rows: int, num_inputs: int) -> bool:
    """Whether these kernels, rather than the vendor's product, should serve a projection."""
    return num_rows == 1 or (num_rows <= MOST_ROWS and num_inputs <= SMALL_INPUTS)


@dataclass(frozen=True)
class Shape:
    """How a launch cuts its work: outputs a program, inputs a step, warps, stages of the pipeline."""

    outputs: int
    inputs: int
    warps: int
    stages: int


def shape_for(num_rows: int, num_inputs: int, num_outputs: int) -> Shape:
    """What was fastest on an H200 (benchmarks/linear.py), by shape alone."""
    if num_rows == 1:
        return Shape(8 if num_outputs <= 8192 else 16, 512, 4, 4)
    return Shape(16, 64, 4, 4)


def linear(
    x_MK: Tensor,
    weight_NK: Tensor,
    *,
    norm: tuple[Tensor, float] | None = None,
    residual_MN: Tensor | None = None,
    shape: Shape | None = None,
) -> Tensor:
    """norm(x) @ weightᵀ (+ residual, updated in place and returned). norm: weight [K] and eps of an RMS norm."""
    out = x_MK.new_empty(len(x_MK), len(weight_NK)) if residual_MN is None else residual_MN
    _launch(x_MK, weight_NK, out, norm, shape, add=residual_MN is not None, is_gated=False)
    return out


def gated(
    x_MK: Tensor, weight_JK: Tensor, *, norm: tuple[Tensor, float] | None = None, shape: Shape | None = None
) -> Tensor:
    """silu(norm(x) @ gateᵀ) · (norm(x) @ upᵀ), [M, N]; weight_JK holds the N gate rows, then the N up rows."""
    out = x_MK.new_empty(len(x_MK), len(weight_JK) // 2)
    _launch(x_MK, weight_JK, out, norm, shape, add=False, is_gated=True)
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
    num_rows, num_inputs = x.shape
    num_outputs = out.shape[1]
    shape = shape or shape_for(num_rows, num_inputs, num_outputs)
    norm_weight, eps = norm or (x, 0.0)
    rows = 1 if num_rows == 1 else max(16, triton.next_power_of_2(num_rows))
    _linear[(triton.cdiv(num_outputs, shape.outputs),)](
        *(x, weight, out, norm_weight, num_rows, num_inputs, num_outputs, eps),
        ROWS=rows,
        HAS_NORM=norm is not None,
        ADD=add,
        GATED=is_gated,
        BLOCK_N=shape.outputs,
        BLOCK_K=shape.inputs,
        NORM_K=triton.next_power_of_2(num_inputs) if num_rows == 1 else 512,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )


@triton.jit
def _linear(
    x_ptr, weight_ptr, out_ptr, norm_ptr, num_rows, num_inputs, num_outputs, eps,
    ROWS: tl.constexpr, HAS_NORM: tl.constexpr, ADD: tl.constexpr, GATED: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, NORM_K: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = tl.arange(0, ROWS)
    k = tl.arange(0, BLOCK_K)
    real_m = m < num_rows
    real_n = n < num_outputs
    row = x_ptr + m[:, None] * num_inputs
    weight_row = weight_ptr + n.to(tl.int64)[:, None] * num_inputs
    up_row = weight_row + num_outputs.to(tl.int64) * num_inputs if GATED else weight_row
    dtype = x_ptr.dtype.element_ty
    scale = tl.full([ROWS], 1.0, tl.float32)
    if HAS_NORM:
        square = tl.zeros([ROWS], tl.float32)
        wide_k = tl.arange(0, NORM_K)
        for start in range(0, num_inputs, NORM_K):
            inside = start + wide_k < num_inputs
            x = tl.load(row + start + wide_k[None, :], mask=real_m[:, None] & inside[None, :], other=0.0)
            x = x.to(tl.float32)
            square += tl.sum(x * x, axis=1)
        scale = 1.0 / tl.sqrt(square / num_inputs + eps)
    out = tl.zeros([ROWS, BLOCK_N], tl.float32)
    up = tl.zeros([ROWS, BLOCK_N], tl.float32)
    for start in range(0, num_inputs, BLOCK_K):
        inside = start + k < num_inputs
        x = tl.load(row + start + k[None, :], mask=real_m[:, None] & inside[None, :], other=0.0)
        if HAS_NORM:
            gain = tl.load(norm_ptr + start + k, mask=inside, other=0.0).to(tl.float32)
            x = (gain[None, :] * (x.to(tl.float32) * scale[:, None]).to(dtype).to(tl.float32)).to(dtype)
        tile = real_n[:, None] & inside[None, :]
        weight = tl.load(weight_row + start + k[None, :], mask=tile, other=0.0)
        out = _add_product(out, x, weight, ROWS)
        if GATED:
            up = _add_product(up, x, tl.load(up_row + start + k[None, :], mask=tile, other=0.0), ROWS)
    if GATED:
        gate = out.to(dtype).to(tl.float32)
        activated = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
        out = activated * up.to(dtype).to(tl.float32)
    goal = out_ptr + m[:, None] * num_outputs + n[None, :]
    keep = real_m[:, None] & real_n[None, :]
    if ADD:
        out += tl.load(goal, mask=keep, other=0.0).to(tl.float32)
    tl.store(goal, out.to(dtype), mask=keep)


@triton.jit
def _add_product(total, x, weight, ROWS: tl.constexpr):
    """total + x @ weightᵀ; one row without tensor cores."""
    if ROWS == 1:
        return total + tl.sum(x.to(tl.float32) * weight.to(tl.float32), axis=1)[None, :]
    return tl.dot(x, tl.trans(weight), total, input_precision="ieee")
