"""The DFlash network: a few Qwen3-style layers that read the target's features and fill in a block of mask tokens.

Shapes: B batch, Q rows, C context rows, S rows attended to, H hidden size, F = H x number of feature layers, N
attention heads, K key/value heads, D head size. The module names are those of the public checkpoints
(z-lab/*-DFlash*), so a state dict of this module is the content of such a checkpoint.

Source: DFlash, arXiv 2602.06036. Keys and values of a layer are projections of two things: the context (features of
the committed tokens, the same input for every layer) and the block itself (that layer's hidden states). Queries come
from the block alone. So context keys and values depend on nothing but the features and are computed once a token.
"""

from collections.abc import Callable, Iterator
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP, Qwen3RMSNorm, Qwen3RotaryEmbedding, apply_rotary_pos_emb

KeyValue = tuple[Tensor, Tensor]  # [B, K, Q, D] each


def head_dim_of(config: Qwen3Config) -> int:
    return config.head_dim or config.hidden_size // config.num_attention_heads


def num_key_value_heads_of(config: Qwen3Config) -> int:
    return config.num_key_value_heads or config.num_attention_heads


class DFlashAttention(nn.Module):
    def __init__(self, config: Qwen3Config):
        super().__init__()
        self.head_dim = head_dim_of(config)
        num_query = config.num_attention_heads * self.head_dim
        num_key = num_key_value_heads_of(config) * self.head_dim
        bias = config.attention_bias
        self.q_proj = nn.Linear(config.hidden_size, num_query, bias=bias)
        self.k_proj = nn.Linear(config.hidden_size, num_key, bias=bias)
        self.v_proj = nn.Linear(config.hidden_size, num_key, bias=bias)
        self.o_proj = nn.Linear(num_query, config.hidden_size, bias=bias)
        self.q_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)
        self.k_norm = Qwen3RMSNorm(self.head_dim, eps=config.rms_norm_eps)

    def key_value(self, hidden_BQH: Tensor, rotation: tuple[Tensor, Tensor]) -> KeyValue:
        """Rotated keys and plain values of Q rows, [B, K, Q, D] each."""
        batch, num_rows, _ = hidden_BQH.shape
        key_BKQD = self.k_norm(self.k_proj(hidden_BQH).view(batch, num_rows, -1, self.head_dim)).transpose(1, 2)
        value_BKQD = self.v_proj(hidden_BQH).view(batch, num_rows, -1, self.head_dim).transpose(1, 2)
        _, key_BKQD = apply_rotary_pos_emb(key_BKQD, key_BKQD, *rotation)
        return key_BKQD.to(value_BKQD.dtype), value_BKQD

    def forward(
        self, hidden_BQH: Tensor, key_BKSD: Tensor, value_BKSD: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor
    ) -> Tensor:
        """Attention of Q block rows over S keys, block rows included. `mask` is bool, broadcast to [B, 1, Q, S]."""
        batch, num_rows, _ = hidden_BQH.shape
        query_BNQD = self.q_norm(self.q_proj(hidden_BQH).view(batch, num_rows, -1, self.head_dim)).transpose(1, 2)
        query_BNQD, _ = apply_rotary_pos_emb(query_BNQD, query_BNQD, *rotation)
        out_BNQD = scaled_dot_product_attention(
            query_BNQD.to(value_BKSD.dtype), key_BKSD, value_BKSD, attn_mask=mask, enable_gqa=True
        )
        return self.o_proj(out_BNQD.transpose(1, 2).reshape(batch, num_rows, -1))


class DFlashLayer(nn.Module):
    def __init__(self, config: Qwen3Config):
        super().__init__()
        self.self_attn = DFlashAttention(config)
        self.mlp = Qwen3MLP(config)
        self.input_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)


class DFlashNetwork(nn.Module):
    """Weights and arithmetic only: no cache, no embedding, no LM head (both are the target's)."""

    def __init__(self, config: Qwen3Config, num_features: int):
        """num_features: F, the width of the concatenated target features."""
        super().__init__()
        self.config = config
        self.fc = nn.Linear(num_features, config.hidden_size, bias=False)
        self.hidden_norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.layers = nn.ModuleList([DFlashLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = Qwen3RMSNorm(config.hidden_size, eps=config.rms_norm_eps)
        self.rotary_emb = Qwen3RotaryEmbedding(config)

    def each_layer(self) -> Iterator[DFlashLayer]:
        return cast(Iterator[DFlashLayer], iter(self.layers))

    def rotation(self, like: Tensor, position_BQ: Tensor) -> tuple[Tensor, Tensor]:
        """cos and sin of Q positions, [B, Q, D] each, in the dtype of `like`."""
        return self.rotary_emb(like, position_BQ)

    def context(self, feature_BCF: Tensor, position_BC: Tensor) -> list[KeyValue]:
        """Keys and values of C context rows for every layer."""
        context_BCH = self.hidden_norm(self.fc(feature_BCF))
        rotation = self.rotation(context_BCH, position_BC)
        return [layer.self_attn.key_value(context_BCH, rotation) for layer in self.each_layer()]

    def block(
        self, embedding_BQH: Tensor, position_BQ: Tensor, mask: Tensor, join: Callable[[int, KeyValue], KeyValue]
    ) -> Tensor:
        """Hidden states of Q block rows after the final norm, [B, Q, H].

        join(layer index, KeyValue of the block) -> KeyValue over all S rows the block attends to; `mask` is bool,
        broadcast to [B, 1, Q, S].
        """
        hidden_BQH = embedding_BQH
        rotation = self.rotation(hidden_BQH, position_BQ)
        for index, layer in enumerate(self.each_layer()):
            normed_BQH = layer.input_layernorm(hidden_BQH)
            key, value = join(index, layer.self_attn.key_value(normed_BQH, rotation))
            hidden_BQH = hidden_BQH + layer.self_attn(normed_BQH, key, value, rotation, mask)
            hidden_BQH = hidden_BQH + layer.mlp(layer.post_attention_layernorm(hidden_BQH))
        return self.norm(hidden_BQH)

    def forward(
        self, feature_BCF: Tensor, embedding_BQH: Tensor, position_BC: Tensor, position_BQ: Tensor, mask: Tensor
    ) -> Tensor:
        """The whole network without a cache, as training needs it: S = C + Q, context rows first."""
        context = self.context(feature_BCF, position_BC)
        group = self.config.num_attention_heads // num_key_value_heads_of(self.config)

        def join(index: int, block: KeyValue) -> KeyValue:
            # Repeated for each query head: the attention kernel that takes a mask and a gradient wants equal heads.
            key, value = (
                torch.cat([c, b], 2).repeat_interleave(group, 1) for c, b in zip(context[index], block, strict=True)
            )
            return key, value

        return self.block(embedding_BQH, position_BQ, mask, join)
