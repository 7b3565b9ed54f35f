"""Temperature and filters against an oracle in numpy that works token by token (conftest.py)."""

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from harness.decoding.sampling import SamplingParams, filtered_scores, probabilities, sampling_batch, stream_key

NEG_INF = float("-inf")


@st.composite
def requests(draw):
    batch, nodes, vocab = draw(st.integers(1, 3)), draw(st.integers(1, 2)), draw(st.integers(1, 9))
    values = draw(st.sampled_from([st.integers(-3, 3).map(float), st.floats(-6, 6, width=32)]))
    size = batch * nodes * vocab
    logits = torch.tensor(draw(st.lists(values, min_size=size, max_size=size))).view(batch, nodes, vocab)
    params = [
        SamplingParams(
            temperature=draw(st.sampled_from([0.0, 0.3, 0.6, 1.0, 1.7])),
            top_k=draw(st.sampled_from([0, 1, 2, 5, 50])),
            top_p=draw(st.sampled_from([1.0, 0.91, 0.53, 0.07])),
            min_p=draw(st.sampled_from([0.0, 0.013, 0.21, 1.0])),
        )
        for _ in range(batch)
    ]
    return logits, params


def on_an_edge(logits: np.ndarray, p: SamplingParams, width: float = 1e-5) -> bool:
    """Whether a cut-off falls within rounding of a running sum or of a ratio: either answer is right there."""
    if p.temperature == 0:
        return False
    weight = np.sort(np.exp((logits.astype(float) - logits.max()) / p.temperature))[::-1][: p.top_k or None]
    sums = weight.cumsum() / weight.sum()
    near_p = p.top_p < 1 and bool((abs(sums - p.top_p) < width).any())
    return near_p or (0 < p.min_p < 1 and bool((abs(weight / weight[0] - p.min_p) < width).any()))


@settings(max_examples=400, deadline=None, derandomize=True)
@given(requests())
def test_filters_equal_the_oracle(filter_oracle, case):
    logits, params = case
    assume(not any(on_an_edge(row.numpy(), p) for rows, p in zip(logits, params, strict=True) for row in rows))
    for dtype in (torch.float32, torch.float64):
        sampling = sampling_batch(params)
        scores = filtered_scores(logits.to(dtype), sampling)
        assert scores.dtype == dtype
        assert scores.shape == logits.shape
        got = torch.softmax(scores, -1)
        for b, p in enumerate(params):
            for node in range(logits.shape[1]):
                oracle = filter_oracle(logits[b, node].numpy(), p.temperature, p.top_k, p.top_p, p.min_p)
                np.testing.assert_allclose(got[b, node].numpy(), oracle, atol=2e-6)
                assert ((got[b, node] == 0).numpy() == (oracle == 0)).all()
        flat = filtered_scores(logits[:, 0].to(dtype), sampling)  # [B, V] as well as [B, N, V]
        assert torch.equal(flat, scores[:, 0])


def one(logits: list[float], **params) -> list[float]:
    return probabilities(torch.tensor([logits]), sampling_batch([SamplingParams(**params)]))[0].tolist()


def test_temperature_divides_logits():
    """Public report lattice#388: a verifier with T = 1 in its code."""
    assert one([2.0, 0.0], temperature=0.5) == pytest.approx([1 / (1 + math.exp(-4)), 1 / (1 + math.exp(4))])


def test_first_of_equal_maxima_is_greedy():
    """Public report lattice#280: last-wins argmax in one path."""
    assert one([1.0, 1.0], temperature=0.0) == [1.0, 0.0]


def test_ties_at_a_cut_keep_lower_ids():
    assert one([0.0, 1.0, 1.0, 1.0], top_k=2) == [0.0, 0.5, 0.5, 0.0]
    assert one([0.0] * 4, top_p=0.5) == [0.5, 0.5, 0.0, 0.0]
    assert one([0.0] * 4, top_p=0.51) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])


def test_each_filter_sees_the_renormalised_result_of_the_one_before():
    # 0.4 0.3 0.2 0.1: top-3 renormalises to 0.444 0.333 0.222, so top-p 0.75 stops at two; over all four, at three.
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert one(logits, top_k=3, top_p=0.75) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert one(logits, top_p=0.75) == pytest.approx([4 / 9, 3 / 9, 2 / 9, 0])


@pytest.mark.parametrize("top_p", [0.3, 0.9, 0.999])
@pytest.mark.parametrize("scale", [0.0, 0.01, 4.0])
def test_long_and_short_nuclei_of_a_large_vocabulary(filter_oracle, top_p, scale):
    """The host tries the first 1,024 ranks before it sorts all: flat rows do not fit in there, peaked ones do."""
    logits = (torch.randn(2, 5000, generator=torch.Generator().manual_seed(3)) * scale).round(decimals=2)
    params = [SamplingParams(0.9, 0, top_p), SamplingParams(0.9, 1500, top_p)]
    got = probabilities(logits.double(), sampling_batch(params))
    for row, p, oracle_row in zip(got, params, logits, strict=True):
        oracle = filter_oracle(oracle_row.double().numpy(), 0.9, p.top_k, top_p, 0.0)
        np.testing.assert_array_equal(row.numpy() == 0, oracle == 0)


def test_a_row_is_filtered_alike_in_any_batch():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(4, 2, 50, generator=generator)
    params = [
        SamplingParams(0.7, 5),
        SamplingParams(0.0),
        SamplingParams(1.0, 0, 0.9),
        SamplingParams(1.3, 0, 1.0, 0.1),
    ]
    together = filtered_scores(logits, sampling_batch(params))
    for b, p in enumerate(params):
        assert torch.equal(filtered_scores(logits[b : b + 1], sampling_batch([p]))[0], together[b])


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -1.0),
        ("temperature", math.nan),
        ("temperature", 1e-9),
        ("temperature", math.inf),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", math.nan),
        ("min_p", 1.5),
        ("min_p", math.nan),
    ],
)
def test_values_out_of_range_are_refused_by_key(key, value):
    with pytest.raises(ValueError, match=f"sampling.{key}"):
        sampling_batch([SamplingParams(**{key: value})])


def test_streams_depend_on_seed_task_sample_and_repeat():
    """Public reports vllm#6038 and vllm-recipes#925."""
    keys = {
        stream_key(*case)
        for case in [
            (0, "a", "1", 0),
            (1, "a", "1", 0),
            (0, "b", "1", 0),
            (0, "a", "2", 0),
            (0, "a", "1", 1),
            (0, "a1", "", 0),
        ]
    }
    assert len(keys) == 6
    assert all(0 <= key < 2**63 for key in keys)
    assert stream_key(0, "a", "1", 0) == stream_key(0, "a", "1", 0)
