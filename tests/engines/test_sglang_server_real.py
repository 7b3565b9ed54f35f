"""The real SGLang engine on the CPU, as a person runs it. `make install-sglang` makes its environment.

Each start costs 20 to 60 seconds, so there are few, and each test looks at much.
"""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness.engines.sglang_launch import interpreter
from harness.engines.sglang_watchdog import descendants
from harness.records import RunFolder
from tests.conftest import environment

pytestmark = pytest.mark.timeout(600)
SERVED = ("engine=sglang", "hardware=cpu", "engine.startup_s=300", "speculative.tree_budget=6", "sampling=t10")
COUPLED = "speculative.verifier=coupled"


@pytest.fixture(scope="module", autouse=True)
def installed():
    """No environment is a failure that says what to do, not a skip."""
    assert interpreter(None)


def runs(harness) -> dict[str, RunFolder]:
    found = [RunFolder(path.parent) for path in harness.outputs.glob("*/run.json")]
    return {run.manifest().asked["engine"]["name"]: run for run in found}


def servers() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if b"sglang.launch_server" in words or b"sglang::" in words:
            found.append(int(path.parent.name))
    return found


def test_ddtree_at_temperature_one_logs_what_the_hf_engine_logs_and_says_the_same(harness):
    """With coupled noise the real server gives the very tokens of engine=hf, in batches of three and one."""
    before = servers_of(os.getpid())  # those of other tests' fixtures in this process
    served = harness(*SERVED, COUPLED, "engine.concurrency=3")
    harness("engine=hf", *SERVED[3:], COUPLED)
    run, other = runs(harness)["sglang"], runs(harness)["hf"]
    assert run.manifest().status == "finished"
    mine, theirs = ({r.key: r for r in each.records()} for each in (run, other))
    assert len(mine) == 6
    assert {key: r.output_ids for key, r in mine.items()} == {key: r.output_ids for key, r in theirs.items()}
    assert {key: r.output_text for key, r in mine.items()} == {key: r.output_text for key, r in theirs.items()}
    assert {key: r.prompt_sha256 for key, r in mine.items()} == {key: r.prompt_sha256 for key, r in theirs.items()}
    for record in mine.values():
        record.check()
        assert record.ttft_s > 0
        assert record.decode_s >= record.decode_share_s > 0
        assert record.cached_tokens is not None
    summary, expected = run.summary(), other.summary()
    absent = set(summary["absent"])
    assert absent == {"stage/", "acceptance/expected", "quality/target_logprob", "quality/n_target_logprob"}
    missing = {name for name in expected if name not in summary}
    assert {name for name in missing if not name.startswith(tuple(absent))} - context_names(expected) == set()
    for name in ("acceptance_length/pooled", "acceptance/histogram", "rounds/total", "acceptance/nodes_per_round"):
        assert summary[name] == expected[name], name
    assert "not shown by it" in served.stdout
    engine = run.manifest().resolved["engine"]
    assert (engine["dtype"], engine["attention"], engine["graph_mode"]) == ("float32", "torch_native", "none")
    assert engine["server_versions"]["sglang"] == "0.5.17"
    assert set(servers_of(os.getpid())) <= set(before)


def context_names(summary) -> set[str]:
    """Acceptance by context needs rounds one by one, which a busy server may have sent together."""
    return {name for name in summary if "/context/" in name}


def servers_of(pid: int) -> list[int]:
    return [each for each in descendants(pid) if each in servers()]


SLOW = (*SERVED, "run.limit=null", "sampling.repeats=2", "sampling.max_new_tokens=60", "engine.concurrency=2")


def test_a_harness_killed_while_it_decodes_leaves_no_server_and_resumes(harness):
    before = set(servers())
    process = subprocess.Popen(
        harness.command(*SLOW), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: records(harness) >= 2, 300, "records")
        mine = set(servers()) - before
        assert len(servers_of(process.pid)) >= 2  # the watchdog, the server, its scheduler and detokenizer
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda: not mine & set(servers()), 60, "the server's end")
    finally:
        process.kill()
        process.wait()
    [run] = runs(harness).values()
    kept = {record.key: record.finished_at for record in run.records()}
    done = harness(*SLOW)
    assert "finished" in done.stdout
    assert len(run.records()) == 12
    after = {record.key: record.finished_at for record in run.records()}
    assert {key: after[key] for key in kept} == kept


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_harness_ended_while_the_server_starts_leaves_none(harness, how):
    before = set(servers())
    process = subprocess.Popen(
        harness.command(*SLOW), env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for(lambda: servers_of(process.pid), 120, "a server")
        mine = set(servers()) - before
        time.sleep(2)
        process.send_signal(how)
        assert process.wait(timeout=60) in (130, -9)
        wait_for(lambda: not mine & set(servers()), 60, "the server's end")
    finally:
        process.kill()
        process.wait()


def records(harness) -> int:
    files = list(harness.outputs.glob("*/records.jsonl"))
    return files[0].read_bytes().count(b"\n") if files else 0


def wait_for(what, seconds: float, name: str) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, f"no sign of {name} within {seconds} s"
        time.sleep(0.1)
