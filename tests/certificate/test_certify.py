"""The command on the tiny pair: green as it is, red with every known mistake, and what runs make of it.

False alarms: each certificate fails a correct system with probability 1e-6.
"""

import json

import pytest

from harness.certificate.line import FAMILY_LEVEL, MAX_TESTS
from harness.certificate.scope import certificate_status, key
from harness.certificate.settings import MISTAKES
from harness.records import RunFolder


def test_a_correct_cell_is_green_and_its_runs_refer_to_it(certify, harness):
    before = harness("run.limit=1")
    assert "no certificate" in before.stdout
    taken = certify()
    assert taken.status == 0, taken.text
    values = taken.values
    assert (values["schema"], values["status"], values["failed_parts"]) == (1, "green", [])
    assert {line["part"] for line in values["lines"]} == {"equality", "distribution", "prediction", "state"}
    assert values["key"] == key(values["scope"])
    assert values["level"] * MAX_TESTS == pytest.approx(FAMILY_LEVEL)
    for line in values["lines"]:
        assert line["n"] > 0, line["name"]
        assert (line["p_value"] is None) != (line["tolerance"] is None), line["name"]
        assert f"{line['name']}  {line['statistic']}" in taken.text
    assert any(line["detects"] for line in values["lines"])
    stored = certify.outputs / "certificates" / f"{values['key']}.json"
    assert json.loads(stored.read_text()) == values

    # The same cell at another temperature, budget and limit has the same key.
    after = harness("run.limit=2", "sampling.temperature=0.9", "speculative.tree_budget=5")
    assert "certificate green" in after.stdout
    # Another verifier has not.
    assert "no certificate" in harness("run.limit=1", "speculative.verifier=walk").stdout
    assert "certificate" not in harness("run.limit=1", "speculative=autoregressive").stdout
    states = {}
    for path in certify.outputs.glob("*/run.json"):
        run = RunFolder(path.parent)
        asked, measured = run.manifest().asked, run.manifest().measured["certificate"]
        name = asked["speculative"]["name"], asked["speculative"]["verifier"], asked["sampling"]["temperature"]
        states[name] = measured, run.summary().get("certificate/status")
    assert states == {
        ("ddtree", "kernel", 0.6): ("missing", "missing"),  # it ran before
        ("ddtree", "kernel", 0.9): ("green", "green"),
        ("ddtree", "walk", 0.6): ("missing", "missing"),
        ("autoregressive", "kernel", 0.6): (None, None),
    }


ONLY_DRAWS = ("certify.float64_samples=0", "certify.equality_tokens=0")
EXPECTED = {
    "min_ratio": {"distribution", "prediction"},
    "stale_draft_probs": {"distribution"},
    "duplicated_siblings": {"distribution"},
    "temperature_off": {"distribution"},
    "wrong_kv_row": {"equality", "state"},
    "parent_bonus": {"distribution"},
    "zero_coin": {"distribution"},
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_known_mistake_turns_it_red_and_the_part_is_named(certify, mistake):
    taken = certify(f"certify.inject={mistake}", *(ONLY_DRAWS if "equality" not in EXPECTED[mistake] else ()))
    assert taken.status == 1, taken.text
    assert set(taken.values["failed_parts"]) >= EXPECTED[mistake]
    assert f"is RED: {', '.join(taken.values['failed_parts'])}" in taken.text
    assert taken.values["inject"] == mistake
    # It says nothing of the cell: no run refers to it.
    assert not (certify.outputs / "certificates").exists()
    if mistake == "zero_coin":
        assert [line["name"] for line in taken.red] == ["kernel, coins at the ends of their range"]


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("speculative=autoregressive", ["speculative=autoregressive", "dflash or ddtree"]),
        ("certify.contexts=0", ["certify.contexts=0", "greater than or equal to 1"]),
        ("certify.inject=nothing", ["certify.inject=nothing", "min_ratio"]),
        ("certify.smaples=3", ["certify.smaples", "Did you mean samples"]),
        ("hardware=h200", ["hardware=h200", "no usable CUDA device"]),
    ],
)
def test_what_cannot_be_certified_is_said_at_once(certify, override, parts):
    taken = certify(override)
    assert taken.status == 2
    for part in parts:
        assert part in taken.text


def test_an_interrupted_certificate_is_none(certify, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("harness.certify.edge_coins", interrupt)
    taken = certify(*ONLY_DRAWS)
    assert taken.status == 130
    assert "no certificate was written" in taken.text
    assert taken.values == {}
    assert not (certify.outputs / "certificates").exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema": 99}', '{"schema": 1, "key": "other", "inject": null}'])
def test_a_file_that_is_no_certificate_counts_as_missing(tmp_path, text):
    from harness.certificate.scope import certificate_path
    from harness.records import RunManifest

    manifest = RunManifest(id="x", name="x", command=[], asked={"speculative": {"name": "ddtree"}})
    path = certificate_path(tmp_path, manifest)
    path.parent.mkdir()
    path.write_text(text)
    assert certificate_status(tmp_path / "run", manifest) == "missing"
    for status in ("green", "red"):
        path.write_text(json.dumps({"schema": 1, "key": path.stem, "inject": None, "status": status}))
        assert certificate_status(tmp_path / "run", manifest) == status


def test_a_cell_that_decodes_in_batches(certify):
    """Three requests of two samples: the third is a repeat with its own stream."""
    taken = certify("engine.batch_size=3", "run.limit=2", "certify.toy_draws=2000", "certify.float64_tokens=8")
    assert taken.status == 0, taken.text
    assert taken.values["scope"]["batch"] == 3
    (equal,) = [line for line in taken.values["lines"] if line["name"] == "ddtree against autoregressive, float32"]
    assert equal["n"] <= 3 * 16 * 4  # three requests, four cells
    assert equal["n"] > 2 * 16 * 4


def test_a_temperature_off_by_five_percent_is_seen_by_the_toy_and_by_the_redraws(certify):
    taken = certify("certify.inject=temperature_off", *ONLY_DRAWS, "certify.contexts=4", "certify.most_draws=20000")
    red = {line["name"] for line in taken.red if line["statistic"] == "z"}
    for verifier in ("kernel", "walk", "coupled"):
        assert f"{verifier}, toy joint of 216 outputs, T=0.8: log p" in red
        assert f"{verifier}, 4 real contexts redrawn, T=1: log p" in red
