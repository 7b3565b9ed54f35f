"""Top-k in one total order: value falling, then lower id.

`torch.topk` may return any of several tied entries, in any order, and may choose differently on another device. A draft
tree and a top-k filter must not depend on that.

Shapes: V entries ranked, K kept; any leading dimensions.
"""

import torch
from torch import Tensor

_LOW_WORD = 0xFFFFFFFF


def top_sorted(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k greatest entries of the last dimension, value falling, ties by lower id. No NaN expected.

    values: float32 or float64 [..., V], V < 2**32, 1 <= k <= V. Returns (values [..., K], ids int64 [..., K]).

    Never waits for a device: on an accelerator the work is the same whatever the values. On the CPU a plain top-k
    suffices, up to the order of ties, unless a tie crosses the cut.
    """
    size = values.shape[-1]
    if k == size:
        return torch.sort(values, dim=-1, descending=True, stable=True)
    if values.device.type == "cpu":
        top, ids = values.topk(k + 1, dim=-1)
        if not bool((top[..., k - 1] == top[..., k]).any()):
            return _order_ties(top[..., :k], ids[..., :k])
    if values.dtype == torch.float32:
        return _top_by_key(values, k)
    top, ids = torch.sort(values, dim=-1, descending=True, stable=True)
    return top[..., :k], ids[..., :k]


def _order_ties(values: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Put entries in order of id, then stably in order of value."""
    ids, by_id = ids.sort(dim=-1)
    values, by_value = values.gather(-1, by_id).sort(dim=-1, descending=True, stable=True)
    return values, ids.gather(-1, by_value)


def _top_by_key(values: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """One integer key an entry, (value, falling id), all distinct, so that any top-k gives the one answer."""
    size = values.shape[-1]
    bits = (values + 0.0).view(torch.int32)  # + 0.0 turns -0.0 into 0.0: they are equal and must tie
    rising = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(torch.int64)  # orders as the floats do
    falling_id = torch.arange(size - 1, -1, -1, device=values.device)
    key = (rising << 32) | falling_id
    top = key.topk(k, dim=-1).values
    ids = size - 1 - (top & _LOW_WORD)
    return values.gather(-1, ids), ids
