"""The certificate's observable parts on the real SGLang server on the CPU, and that its runs refer to it.

`make install-sglang` makes the environment. False alarms: 1e-6 a certificate.
"""

import pytest

pytestmark = pytest.mark.timeout(900)
SERVED = ("engine=sglang", "speculative.tree_budget=6", "sampling=t10", "engine.concurrency=3", "engine.startup_s=300")
SIZES = ("certify.served_tokens=600", "certify.run_tokens=24", "certify.equality_tokens=24")


@pytest.mark.parametrize("verifier", ["kernel", "coupled"])
def test_the_observable_parts_are_green_and_the_rest_is_listed_as_absent(certify, harness, verifier):
    taken = certify(*SERVED, *SIZES, f"speculative.verifier={verifier}")
    assert taken.status == 0, taken.text
    values = taken.values
    assert values["status"] == "green"
    assert {line["part"] for line in values["lines"]} == {"equality", "distribution"}
    [equal] = [line for line in values["lines"] if line["name"] == "ddtree against autoregressive, float32"]
    assert equal["n"] > 24  # three requests of up to 24 tokens
    [run] = [line for line in values["lines"] if line["statistic"] == "z"]
    assert run["n"] > 300
    assert {part["part"] for part in values["absent"]} == {"equality", "distribution", "prediction", "state"}
    assert "absent prediction: accepted drafts" in taken.text
    assert (values["scope"]["engine"], values["scope"]["batch"]) == ("sglang", 3)
    assert values["scope"]["server"]["sglang"] == "0.5.17"
    coupled = [line for line in values["lines"] if line["name"].startswith("coupled tokens of the server")]
    assert len(coupled) == (2 if verifier == "coupled" else 0)
    if verifier == "coupled":
        return
    done = harness(*SERVED, "run.limit=1", "sampling.temperature=0.8", "sampling.max_new_tokens=4")
    assert "certificate green" in done.stdout
