"""The certificate's state part on the fused target and drafter, which a CUDA machine serves with."""

from types import SimpleNamespace

from harness.certificate.bench import Bench
from harness.certificate.serving import Serving
from harness.certificate.settings import CertifySettings
from harness.certificate.state import state
from harness.engines.base import Request
from harness.speculative.ddtree import DDTree
from tests.engines.test_hf_fused import open_target, real_drafter


def fused_bench(checkpoint, folder) -> Bench:
    from harness.engines.hf_fused import FusedDrafter

    bench = Bench.__new__(Bench)  # without a session, which has this target and drafter where there is CUDA
    bench.engine = SimpleNamespace(batch_size=2)
    bench.setup = SimpleNamespace(mode=DDTree(tree_budget=5), stop_ids=[])
    bench.serving, bench.dtype = Serving(), "float32"
    bench.target = open_target("fused", checkpoint)
    bench.drafter = FusedDrafter(real_drafter(open_target("plain", checkpoint), folder))
    return bench


def lines_of(bench) -> list:
    requests = [Request(sample_id=str(i), repeat=0, prompt_ids=[5 + i, 9, 3], stream=i) for i in range(2)]
    return list(
        state(bench, requests, 6, CertifySettings(equality_temperatures=[], redraw_temperatures=[]), lambda _: None)
    )


def test_committed_rows_are_a_prefills(tiny_checkpoint, tmp_path):
    bench = fused_bench(tiny_checkpoint("llama"), tmp_path)
    lines = lines_of(bench)
    assert [line.passed for line in lines] == [True] * 3, lines
    assert all(line.n == 10 for line in lines)  # 6 tokens a sample, the last of them a root


def test_a_wrong_row_is_seen(tiny_checkpoint, tmp_path):
    bench = fused_bench(tiny_checkpoint("llama"), tmp_path)
    commit = bench.target.commit
    bench.target.commit = lambda path_BW, num_B: commit(
        path_BW.clamp(max=1), num_B
    )  # the first child, whatever was taken
    target, _, _ = lines_of(bench)
    assert not target.passed
