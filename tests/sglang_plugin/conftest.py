"""One server a mode for all tests of this folder, started side by side."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.sglang_plugin.laws import Law
from tests.sglang_plugin.pair import BUDGET, write_pair
from tests.sglang_plugin.served import Served

AID = Path(__file__).parent / "aid"


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def law(pair):
    return Law(pair[0])


@pytest.fixture(scope="session")
def servers(pair, tmp_path_factory):
    """tree: the coupled verifier. kernel: the kernel's contract, with a spine. broken: accepted rows are not moved."""
    target, draft = pair
    info = tmp_path_factory.mktemp("aid") / "ddtree_test_aid-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ddtree-test-aid\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\naid = ddtree_test_aid:register\n")
    options = [
        *("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", str(draft)),
        *("--speculative-num-draft-tokens", str(BUDGET + 1)),
    ]
    environments = {
        "tree": {},
        "kernel": dict(DDTREE_VERIFIER="kernel", DDTREE_SPINE="1"),
        "broken": dict(DDTREE_TEST_BREAK="commit", PYTHONPATH=f"{AID}:{info.parent}"),
    }
    with ThreadPoolExecutor() as pool:
        starts = {mode: pool.submit(Served, target, options, given) for mode, given in environments.items()}
    try:
        yield {mode: start.result() for mode, start in starts.items()}
    finally:
        for start in starts.values():
            if start.exception() is None:
                start.result().stop()


@pytest.fixture(scope="session")
def tree(servers):
    return servers["tree"]
