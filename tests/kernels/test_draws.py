"""The coupled draw's kernel against the decoding reference and against noise written in plain Python.

The chi-square test has a fixed seed and fails at p < 1e-5.
"""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from harness.decoding import noise
from harness.decoding.noise import GUMBEL, gumbel, stream_key
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.decoding.tree import root_only
from harness.decoding.verify import coupled_at_once
from harness.kernels.draws import draw_coupled, draw_partials, taken_tokens

# Infinities that the kernel sorts out by itself make NumPy warn inside the interpreter.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def reference(logits, temperature, stream, index, depth):
    """Node by node through `coupled_at_once`, as a root whose place in the output is that of the node."""
    batch, nodes, vocab = logits.shape
    params = [SamplingParams(float(t), stream=int(s)) for t, s in zip(temperature, stream, strict=True)]
    repeated = [p for p in params for _ in range(nodes)]
    root = root_only(torch.zeros(batch * nodes, dtype=torch.int64, device=logits.device))
    sampling = sampling_batch(repeated, logits.device)
    place = (index[:, None] + depth).reshape(-1)
    return coupled_at_once(root, logits.reshape(-1, 1, vocab), sampling, place).bonus_B.reshape(batch, nodes)


def case(device, batch, nodes, vocab, temperatures, dtype=torch.float32, seed=0, scale=3.0):
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randn(batch, nodes, vocab, generator=generator) * scale).to(dtype)
    temperature = torch.tensor([temperatures[b % len(temperatures)] for b in range(batch)], dtype=torch.float64)
    stream = torch.tensor([stream_key(seed, "t", str(b), 0) for b in range(batch)])
    index = torch.randint(-1, 5000, (batch,), generator=generator)
    depth = torch.randint(0, max(nodes // 2, 1), (batch, nodes), generator=generator)
    depth[:, 0] = 0
    return [x.to(device) for x in (logits, temperature, stream, index, depth)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("temperatures", [[1.0], [0.0], [0.6, 0.0, 1.5]], ids=["T=1", "T=0", "mixed"])
def test_equals_the_reference(device, dtype, temperatures):
    for batch, nodes, vocab in ((1, 1, 7), (3, 6, 1030), (2, 9, 3001)):
        arguments = case(device, batch, nodes, vocab, temperatures, dtype)
        taken = draw_coupled(*arguments)
        assert taken.dtype == torch.int64
        assert torch.equal(taken, reference(*arguments)), (batch, nodes, vocab)


@pytest.mark.parametrize(("vocab", "chunk", "rows"), [(250_003, 16384, 2), (5003, 256, 4), (5003, 4096, 1)])
def test_a_large_vocabulary_and_other_block_sizes(device, vocab, chunk, rows):
    arguments = case(device, 1, 3, vocab, [0.8])
    partials = draw_partials(*arguments, torch.tensor([3], device=device), chunk=chunk, rows=rows)
    assert partials.score_BNC.shape == (1, 3, math.ceil(vocab / chunk))
    assert torch.equal(taken_tokens(partials), reference(*arguments))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_equal_scores_take_the_lowest_id(device, temperature):
    """At T = 0 across chunks and within one; with noise the tie is made of -inf everywhere."""
    logits, *rest = case(device, 2, 3, 2500, [temperature])
    if temperature == 0:
        logits[0, 0, [2400, 1500, 1400]] = 50.0
        logits[0, 1, [20, 10]] = 50.0
        logits[1, 2, :] = 1.0
        taken = draw_coupled(logits, *rest)
        assert (taken[0, 0], taken[0, 1], taken[1, 2]) == (1400, 10, 0)
    else:
        logits[:] = -math.inf
        assert (draw_coupled(logits, *rest) == 0).all()
        logits[..., 77] = -5.0  # one token left: no noise beats -inf
        assert (draw_coupled(logits, *rest) == 77).all()


def test_near_ties_are_decided_by_exact_scores(device):
    """Scores that the cheap bound cannot tell apart: a few float32 steps, or nothing, between the two best of a chunk."""
    vocab, ids = 700, (600, 40)
    logits, temperature, stream, index, depth = case(device, 1, 9, vocab, [1.0])
    depth[0] = torch.arange(9, device=device)
    noise = gumbel(stream[:, None], index[:, None] + 1 + depth, vocab)[0]
    for node in range(9):
        for id, gap in zip(ids, (0.0, (node - 4) * 4e-6), strict=True):
            logits[0, node, id] = 30 + gap - noise[node, id]
    taken = draw_coupled(logits, temperature, stream, index, depth)
    assert taken[0, [0, 1, 2, 6, 7, 8]].tolist() == [600] * 3 + [40] * 3
    assert set(taken[0, 3:6].tolist()) <= set(ids)  # here the last places of two logarithms decide


@pytest.mark.parametrize("temperature", [1e-5, 1e-3, 0.05, 1e4])
def test_far_temperatures(device, temperature):
    """Noise below the float32 step of logits / T: exact ties, lowest id. And noise that decides alone."""
    logits, *rest = case(device, 2, 5, 3000, [temperature])
    for few in (logits, (logits / 3).round() * 500):
        assert torch.equal(draw_coupled(few, *rest), reference(few, *rest))


def test_infinite_logits(device):
    logits, *rest = case(device, 1, 3, 1500, [0.8])
    logits[0, 0, 1234] = math.inf
    logits[0, 1, [1300, 900]] = math.inf
    logits[0, 2, :1499] = -math.inf
    assert draw_coupled(logits, *rest).tolist() == [[1234, 900, 1499]]


def test_nan_never_leaves_the_vocabulary(device):
    logits, *rest = case(device, 1, 2, 1500, [1.0])
    logits[:] = math.nan
    taken = draw_coupled(logits, *rest)
    assert ((taken >= 0) & (taken < 1500)).all()


def test_padding_is_not_computed(device):
    arguments = case(device, 2, 9, 1100, [1.0])
    count = torch.tensor([9, 3], device=device)
    arguments[0][1, 3:] = math.nan
    taken = draw_coupled(*arguments, count)
    assert torch.equal(taken[0], reference(*arguments)[0])
    assert torch.equal(taken[1, :3], reference(*arguments)[1, :3])
    assert (taken[1, 3:] == 0).all()


def noise_in_plain_python(stream, index, token):
    """float64 from Python integers: shares no code with either side."""

    def mix64(x):
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
        return x ^ x >> 31

    key = mix64(mix64((mix64(stream) + index) % 2**64) ^ (GUMBEL % 2**64))
    x = mix64(token) % 2**32 ^ key % 2**32
    x = x * (-0x7A143595 % 2**32) % 2**32
    x = (x ^ x >> 15) ^ key >> 32
    x = x * (-0x3D4D51CB % 2**32) % 2**32
    x ^= x >> 16
    x = x * 0x27D4EB2F % 2**32
    x = (x ^ x >> 15) % 2**31
    return -math.log(-math.log1p(-(x + 0.5) / 2**31))


def test_the_noise_is_that_of_the_integers(device):
    """Every id alone in its chunk: the partial score is its noise, seen whole, against float64 of the same integers."""
    vocab, stream, index = 64, 2**62 + 12345, 17
    logits = torch.zeros(1, 2, vocab, device=device)
    depth = torch.tensor([[0, 3]], device=device)
    scalars = [torch.tensor([x], device=device) for x in (1.0, stream, index)]
    partials = draw_partials(logits, *scalars, depth, torch.tensor([2], device=device), chunk=1)
    assert partials.id_BNC[0, 0].tolist() == list(range(vocab))
    for node, place in ((0, index + 1), (1, index + 4)):
        got = partials.score_BNC[0, node].double().cpu().numpy()
        expected = np.array([noise_in_plain_python(stream, place, token) for token in range(vocab)])
        winners = expected > -1.5  # u > 0.01: below, float32 knows 1 - w to few places, here and in the reference
        np.testing.assert_allclose(got[winners], expected[winners], rtol=3e-7, atol=6e-7)
        drawn = gumbel(torch.tensor(stream), torch.tensor(place), vocab)
        np.testing.assert_allclose(got, drawn, rtol=3e-7, atol=6e-7)


def test_another_index_stream_or_depth_gives_other_noise(device):
    """Negative control: the comparison above would see a wrong counter."""
    logits, temperature, stream, index, depth = case(device, 2, 4, 1500, [1.0], scale=0.5)
    expected = reference(logits, temperature, stream, index, depth)
    assert not torch.equal(draw_coupled(logits, temperature, stream + 1, index, depth), expected)
    assert not torch.equal(draw_coupled(logits, temperature, stream, index + 1, depth), expected)
    assert not torch.equal(draw_coupled(logits, temperature, stream, index, depth + 1), expected)
    assert not torch.equal(draw_coupled(logits, temperature * 1.5, stream, index, depth), expected)


def test_a_row_is_drawn_alike_alone_and_in_a_batch(device):
    arguments = case(device, 4, 3, 1500, [1.0, 0.0, 0.3, 2.0], torch.bfloat16)
    together = draw_coupled(*arguments)
    for b in range(4):
        assert torch.equal(draw_coupled(*(x[b : b + 1] for x in arguments))[0], together[b])
        for node in range(3):
            one = [x[b : b + 1] for x in arguments]
            one[0], one[4] = one[0][:, node : node + 1], one[4][:, node : node + 1]
            assert draw_coupled(*one)[0, 0] == together[b, node]


def p_value(taken, law):
    return stats.chisquare(np.bincount(taken.flatten().cpu().numpy(), minlength=len(law)), law * taken.numel()).pvalue


def test_draws_follow_the_softmax(device):
    """20,000 draws of 12 tokens at T = 0.7: p >= 1e-5; a temperature that is 10 % off must fail."""
    generator = torch.Generator().manual_seed(3)
    row = torch.randn(12, generator=generator) * 1.5
    nodes = 20_000
    logits = row.to(device).expand(1, nodes, 12).contiguous()
    depth = torch.arange(nodes, device=device)[None]
    stream, index = (torch.tensor([x], device=device) for x in (noise.stream_key(1, "chi", "0", 0), 0))
    count = torch.tensor([nodes], device=device)

    def draw(temperature):
        scalars = torch.tensor([temperature], device=device), stream, index
        return taken_tokens(draw_partials(logits, *scalars, depth, count, chunk=16, rows=1024))

    law = torch.softmax(row.double() / 0.7, -1).numpy()
    assert p_value(draw(0.7), law) > 1e-5
    assert p_value(draw(0.77), law) < 1e-5
