"""The candidates of a draft: the ids of the torch form, in its order, and log p up to the sum's last bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decoding import tree as reference
from harness.kernels.candidates import candidates

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def draw(seed: int, shape: tuple[int, ...], dtype: torch.dtype, kind: str) -> torch.Tensor:
    """Kinds: plain, ties (a grid of few values), same (one value), clustered (the best in one corner), sorted (falling),
    gone (half of it -inf), sure (one logit far above), negative_zero (ties of 0.0 and -0.0)."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=generator) * 4
    if kind == "ties":
        logits = logits.round()
    if kind == "same":
        logits = torch.full(shape, 1.5)
    if kind == "clustered":
        logits[..., : shape[-1] // 9] += 20
    if kind == "sorted":
        logits = logits.sort(-1, descending=True).values
    if kind == "gone":
        logits[torch.rand(shape, generator=generator) < 0.5] = float("-inf")
        logits[..., 0] = 0.0
    if kind == "sure":
        logits[..., shape[-1] // 2] = 300.0
    if kind == "negative_zero":
        logits = torch.where(logits > 0, 0.0, -0.0)
    return logits.to(dtype)


KINDS = ("plain", "ties", "same", "clustered", "sorted", "gone", "sure", "negative_zero")


def compare(logits: torch.Tensor, k: int) -> None:
    """Ids as in torch. log p beside float64: torch's own float32 sum is off by 1e-5 over a large vocabulary on a CPU."""
    logp, ids = candidates(logits, k)
    assert (logp.dtype, ids.dtype) == (torch.float32, torch.int64)
    assert torch.equal(ids, reference.candidates(logits, k)[1])
    want = logits.double().log_softmax(-1).gather(-1, ids)
    torch.testing.assert_close(logp, want.float(), rtol=2e-7, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("vocab", "k"), [(4099, 33), (40, 40), (9, 20)])
def test_equals_torch(device, vocab, k, dtype, kind):
    compare(draw(1, (2, 1, vocab), dtype, kind).to(device), k)


def test_largest_k(device):
    compare(draw(2, (1, 1, 5001), torch.bfloat16, "ties").to(device), 1024)


def test_a_large_vocabulary(device):
    compare(draw(3, (1, 1, 49152), torch.bfloat16, "plain").to(device), 255)


def test_rows_may_have_strides(device):
    logits = draw(4, (2, 4, 3000), torch.bfloat16, "ties").to(device)
    compare(logits[:, 1:], 20)
    compare(logits[..., ::2], 20)


@settings(max_examples=15, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(1, 6000),
    k=st.integers(1, 80),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(KINDS),
)
def test_equals_torch_everywhere(device, seed, vocab, k, dtype, kind):
    compare(draw(seed, (1, 2, vocab), dtype, kind).to(device), k)


def test_equal_log_p_of_different_logits_are_ties(device):
    """Logits that differ less than log p can show: the lower id goes first though its logit is the smaller one."""
    logits = torch.full((1, 1, 3000), -20.0, device=device)
    logits[..., 10], logits[..., 20], logits[..., 30] = 1e-9, 2e-9, 5.0
    compare(logits, 3)
    assert candidates(logits, 3)[1].tolist() == [[[30, 10, 20]]]


def test_an_order_without_ties_by_id_is_seen(device):
    """Negative control: highest id first among ties is not what the test accepts."""
    logits = draw(6, (1, 1, 3000), torch.bfloat16, "ties").to(device)
    _, ids = candidates(logits, 30)
    flipped = logits.shape[-1] - 1 - candidates(logits.flip(-1), 30)[1]
    assert torch.equal(logits.float().gather(-1, flipped), logits.float().gather(-1, ids))
    assert not torch.equal(flipped, reference.candidates(logits, 30)[1])
