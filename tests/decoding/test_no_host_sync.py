"""The batched paths never ask the device for a value and have no data-dependent shape, so a CUDA graph can hold them.

Run on the meta device, whose tensors have shapes but no values: `.item()`, `bool(tensor)` and `nonzero` raise there.
"""

import pytest
import torch

from harness.decoding.layout import from_sibling_layout, to_sibling_layout
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.decoding.tree import candidates, chain, level_wise
from harness.decoding.verify import VERIFIERS

BATCH, DEPTH, VOCAB, BUDGET = 2, 3, 2000, 6
META = torch.device("meta")


@pytest.mark.parametrize("name", ["kernel", "coupled"])
@pytest.mark.parametrize(
    "params",
    [
        [SamplingParams(1.0), SamplingParams(0.0)],
        [SamplingParams(0.6, 5, 0.9, 0.05)] * 2,
        [SamplingParams(0.6, 0, 0.9), SamplingParams(1.0, 3)],
        [SamplingParams(0.0)] * 2,
    ],
    ids=["plain", "filters", "mixed", "greedy"],
)
def test_a_round_runs_without_values(name, params):
    sampling = sampling_batch(params, META)
    root = torch.zeros(BATCH, dtype=torch.int64, device=META)
    logp, ids = candidates(torch.zeros(BATCH, DEPTH, VOCAB, device=META), BUDGET)
    for spine in (False, True):
        draft = level_wise(root, logp, ids, BUDGET, spine)
        assert draft.ancestor_mask_BNN().shape == (BATCH, BUDGET + 1, BUDGET + 1)
        from_sibling_layout(to_sibling_layout(draft))
        logits = torch.zeros(BATCH, BUDGET + 1, VOCAB, device=META)
        got = VERIFIERS[name](draft, logits, sampling, root)
        assert got.path_BW.shape == (BATCH, DEPTH + 1)
        assert got.bonus_B.device == META
    chain(root, ids[..., 0], logp[..., 0])


def test_a_question_to_the_device_would_be_caught():
    """Negative control: `walk` works on the host by design."""
    draft = chain(
        torch.zeros(1, dtype=torch.int64, device=META),
        torch.zeros(1, 2, dtype=torch.int64, device=META),
        torch.zeros(1, 2, device=META),
    )
    logits = torch.zeros(1, 3, VOCAB, device=META)
    with pytest.raises((RuntimeError, NotImplementedError)):
        VERIFIERS["walk"](draft, logits, sampling_batch([SamplingParams()], META), draft.count_B)
