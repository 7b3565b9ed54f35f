"""The certificate of a server, with engine=hf in the server's place: green as it is, red with what a server could do wrong.

The real SGLang server goes through the same lines in tests/engines/test_sglang_certificate.py. False alarms: 1e-8 a line.
"""

import pytest

from harness.certificate.served import ABSENT, ServedBench, served_lines
from harness.certificate.settings import CertifySettings
from harness.decoding.noise import stream_key
from harness.engines.base import Request, Sampling, Setup
from harness.engines.hf import HFEngine
from harness.speculative.ddtree import DDTree
from tests.certificate.served_wrong import WRONG

SETTINGS = CertifySettings(
    equality_temperatures=[0.6, 1.0], redraw_temperatures=[1.0], equality_tokens=24, run_tokens=24, served_tokens=1500
)


def requests(count: int) -> list[Request]:
    return [
        Request(sample_id=f"s{i}", repeat=0, prompt_ids=[5 + i % 7, 9, 30 + i], stream=stream_key(0, "t", f"s{i}", 0))
        for i in range(count)
    ]


def lines(tiny_pair, verifier="kernel", wrong=None, temperature=1.0, **filters):
    from harness.compose import compose

    asked = dict(temperature=temperature, top_k=0, top_p=1.0, min_p=0.0, max_new_tokens=24) | filters
    setup = Setup(
        target=tiny_pair["target"],
        drafter=tiny_pair["drafter"],
        mode=DDTree(tree_budget=6, verifier=verifier),
        hardware=compose([]).hardware,
        sampling=Sampling(**asked),
        stop_ids=[1, 2],
    )
    engine = HFEngine(dtype="float32", batch_size=4)
    bench = ServedBench(WRONG[wrong](engine) if wrong else engine, setup)
    found = list(served_lines(bench, requests(4), requests(63), SETTINGS, lambda text: None))
    assert all(line.n > 0 for line in found)
    return found


@pytest.mark.parametrize(
    "filters", [dict(), dict(temperature=0.6, top_p=0.9), dict(top_k=9, min_p=0.02), dict(temperature=0.0)], ids=str
)
@pytest.mark.parametrize("verifier", ["kernel", "coupled"])
def test_a_correct_server_is_green(tiny_pair, verifier, filters):
    found = lines(tiny_pair, verifier, **filters)
    assert [str(line) for line in found if not line.passed] == []
    names = " ".join(line.name for line in found)
    assert ("coupled tokens" in names) == (verifier == "coupled")
    assert "ddtree against autoregressive, float32" in names
    if filters.get("temperature", 1.0) > 0:
        [z] = [line for line in found if line.statistic == "z"]
        assert 0 < z.detects < 1


@pytest.mark.parametrize(
    ("wrong", "red"),
    [
        ("too_warm", {"distribution"}),
        ("greedy", {"distribution"}),
        ("one_token_off", {"equality"}),
        ("cut_short", {"equality"}),
        ("forgets_top_p", {"distribution"}),
    ],
)
def test_what_a_server_could_do_wrong_is_red(tiny_pair, wrong, red):
    found = lines(tiny_pair, wrong=wrong, **(dict(top_p=0.5) if wrong == "forgets_top_p" else {}))
    assert {line.part for line in found if not line.passed} == red


@pytest.mark.parametrize("wrong", ["other_seed", "shifted_noise"])
def test_coupled_noise_that_is_not_the_requests_own_is_red(tiny_pair, wrong):
    found = lines(tiny_pair, "coupled", wrong=wrong)
    assert {line.part for line in found if not line.passed} == {"equality"}


def test_a_sample_that_fails_ends_the_certificate(tiny_pair):
    with pytest.raises(ValueError, match="certify: sample s0 failed: out of memory"):
        lines(tiny_pair, wrong="fails")


def test_what_cannot_be_seen_is_listed_with_its_reason():
    assert {part["part"] for part in ABSENT} == {"equality", "distribution", "prediction", "state"}
    assert all(part["reason"] for part in ABSENT)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (("engine=openai", "engine.base_url=http://127.0.0.1:1/v1"), "Certify engine=hf or engine=sglang"),
        (("engine=sglang", "certify.inject=min_ratio"), "certify.inject=min_ratio"),
        (("engine=sglang", "engine.tokenizer=server"), "engine.tokenizer=server"),
    ],
)
def test_what_cannot_be_certified_of_a_server_is_said(certify, overrides, said):
    taken = certify(*overrides)
    assert taken.status == 2
    assert said in taken.text
