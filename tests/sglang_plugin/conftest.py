"""One server a mode for all tests of this folder, started side by side. Pinned to one worker by `--dist loadfile`."""

from pathlib import Path

import pytest

from tests.sglang_plugin import served
from tests.sglang_plugin.laws import Law
from tests.sglang_plugin.pair import BUDGET, write_pair

AID = Path(__file__).parent / "aid"


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture(scope="session")
def law(pair):
    return Law(pair[0])


@pytest.fixture(scope="session")
def servers(pair, tmp_path_factory):
    """plain: no speculation. tree: the coupled verifier. kernel: the kernel's contract. broken: rows are not moved."""
    target, draft = pair
    logs = tmp_path_factory.mktemp("logs")
    info = logs / "aid" / "ddtree_test_aid-0.0.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ddtree-test-aid\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\naid = ddtree_test_aid:register\n")
    tree = [
        *("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", str(draft)),
        *("--speculative-num-draft-tokens", str(BUDGET + 1)),
    ]
    broken = dict(DDTREE_TEST_BREAK="commit", PYTHONPATH=f"{AID}:{logs / 'aid'}")
    started = {
        "plain": served.start(target, [], logs / "plain.log"),
        "tree": served.start(target, tree, logs / "tree.log"),
        "kernel": served.start(target, tree, logs / "kernel.log", DDTREE_VERIFIER="kernel", DDTREE_SPINE="1"),
        "broken": served.start(target, tree, logs / "broken.log", **broken),
    }
    try:
        served.together(*started.values())
        yield started
    finally:
        for server in started.values():
            server.stop()


@pytest.fixture(scope="session")
def tree(servers):
    return servers["tree"]
