"""One round's tree and verdict in fixed device buffers: written inside SGLang's CUDA graphs, or by the same code outside.

Shapes: B requests, N nodes with the root, D draft depths, K = D + 1 block size and longest path, V vocabulary.

The draft graph ends with `plant` (marginals -> tree, mask, positions), the target graph with `judge` (logits -> accepted
path and tokens). Between graphs nothing is asked of the device.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified, Verifier
from harness.kernels.choice import searchers
from harness.sglang_plugin.rows import Rows


@dataclass(frozen=True)
class Verdict:
    """path_BK int64, 0 behind the end. token_BK int64: accepted drafts, bonus token, then anything. count_B int32."""

    path_BK: Tensor
    token_BK: Tensor
    count_B: Tensor


class RoundBuffers:
    def __init__(self, capacity: int, num_nodes: int, block_size: int, device: torch.device | str):
        def buffer(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(capacity, *shape, dtype=dtype, device=device)

        self.capacity, self.num_nodes, self.block_size = capacity, num_nodes, block_size
        self.token, self.parent, self.depth = (buffer(num_nodes) for _ in range(3))
        self.score, self.count = buffer(num_nodes, dtype=torch.float32), buffer()
        self.position = buffer(num_nodes)
        self.mask = buffer(num_nodes, num_nodes, dtype=torch.bool)
        self.path, self.out = buffer(block_size), buffer(block_size)
        self.num = buffer(dtype=torch.int32)

    def tree(self, count: int) -> DraftTree:
        """The trees of the first `count` requests, as views."""
        return DraftTree(
            self.token[:count],
            self.parent[:count],
            self.depth[:count],
            self.score[:count],
            self.count[:count],
            depth_limit=self.block_size - 1,
        )

    def put_tree(self, tree: DraftTree, prefix_B: Tensor) -> None:
        """prefix_B: int64 [B], KV length, which is the root's position."""
        count = tree.token_BN.shape[0]
        self.token[:count] = tree.token_BN
        self.parent[:count] = tree.parent_BN
        self.depth[:count] = tree.depth_BN
        self.count[:count] = tree.count_B
        self.position[:count] = tree.depth_BN + prefix_B[:, None]
        self.mask[:count] = tree.ancestor_mask_BNN()

    def put_verdict(self, verified: Verified) -> None:
        path_BK = verified.path_BW
        count = len(path_BK)
        follows_BK = torch.cat([path_BK[:, 1:], path_BK[:, :1]], dim=1).clamp(min=0)
        token_BK = self.token[:count].gather(1, follows_BK)
        self.out[:count] = token_BK.scatter(1, verified.num_accepted_B[:, None], verified.bonus_B[:, None])
        self.path[:count] = path_BK.clamp(min=0)
        self.num[:count] = (verified.num_accepted_B + 1).to(torch.int32)

    def verdict(self, count: int) -> Verdict:
        """Copies: the next round writes the buffers while this one's result is still on its way to the host."""
        return Verdict(self.path[:count].clone(), self.out[:count].clone(), self.num[:count].clone())


def plant(
    buffers: RoundBuffers,
    root_B: Tensor,
    prefix_B: Tensor,
    propose: Callable[[int], tuple[Tensor, Tensor]],
    spine: bool,
) -> None:
    """Grow the batch's trees. propose(k) -> (log p, ids) of the k likeliest tokens a depth, [B, D, k] each."""
    budget = buffers.num_nodes - 1
    logp_BDK, ids_BDK = propose(budget)
    _, search = searchers(logp_BDK, budget)
    tree = search(root_B, logp_BDK, ids_BDK, budget, spine)
    buffers.put_tree(tree, prefix_B.to(torch.int64))


def judge(buffers: RoundBuffers, logits_MV: Tensor, prefix_B: Tensor, rows: Rows, verify: Verifier) -> None:
    """Verify the batch's trees. logits_MV: the target's, M = B·N rows in node order. prefix_B: KV length of the root."""
    count = len(prefix_B)
    logits_BNV = logits_MV.view(count, buffers.num_nodes, -1)
    index_B = prefix_B.to(torch.int64) - rows.prompt_len_B
    buffers.put_verdict(verify(buffers.tree(count), logits_BNV, rows.sampling, index_B))
