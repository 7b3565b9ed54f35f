"""RMS norm and the gated activation: one launch each, arithmetic in float32, rounded where the reference model rounds.

Shapes: M rows, H hidden size, I intermediate size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def rms_norm(hidden_MH: Tensor, weight_H: Tensor, eps: float) -> Tensor:
    """weight · x / sqrt(mean(x²) + eps), [M, H] in the dtype of `hidden_MH`: rounded before the weight, as in Llama."""
    num_rows, size = hidden_MH.shape
    out_MH = torch.empty_like(hidden_MH)
    block = triton.next_power_of_2(size)
    _rms_norm[(num_rows,)](hidden_MH, weight_H, out_MH, size, eps, BLOCK=block, num_warps=max(1, min(16, block // 512)))
    return out_MH


def silu_mul(gate_up_MJ: Tensor) -> Tensor:
    """silu(first half) · second half, [M, I] from [M, 2·I]; the gate is rounded before the product, as in Llama."""
    num_rows, width = gate_up_MJ.shape
    size = width // 2
    out_MI = gate_up_MJ.new_empty(num_rows, size)
    block = 1024
    _silu_mul[(num_rows, triton.cdiv(size, block))](gate_up_MJ, out_MI, size, BLOCK=block, num_warps=4)
    return out_MI


@triton.jit
def _rms_norm(x_ptr, weight_ptr, out_ptr, size, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < size
    x = tl.load(x_ptr + row * size + column, mask=inside, other=0.0)
    weight = tl.load(weight_ptr + column, mask=inside, other=0.0)
    wide = x.to(tl.float32)
    scale = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) / size + eps)
    normed = (wide * scale).to(x.dtype)
    tl.store(out_ptr + row * size + column, (weight.to(tl.float32) * normed.to(tl.float32)).to(x.dtype), mask=inside)


@triton.jit
def _silu_mul(x_ptr, out_ptr, size, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < size
    gate = tl.load(x_ptr + row * 2 * size + column, mask=inside, other=0.0)
    up = tl.load(x_ptr + row * 2 * size + size + column, mask=inside, other=0.0)
    wide = gate.to(tl.float32)
    activated = (wide / (1.0 + tl.exp(-wide))).to(gate.dtype)
    tl.store(out_ptr + row * size + column, (activated.to(tl.float32) * up.to(tl.float32)).to(gate.dtype), mask=inside)
