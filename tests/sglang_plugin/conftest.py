"""One server a mode for all tests of this folder, started when the first test asks for it."""

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


class Fleet:
    """tree: the coupled verifier. kernel: the kernel's contract, with a spine. ranks: two tensor-parallel ranks, of which
    one holds nothing but the vocabulary's padding. broken: accepted rows are not moved."""

    def __init__(self, target: Path, draft: Path, aid: Path):
        self.target = target
        self.options = [
            *("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", str(draft)),
            *("--speculative-num-draft-tokens", str(BUDGET + 1)),
        ]
        self.modes: dict[str, tuple[list[str], dict[str, str]]] = {
            "tree": ([], {}),
            "kernel": ([], dict(DDTREE_VERIFIER="kernel", DDTREE_SPINE="1")),
            "ranks": (["--tp-size", "2"], dict(SGLANG_CPU_OMP_THREADS_BIND="0|1")),
            "broken": ([], dict(DDTREE_TEST_BREAK="commit", PYTHONPATH=f"{AID}:{aid}")),
        }
        self.running: dict[str, Served] = {}

    def __getitem__(self, mode: str) -> Served:
        if mode not in self.running:
            options, environment = self.modes[mode]
            self.running[mode] = Served(self.target, [*self.options, *options], environment)
        return self.running[mode]


@pytest.fixture(scope="session")
def servers(pair, tmp_path_factory):
    aid = tmp_path_factory.mktemp("aid")
    info = aid / "ddtree_test_aid-0.0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ddtree-test-aid\nVersion: 0.0.1\n")
    (info / "entry_points.txt").write_text("[sglang.srt.plugins]\naid = ddtree_test_aid:register\n")
    fleet = Fleet(*pair, aid)
    try:
        yield fleet
    finally:
        for server in fleet.running.values():
            server.stop()


@pytest.fixture(scope="session")
def tree(servers):
    return servers["tree"]
