"""Two of the verifiers of `harness.decoding.verify` by kernels, a few launches each; with a filter on, or for float64, by
torch. Nothing is asked of the device.

Shapes: B batch, N nodes with the root, V vocabulary, C chunks of it.
"""

import torch
from torch import Tensor

from harness.decoding import verify
from harness.decoding.sampling import SamplingBatch
from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified, accept_by_kernel, coupled_at_once, follow
from harness.kernels.draws import draw_coupled
from harness.kernels.probabilities import kernel_coins, softmax_and_positive


def verify_coupled(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
    """Draws of all nodes in one launch. They may differ from torch's where two scores are a last place apart."""
    if not serves(logits_BNV, sampling):
        return coupled_at_once(tree, logits_BNV, sampling, index_B)
    by_row = sampling.temperature_B, sampling.stream_B, index_B
    return follow(tree, draw_coupled(logits_BNV, *by_row, tree.depth_BN, tree.count_B))


def verify_kernel(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, index_B: Tensor) -> Verified:
    """Probabilities and coins by kernels of ours, then sgl-kernel's own."""
    if not serves(logits_BNV, sampling):
        return verify.verify_kernel(tree, logits_BNV, sampling, index_B)
    target_BNV, positive_BNC = softmax_and_positive(logits_BNV, sampling.temperature_B)
    coins = kernel_coins(tree, target_BNV, positive_BNC, sampling.stream_B, index_B)
    return accept_by_kernel(tree, target_BNV, *coins, torch.zeros_like(target_BNV))


def serves(logits: Tensor, sampling: SamplingBatch) -> bool:
    return not (sampling.any_top_k or sampling.any_top_p or sampling.any_min_p or logits.dtype == torch.float64)
