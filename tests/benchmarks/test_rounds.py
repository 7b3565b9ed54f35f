"""`benchmarks.rounds` on a tiny shape on the CPU: rounds are whole rounds, at the context asked for, and all are told."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from benchmarks import rounds, timing
from benchmarks.rounds_cells import Group, plan
from benchmarks.rounds_ours import OurModels
from benchmarks.shapes import SHAPES

TINY = replace(
    SHAPES["qwen3-8b"], name="tiny", layers=4, hidden=32, intermediate=48, heads=4, kv_heads=2, head_dim=8, vocab=97,
    drafter_layers=2, target_layer_ids=(0, 2), block_size=4, mask_token_id=96,
)  # fmt: skip
OPTIONS = SimpleNamespace(temperature=1.0, passes=2, rounds=3, official_rounds=3)


@pytest.fixture(scope="module")
def models():
    return OurModels(TINY, "cpu", torch.float32, "coupled")


def test_published_sizes():
    """Parameters as the models' pages state them: 8.2 and 4.0 billion, 135 million; embeddings count once where tied."""
    for name, billions in (("qwen3-8b", 8.19), ("qwen3-4b", 4.02), ("smollm2-135m", 0.1345)):
        shape = SHAPES[name]
        own_embedding = 0 if shape.tied else shape.head_bytes
        assert (shape.target_bytes + own_embedding) / 2e9 == pytest.approx(billions, rel=2e-3)


def test_streamed_bytes_are_the_models_own(models):
    assert models.target.streamed_bytes() == 2 * TINY.target_bytes  # float32 here
    weights = sum(p.numel() for p in models.network.network.parameters())
    assert 2 * weights == TINY.drafter_bytes


@pytest.mark.parametrize("mode", ["autoregressive", "dflash", "ddtree-6"])
def test_a_round_moves_the_context_by_what_it_commits(models, mode):
    round_ = models.open(mode, 2, 32, 1.0)
    round_.set_context(20)
    round_.rounds(3)
    emitted = round_.state.index_B.tolist()
    assert min(emitted) >= 3
    assert round_.target.cache.length_B.tolist() == [20 + n for n in emitted]
    if mode != "autoregressive":
        assert round_.drafter_state.length.tolist() == [20 + n for n in emitted]
    stages = round_.stages(lambda work: work)
    drafts = ["draft"] if mode != "autoregressive" else []
    assert list(stages) == [*drafts, "build", "verify", "sample", "commit"]
    before = round_.state.index_B.clone()
    with torch.inference_mode():
        for stage in stages.values():
            stage()
    assert (round_.state.index_B > before).all()


def test_a_group_measures_every_mode_and_tells_what_failed(models):
    group = Group("tiny", 1, 16, ("autoregressive", "dflash", "ddtree-6", "ddtree-0x"))
    cells, failed = rounds.measure_group(group, models, None, 1e9, OPTIONS, "cpu")
    assert [cell["mode"] for cell in cells] == ["autoregressive", "dflash", "ddtree-6"]
    assert [f["modes"] for f in failed] == [["ddtree-0x"]]
    assert cells[0]["over_autoregressive"] == 1
    for cell in cells:
        assert len(cell["passes_ms"]) == OPTIONS.passes
        assert cell["round_ms"] == sorted(cell["passes_ms"])[0] / 2 + sorted(cell["passes_ms"])[1] / 2
        assert cell["times_floor"] == pytest.approx(cell["round_ms"] / (1000 * TINY.target_bytes / 1e9))
        assert 0 <= cell["host_share"] < 1
    json.dumps(cells, allow_nan=False)


def test_the_official_turns_are_read_without_their_first_round():
    asked = {}

    def generate(prompt, **options):
        asked.update(options, tokens=len(prompt))
        return SimpleNamespace(round_s=[9.0, 0.1, 0.3], stage_s={"draft": 0.6})

    group = Group("tiny", 1, 16, ("ddtree-6",), official=True)
    turns = rounds.OfficialTurns(SimpleNamespace(generate=generate), "ddtree-6", group, TINY, OPTIONS)
    turns.take()
    turns.take()
    assert asked["tree_budget"] == 6
    assert asked["tokens"] == 16
    cell = turns.cell(rounds.head(group, "ddtree-6", "official", 200.0, 10.0, 5.0))
    assert turns.round_ms == pytest.approx([200.0, 200.0])
    assert cell["stages_ms"] == {"draft": pytest.approx(200.0)}
    assert cell["over_autoregressive"] == 40


def test_the_plan_covers_what_is_promised():
    groups = list(plan(list(SHAPES)))
    assert groups[0] == Group("qwen3-8b", 1, 1024, groups[0].modes, official=True)
    assert {"autoregressive", "dflash", "ddtree-63", "ddtree-255"} <= set(groups[0].modes)
    assert {g.shape for g in groups} == set(SHAPES)
    assert {g.batch for g in groups} == {1, 4, 16}
    assert {512, 1024, 8192} <= {g.context for g in groups}
    assert all(g.batch == 1 for g in groups if g.official)
    assert len(set(groups)) == len(groups)


def test_copy_bandwidth_counts_both_ways(monkeypatch):
    monkeypatch.setattr(timing, "device_ms", lambda call, number, device: 1000.0)
    assert timing.copy_bandwidth("cpu") == 2 * 2**26
