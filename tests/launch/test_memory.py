"""What `make plan` says, held against the tensors themselves and against hand counts."""

import json
from pathlib import Path

import pytest
import torch

from harness.compose import compose
from harness.launch import estimate, memory
from harness.launch.__main__ import main
from harness.records import RunManifest


@pytest.fixture
def config(tiny_pair):
    def made(*words: str):
        pair = [f"model.target={tiny_pair['target']}", f"model.drafter={tiny_pair['drafter']}"]
        return compose([*pair, "engine.dtype=float32", "tracking=none", *words])

    return made


def test_weights_are_the_parameters_of_both_checkpoints(config, tiny_pair):
    from safetensors.torch import load_file

    count = {}
    for name, folder in tiny_pair.items():
        tensors = [tensor for file in folder.glob("*.safetensors") for tensor in load_file(file).values()]
        count[name] = sum(tensor.numel() for tensor in tensors)
    assert memory.needed(config("speculative=autoregressive")).weights == 4 * count["target"]
    assert memory.needed(config("speculative=ddtree")).weights == 4 * (count["target"] + count["drafter"])
    assert memory.needed(config("speculative=ddtree", "engine.dtype=bfloat16")).weights == 2 * sum(count.values())


def test_integers_count_as_they_are_stored(tmp_path: Path):
    from safetensors.torch import save_file

    save_file({"packed": torch.zeros(7, dtype=torch.uint8), "scale": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert memory.weight_bytes(tmp_path, 2) == 7 + 3 * 2
    assert memory.weight_bytes(tmp_path / "nothing", 2) is None


def test_keys_values_and_tree_by_hand(config):
    """Target: 3 layers, 2 key/value heads of 8; drafter: one such layer, block 5; vocabulary 300; batch 3."""
    one = memory.needed(config("speculative=autoregressive", "sampling.max_new_tokens=88"))
    assert one.kv == 2 * 3 * 2 * 8 * 4 * (512 + 88 + 1 + 2)
    tree = memory.needed(config("speculative.tree_budget=20", "sampling.max_new_tokens=88", "engine.batch_size=3"))
    slots = 512 + 88 + 21 + 2 * 5
    assert tree.kv == 2 * (3 + 1) * 2 * 8 * 4 * slots * 3
    assert tree.tree == 3 * 21 * (3 * 4 * 300 + slots)
    assert tree.total == tree.weights + tree.kv + tree.tree


def test_only_layers_with_attention_keep_keys_and_values():
    base = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "num_hidden_layers": 4}
    assert memory.kv_bytes_per_slot(base, 2) == 2 * 4 * 2 * 8 * 2
    hybrid = {**base, "layer_types": ["linear_attention"] * 3 + ["full_attention"]}
    assert memory.kv_bytes_per_slot(hybrid, 2) == 2 * 1 * 2 * 8 * 2
    assert memory.kv_bytes_per_slot({**base, "kv_lora_rank": 512}, 2) is None


def test_what_is_not_on_this_machine_is_unknown(monkeypatch, tmp_path):
    monkeypatch.setenv("DDTREE_EVAL_CACHE", str(tmp_path))
    assert memory.needed(compose([])).weights is None
    assert memory.needed(compose(["model=kimi_k26"])).total is None


def finished(config, mode: str, budget: int | None, tokens: int, speed: float, limit: int | None = 2) -> tuple:
    asked = json.loads(json.dumps(config.asked))
    asked["speculative"] = {"name": mode, **({"tree_budget": budget} if budget else {})}
    asked["run"]["limit"] = limit
    manifest = RunManifest(id="x", name="x", command=[], asked=asked, status="finished", samples_planned=limit or 164)
    return manifest, {"tokens/output": tokens, "samples/records": 2, "throughput/decode_tokens_per_s": speed}


def test_time_comes_from_the_run_that_is_most_like_the_cell(config):
    cell = config("speculative.tree_budget=16", "run.limit=10")
    need = memory.needed(cell)
    exact, other = finished(cell, "ddtree", 16, 100, 50.0), finished(cell, "ddtree", 8, 100, 25.0)
    baseline = finished(cell, "autoregressive", None, 100, 10.0)
    assert estimate.time_of(cell, need, [baseline, other, exact]).seconds == pytest.approx(10 * 50 / 50.0)
    assert estimate.time_of(cell, need, [baseline, other]).seconds == pytest.approx(10 * 50 / 25.0)
    guess = estimate.time_of(cell, need, [baseline])
    assert (guess.seconds, guess.basis) == (pytest.approx(10 * 50 / 10.0), "another mode")
    nothing = estimate.time_of(cell, need, [])
    assert nothing.seconds is None
    assert "bandwidth" in nothing.basis


def test_time_of_a_whole_set_needs_a_run_of_it(config):
    cell = config("run.limit=null", "sampling.repeats=2")
    need = memory.needed(cell)
    part = estimate.time_of(cell, need, [finished(cell, "ddtree", 16, 100, 50.0, limit=2)])
    assert (part.per_sample, part.seconds) == (True, pytest.approx(1.0))
    run = finished(cell, "ddtree", 16, 100, 50.0, limit=None)
    run[0].asked["sampling"]["repeats"] = 1
    assert estimate.time_of(cell, need, [run]).seconds == pytest.approx(164 * 2 * 1.0)


def test_the_floor_is_the_weights_once_a_token(config):
    cell = config(
        "speculative=autoregressive", "run.limit=3", "hardware.bandwidth_gb_s=0.001", "sampling.max_new_tokens=50"
    )
    need = memory.needed(cell)
    assert estimate.time_of(cell, need, []).seconds == pytest.approx(3 * 50 * need.weights / 1e6)


def test_the_command_starts_nothing(tiny_pair, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "250")
    pair = [f"model.target={tiny_pair['target']}", f"model.drafter={tiny_pair['drafter']}"]
    words = [*pair, f"run.output_dir={tmp_path / 'outputs'}", "experiment=budget_sweep", "run.limit=2"]
    assert main(["plan", *words, "hardware.memory_gb=0.0001"]) == 0
    out = capsys.readouterr().out
    assert out.count("not started") == 7
    assert out.count("too much") == 7
    assert not (tmp_path / "outputs").exists()
    assert main(["plan", "experiment=budget_sweep", "hydra/launcher=nope"]) == 2
