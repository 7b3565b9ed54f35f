"""The counter-based numbers: bits against plain Python integers, intervals at their ends, laws, independence.

Statistical tests have fixed seeds and fail at p < 1e-5: with six of them, a false alarm in 0.006 % of runs.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from harness.decoding import noise
from harness.decoding.noise import DRAW, FINAL_COIN, GUMBEL, gumbel, uniform

MASK = 2**64 - 1
ALARM = 1e-5


def splitmix(x: int) -> int:
    """The published finaliser (Steele, Lea, Flood 2014), in unsigned integers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def key_of(stream: int, index: int, purpose: int) -> int:
    return splitmix(splitmix((splitmix(stream) + index) & MASK) ^ (purpose & MASK))


def w_of(stream: int, index: int, token: int) -> float:
    """What `gumbel` hashes, in unsigned 32-bit integers."""
    key = key_of(stream, index, GUMBEL)
    x = (splitmix(token) & 0xFFFFFFFF) ^ (key & 0xFFFFFFFF)
    for multiplier, shift, then in ((-0x7A143595, 15, key >> 32), (-0x3D4D51CB, 16, 0), (0x27D4EB2F, 15, 0)):
        x = (x * multiplier) & 0xFFFFFFFF
        x ^= x >> shift
        x ^= then
    return ((x & 0x7FFFFFFF) + 0.5) / 2**31


def test_splitmix_is_the_published_one():
    assert [splitmix(0), splitmix(0x9E3779B97F4A7C15)] == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4]


def test_bits_equal_integer_arithmetic():
    streams, indices, purposes = [0, 5, 2**63 - 1], [-1, 0, 1, 4096], [0, 7, FINAL_COIN, DRAW]
    got = uniform(torch.tensor(streams)[:, None, None], torch.tensor(indices)[:, None], torch.tensor(purposes))
    expected = [[[((key_of(s, i, p) >> 40) + 1) / 2**24 for p in purposes] for i in indices] for s in streams]
    assert got.tolist() == expected
    got = gumbel(torch.tensor(streams)[:, None], torch.tensor(indices), 30, torch.float64)
    expected = [[[-math.log(-math.log1p(-w_of(s, i, v))) for v in range(30)] for i in indices] for s in streams]
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize(("bits", "coin"), [(0, 2.0**-24), (-1, 1.0)])
def test_coins_lie_in_the_half_open_interval(monkeypatch, bits, coin):
    """Public report sglang#35771: a coin of 0 accepts what has probability 0."""
    monkeypatch.setattr(noise, "_key", lambda *_: torch.tensor([bits]))
    assert uniform(torch.tensor([0]), torch.tensor([0]), 0).tolist() == [coin]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bits", [0, 0x7FFFFFFF, -1])
def test_gumbel_is_finite_at_both_ends(monkeypatch, bits, dtype):
    """u = 1 would be +inf: a random token whatever the logits."""
    monkeypatch.setattr(noise, "_mix_", lambda x, *_: x.fill_(bits))
    monkeypatch.setattr(noise, "_low_word", torch.zeros_like)
    noise._vocabulary_hash.cache_clear()
    end = gumbel(torch.tensor([0]), torch.tensor([0]), 3, dtype)
    noise._vocabulary_hash.cache_clear()
    assert torch.isfinite(end).all()
    assert float(end[0, 0]) == pytest.approx(22.18 if bits == 0 else -2.81, abs=0.01)


def test_laws():
    coins = uniform(torch.tensor(3), torch.arange(200)[:, None], torch.arange(500)).flatten().numpy()
    assert stats.kstest(coins, "uniform").pvalue > ALARM
    g = gumbel(torch.tensor(3), torch.arange(40), 5000, torch.float64)
    assert stats.kstest(g.flatten().numpy(), "gumbel_r").pvalue > ALARM
    # The winner of equal logits is uniform, over indices and over streams.
    for draws in (
        gumbel(torch.tensor(9), torch.arange(20_000), 16).argmax(-1),
        gumbel(torch.arange(20_000), torch.tensor(9), 16).argmax(-1),
    ):
        assert stats.chisquare(np.bincount(draws.numpy(), minlength=16)).pvalue > ALARM


def test_neighbours_are_independent():
    """Pairs of winners at neighbouring indices, and of quartiles at neighbouring tokens."""
    winners = gumbel(torch.tensor(4), torch.arange(20_001), 4).argmax(-1).numpy()
    pairs = np.bincount(winners[:-1] * 4 + winners[1:], minlength=16)
    assert stats.chisquare(pairs).pvalue > ALARM
    g = gumbel(torch.tensor(4), torch.arange(10), 4001, torch.float64)
    quartile = (torch.exp(-torch.exp(-g)) * 4).long().numpy()
    pairs = np.bincount((quartile[:, :-1] * 4 + quartile[:, 1:]).flatten(), minlength=16)
    assert stats.chisquare(pairs).pvalue > ALARM


def test_noise_is_a_function_of_its_counters_alone():
    streams, indices = torch.tensor([11, 12, 13]), torch.arange(6)
    batch = gumbel(streams[:, None], indices, 40)
    assert torch.equal(gumbel(streams[1:2, None], indices[3:4], 40)[0, 0], batch[1, 3])
    assert len({tuple(row) for row in batch.flatten(0, 1).tolist()}) == 18
    coins = uniform(streams[:, None], indices[:, None, None], torch.arange(4))
    assert len(set(coins.flatten().tolist())) > 70  # of 72; two may meet by chance among 2**24


def test_float32_noise_is_float64_noise_rounded():
    """Losers' noise, where u is near 0, is coarser: w = 1 - u is near 1 there."""
    exact = gumbel(torch.tensor(1), torch.arange(50), 2000, torch.float64)
    error = (gumbel(torch.tensor(1), torch.arange(50), 2000).double() - exact).abs()
    assert float((error / exact.abs().clamp(min=1))[exact > -1.5].max()) < 2e-6
    assert float(error.max()) < 0.05
