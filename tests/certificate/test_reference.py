"""The reference law against a token-by-token oracle, and the statistics against draws whose law is known.

Seeds are fixed. A correct system fails one of the statistical tests below with probability 1e-8 at most each.
"""

import numpy as np
import pytest

from harness.certificate.equality import near_cut
from harness.certificate.line import LEVEL, SEEN_FOR_SURE, exact_line, z_line
from harness.certificate.reference import Filters, Law
from harness.certificate.tally import Tally

RANDOM = np.random.default_rng(3)
CASES = [
    Filters(1.0),
    Filters(0.3),
    Filters(0.0),
    Filters(0.7, top_k=4),
    Filters(1.3, top_p=0.8),
    Filters(1.0, min_p=0.1),
]
CASES.append(Filters(0.9, 7, 0.85, 0.03))


def oracle(logits: np.ndarray, f: Filters) -> np.ndarray:
    """One token at a time, in plain Python."""
    ids = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    if f.temperature == 0:
        return np.eye(len(logits))[ids[0]]
    weight = {i: np.exp((logits[i] - max(logits)) / f.temperature) for i in ids}
    ids = ids[: f.top_k or None]
    total, mass, kept = sum(weight[i] for i in ids), 0.0, []
    for i in ids:
        if f.top_p < 1 and mass >= f.top_p * total:
            break
        kept.append(i)
        mass += weight[i]
    kept = [i for i in kept if weight[i] >= f.min_p * weight[kept[0]]]
    total = sum(weight[i] for i in kept)
    return np.array([weight[i] / total if i in kept else 0.0 for i in range(len(logits))])


@pytest.mark.parametrize("filters", CASES, ids=str)
@pytest.mark.parametrize("ties", [False, True])
def test_the_law_is_that_of_the_oracle(filters, ties):
    for _ in range(20):
        logits = RANDOM.normal(size=13) * 2
        logits = np.round(logits) if ties else logits
        law = Law(logits, filters)
        expected = oracle(logits, filters)
        np.testing.assert_allclose(law.p_V, expected, atol=1e-12)
        has = expected > 0
        logp = np.log(expected[has])
        assert law.mean == pytest.approx(expected[has] @ logp, abs=1e-12)
        assert law.variance == pytest.approx(expected[has] @ (logp - law.mean) ** 2, abs=1e-9)
        assert law.repeats == pytest.approx((expected**2).sum())


def test_children_come_first_in_the_transform():
    law = Law(np.log([0.1, 0.4, 0.2, 0.3]), Filters(1.0))
    np.testing.assert_allclose(law.mass_before_V([2, 0, 2]), [0.2, 0.3, 0.0, 0.7])  # 2, 0, then 1, 3


def tally_of(law: Law, p_V: np.ndarray, draws: int) -> dict[str, float]:
    tally = Tally(0)
    tally.add(law, law.mass_before_V([5, 3]), RANDOM.choice(len(p_V), size=draws, p=p_V))
    return {line.name.split(": ")[1]: line.p_value for line in tally.lines("x", 0.0) if line.p_value is not None}


def test_draws_from_the_law_pass_and_a_temperature_error_of_the_stated_size_does_not():
    logits = RANDOM.normal(size=50) * 2
    law = Law(logits, Filters(1.0))
    draws = int(1.1 * (SEEN_FOR_SURE / 0.05) ** 2 / law.variance)
    assert min(tally_of(law, law.p_V, draws).values()) > LEVEL
    for off in (1.05, 0.95):
        assert tally_of(law, Law(logits, Filters(off)).p_V, draws)["log p"] < LEVEL


def test_the_transform_sees_what_log_p_cannot():
    """Two tokens of equal probability, one of them a child: favouring it leaves log p as it is."""
    law = Law(np.zeros(8), Filters(1.0))
    p = np.full(8, 1 / 8)
    p[[5, 0]] += [0.1, -0.1]
    assert tally_of(law, p, 5000)["integral transform uniform"] < LEVEL if law.variance > 1e-12 else True
    law = Law(np.array([0.0, 1, 2, 0, 0, 0, 0, 0]), Filters(1.0))
    q = law.p_V.copy()
    q[[5, 0]] += [0.04, -0.04]
    found = tally_of(law, q, 20_000)
    assert found["log p"] > LEVEL
    assert found["integral transform uniform"] < LEVEL


def test_an_impossible_token_fails_and_one_at_the_cut_does_not():
    logits = np.log([0.5, 0.3, 0.2])
    for top_p, impossible in ((0.6, 1), (0.8 - 1e-9, 0)):  # 0.8 is where the third token comes in
        law = Law(logits, Filters(1.0, top_p=top_p))
        assert law.p_V[2] == 0
        tally = Tally(0)
        tally.add(law, law.mass_before_V([]), np.array([0, 2]))
        assert tally.impossible == impossible
        assert tally.lines("x", 0.0)[0].passed == (impossible == 0)


def test_not_a_number_never_passes():
    common = dict(part="state", name="x", statistic="s", n=1, unit="rows")
    assert not exact_line(value=float("nan"), tolerance=1.0, **common).passed
    z = dict(part="state", name="x", n=1, unit="rows")
    assert not z_line(total=float("nan"), variance=1.0, **z).passed
    assert not z_line(total=1.0, variance=0.0, **z).passed
    assert z_line(total=0.0, variance=0.0, **z).passed
    assert z_line(total=1.0, variance=0.0, **z).record()["value"] == "inf"


@pytest.mark.parametrize(
    ("filters", "near"),
    [
        (Filters(1.0, top_k=2), {1, 2}),  # 1 and 2 are nearly tied across the cut
        (Filters(1.0, top_k=1), set()),
        (Filters(1.0, min_p=float(np.exp(-3.0))), {3}),
        (Filters(1.0), set()),
    ],
    ids=str,
)
def test_tokens_near_a_cut(filters, near):
    scores = np.array([0.0, -1.0, -1.0005, -3.0, -9.0])
    assert {t for t in range(5) if near_cut(scores, t, filters, 1e-3)} == near


def test_tokens_near_the_nucleus_edge():
    scores = np.log([0.5, 0.3, 0.2])
    assert {t for t in range(3) if near_cut(scores, t, Filters(1.0, top_p=0.8004), 1e-3)} == {2}
    assert {t for t in range(3) if near_cut(scores, t, Filters(1.0, top_p=0.65), 1e-3)} == set()
