"""Verifier `kernel` in a captured round."""

from torch import Tensor

from harness.decoding.round import RoundState
from harness.decoding.sampling import SamplingBatch
from harness.decoding.tree import DraftTree
from harness.decoding.verify import Verified
from harness.kernels.finish import finish
from harness.kernels.verify import verify_kernel


def sample_kernel(tree: DraftTree, logits_BNV: Tensor, sampling: SamplingBatch, state: RoundState) -> Verified:
    """The `Sampler` of verifier `kernel`. With a filter on, or float64 logits, torch makes the probabilities."""
    verified = verify_kernel(tree, logits_BNV, sampling, state.index_B)
    finish(tree, verified, state)
    return verified
