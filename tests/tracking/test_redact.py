"""Secrets are hidden by name, by value and in URLs; ordinary settings are not."""

import pytest

from harness.records import RunFolder, RunManifest, SampleRecord
from harness.tracking.none import NoTracker
from harness.tracking.redact import HIDDEN, redact


@pytest.mark.parametrize("name", ["api_key", "HF_TOKEN", "openai.apikey", "password", "client_secret", "Authorization"])
def test_a_string_under_a_secret_name_is_hidden(name: str) -> None:
    assert redact({"engine": [{name: "abc"}]}, {}) == {"engine": [{name: HIDDEN}]}


def test_ordinary_settings_pass_unchanged() -> None:
    values = {"max_new_tokens": 128, "mask_token": 5, "tokens/output": 3, "eos_token_id": [1, 2], "top_k": 0, "x": None}
    assert redact(values, {}) == values


def test_the_value_of_a_secret_variable_is_hidden_wherever_it_stands() -> None:
    environment = {"HF_TOKEN": "hf_0123456789", "SHELL": "bash-bash-bash", "SHORT_KEY": "on"}
    given = {"a": "see hf_0123456789!", "b": "bash-bash-bash on"}
    assert redact(given, environment) == {"a": f"see {HIDDEN}!", "b": "bash-bash-bash on"}


def test_the_user_part_of_a_url_is_hidden() -> None:
    assert redact("http://me:pw@host:1/x", {}) == f"http://{HIDDEN}@host:1/x"
    assert redact("http://host:1/x@y", {}) == "http://host:1/x@y"


def test_no_tracker_leaves_nothing(tmp_path) -> None:
    tracker = NoTracker()
    tracker.start(RunFolder(tmp_path), RunManifest(id="x", name="n", command=[], asked={}))
    tracker.log(SampleRecord(task="t", sample_id="a", repeat=0, status="error", error="x"))
    tracker.finish({})
    assert tracker.location() is None
    assert list(tmp_path.iterdir()) == []
