"""A certificate in W&B, read back with W&B's own reader, and beside a speed-up in the comparison."""

import json
import os
import subprocess
import sys

import pytest

from harness.certificate.scope import certificate_path
from harness.records import RunFolder, RunManifest
from harness.report.compare import certificate_mark

FEW = (
    "certify.float64_samples=0", "certify.equality_tokens=0", "certify.contexts=1", "certify.most_draws=50",
    "certify.samples=1", "certify.toy_draws=2000",
)  # fmt: skip


def test_it_is_logged_to_weights_and_biases(certify, tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("WANDB")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    taken = certify(*FEW, "tracking=offline")
    assert taken.status == 0, taken.text
    (log,) = certify.outputs.glob("*/wandb/offline-run-*/*.wandb")
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(log)]
    entries = [json.loads(line) for line in subprocess.run(command, capture_output=True, text=True).stdout.splitlines()]
    summary = {k: v for e in entries if e["type"] == "summary" for k, v in e["summary"].get("update", {}).items()}
    assert summary["certificate/status"] == "green"
    (table,) = certify.outputs.glob("*/wandb/offline-run-*/files/media/table/certificate/lines*.json")
    values = json.loads(table.read_text())
    names = [row[values["columns"].index("name")] for row in values["data"]]
    assert names == [line["name"] for line in taken.values["lines"]]


@pytest.mark.parametrize(
    ("status", "mark"), [("green", "certificate green"), ("red", "certificate RED"), (None, "no certificate")]
)
def test_it_stands_beside_a_speed_up(tmp_path, status, mark):
    """Also one that was taken after the run: the key decides."""
    run = RunFolder(tmp_path / "run")
    manifest = RunManifest(id="x", name="x", command=[], asked={"speculative": {"name": "ddtree"}}, status="finished")
    run.write_manifest(manifest)
    path = certificate_path(tmp_path, manifest)
    if status:
        path.parent.mkdir()
        path.write_text(json.dumps({"schema": 1, "key": path.stem, "inject": None, "status": status}))
    assert certificate_mark(run) == mark
