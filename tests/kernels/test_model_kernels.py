"""The kernels of a transformer layer against plain torch, and against transformers' own modules."""

import pytest
import torch

from harness.decoding.cache import PositionCache


def random_tree_mask(batch: int, num_nodes: int, generator: torch.Generator) -> torch.Tensor:
    """bool [B, N, N] of random trees whose parents stand before their children."""
    mask = torch.eye(num_nodes, dtype=torch.bool).repeat(batch, 1, 1)
    for b in range(batch):
        for node in range(1, num_nodes):
            parent = int(torch.randint(node, (), generator=generator))
            mask[b, node] |= mask[b, parent]
    return mask


@pytest.mark.parametrize("size", [24, 64, 576])
def test_rms_norm(device, size):
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    from harness.kernels.norm import rms_norm

    torch.manual_seed(0)
    hidden = torch.randn(5, size, device=device) * 3
    module = Qwen3RMSNorm(size, eps=1e-5).to(device)
    torch.nn.init.normal_(module.weight)
    with torch.no_grad():
        torch.testing.assert_close(rms_norm(hidden, module.weight, 1e-5), module(hidden))


def test_silu_mul(device):
    from harness.kernels.norm import silu_mul

    torch.manual_seed(0)
    both = torch.randn(3, 2 * 1100, device=device)
    gate, up = both.chunk(2, dim=-1)
    torch.testing.assert_close(silu_mul(both), torch.nn.functional.silu(gate) * up)


@pytest.mark.parametrize("has_norm", [False, True])
def test_rotate_and_store(device, has_norm):
    from transformers.models.qwen3.modeling_qwen3 import apply_rotary_pos_emb

    from harness.kernels.rotary import rotate_and_store

    torch.manual_seed(0)
    batch, num_rows, heads, kv, size, slots = 2, 5, 4, 2, 12, 20
    qkv = torch.randn(batch, num_rows, (heads + 2 * kv) * size, device=device)
    length = torch.tensor([3, 9], device=device)
    depth = torch.randint(4, (batch, num_rows), device=device)
    angle = torch.arange(slots + 8, device=device)[:, None] * torch.rand(size // 2, device=device)
    table = torch.cat([angle, angle], -1).cos(), torch.cat([angle, angle], -1).sin()
    norms = (torch.randn(size, device=device), torch.randn(size, device=device)) if has_norm else None
    key, value = torch.zeros(2, batch, kv, slots, size, device=device)
    query = rotate_and_store(qkv, depth, length, table, norms, 1e-6, key, value, heads)

    def normed(x, weight):
        return weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)

    q, k, v = qkv.view(batch, num_rows, -1, size).split([heads, kv, kv], dim=2)
    if norms:
        q, k = normed(q, norms[0]), normed(k, norms[1])
    position = length[:, None] + depth
    q, k = apply_rotary_pos_emb(q.transpose(1, 2), k.transpose(1, 2), table[0][position], table[1][position])
    cache = PositionCache(batch, slots, device)
    cache.length_B = length
    cache.write(0, k, v.transpose(1, 2))
    torch.testing.assert_close(query, q.transpose(1, 2))
    torch.testing.assert_close(key, cache.keys[0])
    torch.testing.assert_close(value, cache.values[0])


def test_store_context(device):
    from transformers import Qwen3Config

    from harness.drafters.network import DFlashNetwork
    from harness.kernels.rotary import store_context

    torch.manual_seed(0)
    config = Qwen3Config(
        hidden_size=16, intermediate_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        num_hidden_layers=3, vocab_size=10,
    )  # fmt: skip
    network = DFlashNetwork(config, 16).to(device)
    for layer in network.each_layer():
        torch.nn.init.normal_(layer.self_attn.k_norm.weight)
    batch, num_rows, slots = 2, 4, 12
    length = torch.tensor([1, 5], device=device)
    features = torch.randn(batch, num_rows, 16, device=device)
    position = length[:, None] + torch.arange(num_rows, device=device)
    with torch.no_grad():
        wanted = network.context(features, position)
        context = network.hidden_norm(network.fc(features))
        parts = [p(context) for layer in network.each_layer() for p in (layer.self_attn.k_proj, layer.self_attn.v_proj)]
        cos, sin = network.rotation(features, torch.arange(slots, device=device)[None])
        norms = torch.stack([layer.self_attn.k_norm.weight for layer in network.each_layer()])
        cache = torch.zeros(3, 2, batch, 2, slots, 8, device=device)
        store_context(torch.cat(parts, -1), length, (cos[0], sin[0]), norms, config.rms_norm_eps, cache, num_rows)
    for b, start in enumerate(length.tolist()):
        for layer, (key, value) in enumerate(wanted):
            torch.testing.assert_close(cache[layer, 0, b, :, start : start + num_rows], key[b])
            torch.testing.assert_close(cache[layer, 1, b, :, start : start + num_rows], value[b])


@pytest.mark.parametrize("num_programs", [1, 1000])
@pytest.mark.parametrize(("num_rows", "heads", "kv"), [(1, 4, 2), (7, 9, 3), (40, 4, 4)])
def test_tree_attention_equals_masked_attention(device, num_rows, heads, kv, num_programs):
    from harness.kernels.attention import tree_attention

    generator = torch.Generator().manual_seed(num_rows)
    batch, size, slots = 2, 16, 400
    query = torch.randn(batch, num_rows, heads, size, generator=generator).to(device)
    key, value = torch.randn(2, batch, kv, slots, size, generator=generator).to(device)
    length = torch.tensor([0, 300])
    mask = random_tree_mask(batch, num_rows, generator)
    slot = torch.arange(slots)
    seen = (slot < length[:, None, None]).expand(-1, num_rows, -1).clone()
    for b, start in enumerate(length.tolist()):
        seen[b, :, start : start + num_rows] = mask[b]
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2), key, value, attn_mask=seen[:, None].to(device), scale=0.3, enable_gqa=True
    ).transpose(1, 2)
    arguments = (query, key, value, length.to(device))
    options = dict(max_length=slots - num_rows, scale=0.3, num_programs=num_programs)
    got = tree_attention(*arguments, mask.to(device), **options)
    torch.testing.assert_close(got, wanted.flatten(2), rtol=1e-4, atol=1e-5)
    blind = tree_attention(*arguments, None, **options)
    assert num_rows == 1 or not torch.allclose(blind, wanted.flatten(2), atol=1e-2)  # the mask matters


def test_a_block_sees_all_of_itself(device):
    from harness.kernels.attention import tree_attention

    torch.manual_seed(0)
    query = torch.randn(1, 6, 2, 16, device=device)
    key, value = torch.randn(2, 1, 1, 64, 16, device=device)
    length = torch.tensor([20], device=device)
    got = tree_attention(query, key, value, length, None, max_length=58, scale=0.25)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        query.transpose(1, 2), key[:, :, :26], value[:, :, :26], scale=0.25, enable_gqa=True
    )
    torch.testing.assert_close(got, wanted.transpose(1, 2).flatten(2), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_commit_keeps_the_accepted_path(device, seed):
    from harness.kernels.commit import commit_rows

    generator = torch.Generator().manual_seed(seed)
    layers, batch, kv, slots, size, num_nodes, width = 2, 3, 2, 30, 8, 9, 6
    cache = torch.randn(layers, 2, batch, kv, slots, size, generator=generator).to(device)
    length = torch.tensor([0, 4, 11])
    path = torch.full((batch, width), -1)
    num = torch.tensor([0, 1 + seed % 2, width])
    for b in range(batch):
        picked = torch.randperm(num_nodes - 1, generator=generator)[: width - 1].sort().values + 1
        path[b] = torch.cat([torch.zeros(1, dtype=torch.int64), picked])
    wanted = cache.clone()
    for b in range(batch):
        for w in range(int(num[b])):
            wanted[:, :, b, :, length[b] + w] = cache[:, :, b, :, length[b] + path[b, w]]
    commit_rows(cache, length.to(device), path.to(device), num.to(device))
    torch.testing.assert_close(cache, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("has_norm", [False, True])
def test_linear(device, has_norm):
    from harness.kernels.linear import gated, linear

    torch.manual_seed(0)
    num_inputs, num_outputs = 72, 40
    x = torch.randn(1, num_inputs, device=device)
    weight = torch.randn(2 * num_outputs, num_inputs, device=device)
    gain = torch.rand(num_inputs, device=device)
    norm = (gain, 1e-5) if has_norm else None
    normed = gain * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) if has_norm else x
    wanted = normed @ weight.T
    torch.testing.assert_close(linear(x, weight, norm=norm), wanted, rtol=1e-4, atol=1e-4)
    gate, up = wanted.chunk(2, dim=-1)
    activated = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(gated(x, weight, norm=norm), activated, rtol=1e-4, atol=1e-4)
    residual = torch.randn(1, 2 * num_outputs, device=device)
    added = residual + wanted
    assert linear(x, weight, norm=norm, residual_1N=residual) is residual
    torch.testing.assert_close(residual, added, rtol=1e-4, atol=1e-4)
