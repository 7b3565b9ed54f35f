"""The drafter's cached, batched path against a dense reference written from the paper's equations, and its refusals.

B batch, C context rows, F feature width, H hidden size. The reference shares no code with harness.drafters.
"""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import LlamaConfig, Qwen3Config

from harness.drafters.checkpoint import DrafterConfig, write_checkpoint
from harness.drafters.dflash import DFlashDrafter
from harness.drafters.network import DFlashNetwork

HIDDEN, VOCAB, BLOCK, MASK, LAYER_IDS = 32, 61, 5, 7, [0, 2, 3]
TARGET = LlamaConfig(hidden_size=HIDDEN, vocab_size=VOCAB, num_hidden_layers=4, num_attention_heads=4)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    network = Qwen3Config(
        hidden_size=HIDDEN, vocab_size=VOCAB, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=16, intermediate_size=48, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 5e4},
    )  # fmt: skip
    state = {k: torch.randn_like(v) * 0.3 + (1.0 if "norm" in k else 0.0)
             for k, v in DFlashNetwork(network, len(LAYER_IDS) * HIDDEN).state_dict().items()}  # fmt: skip
    config = DrafterConfig(network, BLOCK, MASK, LAYER_IDS, 4)
    write_checkpoint(tmp_path, config, state, torch.float32, max_shard_bytes=20_000)
    return tmp_path


@pytest.fixture
def shared() -> tuple[nn.Embedding, nn.Linear]:
    torch.manual_seed(1)
    return nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)


def load(path: Path, shared, target=TARGET) -> DFlashDrafter:
    return DFlashDrafter.load(
        path, target_config=target, embedding=shared[0], lm_head=shared[1], dtype=torch.float64, device="cpu"
    )


def reference(path: Path, shared, feature_CF: torch.Tensor, root: int) -> torch.Tensor:
    """Logits [BLOCK - 1, VOCAB] of one row, one head at a time, from the checkpoint's tensors alone."""
    w = {k: v.double() for file in path.glob("*.safetensors") for k, v in load_file(file).items()}

    def norm(x, weight):
        return x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    def rotate(x, position):  # pairs (i, i + 8) of a 16-wide head turn by position / 5e4^(i/8)
        angle = position[:, None] / 5e4 ** (torch.arange(8).double() / 8)
        a, b = x[:, :8], x[:, 8:]
        return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)

    num = feature_CF.shape[0]
    context = norm(feature_CF @ w["fc.weight"].T, w["hidden_norm.weight"])
    hidden = shared[0].weight.double()[torch.tensor([root] + [MASK] * (BLOCK - 1))]
    where_all, where = torch.arange(num + BLOCK).double(), torch.arange(num, num + BLOCK).double()
    for layer in range(2):
        p = f"layers.{layer}."
        x = norm(hidden, w[p + "input_layernorm.weight"])
        rows, out = torch.cat([context, x]), []
        for head in range(4):
            group = slice(head // 2 * 16, head // 2 * 16 + 16)
            q = x @ w[p + "self_attn.q_proj.weight"][head * 16 : head * 16 + 16].T
            k = rows @ w[p + "self_attn.k_proj.weight"][group].T
            v = rows @ w[p + "self_attn.v_proj.weight"][group].T
            q = rotate(norm(q, w[p + "self_attn.q_norm.weight"]), where)
            k = rotate(norm(k, w[p + "self_attn.k_norm.weight"]), where_all)
            out.append((q @ k.T / 4).softmax(-1) @ v)
        hidden = hidden + torch.cat(out, -1) @ w[p + "self_attn.o_proj.weight"].T
        x = norm(hidden, w[p + "post_attention_layernorm.weight"])
        gate, up = x @ w[p + "mlp.gate_proj.weight"].T, x @ w[p + "mlp.up_proj.weight"].T
        hidden = hidden + (gate * gate.sigmoid() * up) @ w[p + "mlp.down_proj.weight"].T
    return norm(hidden, w["norm.weight"])[1:] @ shared[1].weight.double().T


def test_pieces_of_ragged_rows_equal_the_dense_reference(checkpoint: Path, shared) -> None:
    drafter = load(checkpoint, shared)
    shared[0].double(), shared[1].double()
    torch.manual_seed(2)
    feature_BCF = torch.randn(2, 20, drafter.num_features, dtype=torch.float64)
    lengths = [[7, 3], [2, 1], [0, 4], [3, 2]]  # rows taken by each extend; wider inputs are padding
    state, root_B, start = drafter.new_state(2, 40), torch.tensor([3, MASK]), [0, 0]
    for num in lengths:
        width = max(num) + 1
        piece = torch.full((2, width, drafter.num_features), 1e3, dtype=torch.float64)
        for b in range(2):
            piece[b, : num[b]] = feature_BCF[b, start[b] : start[b] + num[b]]
            start[b] += num[b]
        drafter.extend(state, piece, torch.tensor(num))
        logits_BDV = drafter.propose(state, root_B)
        assert state.length.tolist() == start
        for b in range(2):
            expected = reference(checkpoint, shared, feature_BCF[b, : start[b]], int(root_B[b]))
            torch.testing.assert_close(logits_BDV[b], expected, rtol=1e-6, atol=1e-6)
    assert drafter.propose(state, root_B, depth=2).shape == (2, 2, VOCAB)
    torch.testing.assert_close(drafter.propose(state, root_B, depth=2, num_slots=24), logits_BDV[:, :2])


def test_a_context_of_one_row_less_is_told_apart(checkpoint: Path, shared) -> None:
    """Negative control: the comparison above would see a context that lacks its last token."""
    shared[0].double(), shared[1].double()
    feature = torch.randn(6, len(LAYER_IDS) * HIDDEN, dtype=torch.float64)
    gap = reference(checkpoint, shared, feature, 3) - reference(checkpoint, shared, feature[:5], 3)
    assert gap.abs().max() > 1e-3


def test_batch_equals_single(checkpoint: Path, shared) -> None:
    drafter = load(checkpoint, shared)
    shared[0].double(), shared[1].double()
    feature_BCF, num_B = torch.randn(3, 9, drafter.num_features, dtype=torch.float64), torch.tensor([9, 1, 4])
    state, root_B = drafter.new_state(3, 16), torch.tensor([1, 2, 3])
    drafter.extend(state, feature_BCF, num_B)
    together_BDV = drafter.propose(state, root_B)
    for b in range(3):
        alone = drafter.new_state(1, 30)
        drafter.extend(alone, feature_BCF[b : b + 1, : num_B[b]], num_B[b : b + 1])
        torch.testing.assert_close(drafter.propose(alone, root_B[b : b + 1])[0], together_BDV[b])


def test_public_layout(checkpoint: Path, shared) -> None:
    raw = json.loads((checkpoint / "config.json").read_text())
    assert (raw["architectures"], raw["model_type"]) == (["DFlashDraftModel"], "qwen3")
    assert raw["dflash_config"] == {"mask_token_id": MASK, "target_layer_ids": LAYER_IDS}
    assert (raw["block_size"], raw["num_target_layers"], raw["rope_theta"]) == (BLOCK, 4, 5e4)
    assert len(list(checkpoint.glob("model-*-of-*.safetensors"))) > 1
    drafter = load(checkpoint, shared)
    assert (drafter.block_size, drafter.target_layer_ids, drafter.num_features) == (BLOCK, LAYER_IDS, 3 * HIDDEN)
    assert not any(k.startswith(("embed", "lm_head")) for k in drafter.state_dict())
    one = {k: v for file in checkpoint.glob("*.safetensors") for k, v in load_file(file).items()}
    for file in [*checkpoint.glob("*.safetensors"), checkpoint / "model.safetensors.index.json"]:
        file.unlink()
    save_file(one, checkpoint / "model.safetensors")  # the single-file form of the public checkpoints
    again = load(checkpoint, shared)
    for name, value in drafter.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"architectures": ["Qwen3ForCausalLM"]}, "not a DFlashDraftModel"),
        ({"hidden_size": 48}, "hidden_size 48"),
        ({"vocab_size": 62}, "vocab_size 62"),
        ({"num_target_layers": 36}, "num_target_layers 36"),
        ({"num_target_layers": None}, "no num_target_layers"),
        ({"block_size": 1}, "block_size 1"),
        ({"dflash_config": {"mask_token_id": MASK, "target_layer_ids": [0, 2, 4]}}, r"target_layer_ids \[4\]"),
        ({"dflash_config": {"mask_token_id": VOCAB, "target_layer_ids": LAYER_IDS}}, "mask_token_id 61"),
        ({"dflash_config": {"target_layer_ids": LAYER_IDS}}, "no dflash_config.mask_token_id"),
        ({"dflash_config": {"mask_token_id": 1, "target_layer_ids": LAYER_IDS, "causal": True}}, "causal"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "sliding_attention"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "rope type 'dynamic'"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"num_hidden_layers": 3, "layer_types": None}, "lacks weights layers.2"),
        ({"num_hidden_layers": 1, "layer_types": None}, "unexpected weights layers.1"),
        ({"intermediate_size": 40}, "wrongly shaped weights layers.0.mlp"),
    ],
)
def test_refusals_name_the_key_and_the_cause(checkpoint: Path, shared, change: dict, message: str) -> None:
    file = checkpoint / "config.json"
    raw = json.loads(file.read_text()) | change
    if "rope_scaling" in change:
        raw.pop("rope_parameters", None)
    file.write_text(json.dumps(raw))
    with pytest.raises(ValueError, match=rf"speculative\.drafter.*{message}"):
        load(checkpoint, shared)


def test_depth_outside_the_block_is_refused(checkpoint: Path, shared) -> None:
    drafter = load(checkpoint, shared)
    state = drafter.new_state(1, 8)
    for depth in (0, BLOCK):
        with pytest.raises(ValueError, match="depth"):
            drafter.propose(state, torch.tensor([0]), depth=depth)
