"""Verifier `kernel` in a captured round: probabilities and coins from two kernels of ours, then sgl-kernel's own."""

import torch
from torch import Tensor

from harness.decoding.round import RoundState
from harness.decoding.sampling import SamplingBatch
from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified, accept_by_kernel, verify_kernel
from harness.kernels.finish import finish
from harness.kernels.probabilities import kernel_coins, softmax_and_positive


def sample_kernel(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, state: RoundState) -> Verified:
    """The `Sampler` of verifier `kernel`. With a filter on, or float64 logits, torch makes the probabilities."""
    if sampling.any_top_k or sampling.any_top_p or sampling.any_min_p or logits_BNV.dtype == torch.float64:
        verified = verify_kernel(tree, logits_BNV, sampling, state.index_B)
    else:
        target_BNV, positive_BNC = softmax_and_positive(logits_BNV, sampling.temperature_B)
        coins = kernel_coins(tree, target_BNV, positive_BNC, sampling.stream_B, state.index_B)
        verified = accept_by_kernel(tree, target_BNV, *coins, torch.zeros_like(target_BNV))
    finish(tree, verified, state)
    return verified
