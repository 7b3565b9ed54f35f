"""Commit of the accepted path in the target's KV pool: its rows move to the front of the window, nothing else does.

Shapes: B requests, N nodes, K longest path (block size). Row j of a path comes from node path[j] >= j, because a parent
stands before its children. So rows moved in rising j never overwrite what a later one reads.
"""

from typing import Any

import torch
from torch import Tensor

from harness.sglang_plugin import compat
from harness.sglang_plugin.options import NAME


class RowMover:
    """Moves rows of every layer's key and value buffers (MHA), or of the latent buffers (MLA)."""

    def __init__(self, pool: Any):
        """Raises ValueError for a pool that keeps scales, pages or indexer rows beside its rows."""
        mha, mla = compat.kv_pool_classes()
        kind: Any = type(pool)
        if kind is mha and not getattr(pool, "use_hnd", False):
            self.buffers = [*pool.k_buffer, *pool.v_buffer]
        elif kind is mla:
            self.buffers = list(pool.kv_buffer)
        else:
            raise ValueError(
                f"{NAME} cannot commit to a {type(pool).__name__}: supported are {mha.__name__} (MHA, GQA) and "
                f"{mla.__name__} (MLA), without paged, FP4 or MXFP8 KV caches"
            )
        device = self.buffers[0].device
        row_bytes = [buffer.stride(0) * buffer.element_size() for buffer in self.buffers]
        if any(size % 4 for size in row_bytes):
            raise ValueError(f"{NAME}: KV rows of {row_bytes} bytes are no whole number of 32-bit words")
        self.words = max(row_bytes) // 4
        self.pointer_L = torch.tensor([buffer.data_ptr() for buffer in self.buffers], device=device)
        self.words_L = torch.tensor([size // 4 for size in row_bytes], device=device)

    def move(self, slots_BN: Tensor, path_BK: Tensor, count_B: Tensor) -> None:
        """slots_BN, path_BK int64 (node ids, any value behind the end); count_B: nodes of the path, root included.

        On CUDA one kernel, which reads count_B itself: the host waits for nothing and only accepted rows travel.
        """
        if slots_BN.is_cuda:
            from harness.sglang_plugin.commit_kernel import move_rows

            move_rows(self.pointer_L, self.words_L, self.words, slots_BN, path_BK, count_B)
            return
        width = path_BK.shape[1]
        moved_BK = (torch.arange(width) < count_B[:, None]) & (path_BK != torch.arange(width))
        source = slots_BN.gather(1, path_BK.clamp(min=0))[moved_BK]
        front = slots_BN[:, :width][moved_BK]
        for buffer in self.buffers:
            buffer[front] = buffer[source]
