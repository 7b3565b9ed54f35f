"""A stack of Llama-style layers for few rows: fused weights, one launch where transformers makes several.

Shapes: B batch, Q rows a sample, M = B · Q rows, H hidden size, I intermediate size, A query heads, K key/value heads,
D head size, X = (A + 2K) · D, L layers, S cache slots, P positions.

Serves the target (Llama, Qwen3) and the DFlash drafter, whose layers are Qwen3's. The weights stay those of the modules
they come from: a fused tensor is made once and the modules' own weights become views of it, so nothing is held twice
and transformers' forward, which does the prefill, goes on working.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear as product

from harness.decoding.cache import PositionCache
from harness.kernels.attention import tree_attention
from harness.kernels.linear import gated, linear
from harness.kernels.norm import rms_norm, silu_mul
from harness.kernels.rotary import rotate_and_store


@dataclass(frozen=True)
class Layer:
    """Weights of one layer. head_norms: of queries and keys, [D] each (Qwen3), or None (Llama)."""

    norm_H: Tensor
    qkv_XH: Tensor
    head_norms: tuple[Tensor, Tensor] | None
    out_HX: Tensor
    mlp_norm_H: Tensor
    gate_up_JH: Tensor  # J = 2 · I
    down_HI: Tensor


class StaticCache(PositionCache):
    """All layers' rows in one tensor made beforehand, rows_L2BKSD; a new batch starts by setting lengths to zero."""

    def __init__(
        self, layers: int, batch: int, heads: int, slots: int, size: int, dtype: torch.dtype, device: torch.device
    ):
        super().__init__(batch, slots, device)
        self.rows_L2BKSD = torch.zeros(layers, 2, batch, heads, slots, size, dtype=dtype, device=device)
        self.keys = {i: rows[0] for i, rows in enumerate(self.rows_L2BKSD)}
        self.values = {i: rows[1] for i, rows in enumerate(self.rows_L2BKSD)}


class Stack:
    """rotary: the model's own module, (like, positions [1, P]) -> cos and sin, [1, P, D] each in the dtype of `like`."""

    def __init__(
        self, layers: list[Layer], *, num_heads: int, num_kv: int, size: int, eps: float, rotary: Callable[..., Any]
    ):
        self.layers, self.eps, self.rotary = layers, eps, rotary
        self.num_heads, self.num_kv, self.size = num_heads, num_kv, size
        self.table: tuple[Tensor, Tensor]

    def new_cache(self, batch: int, slots: int) -> StaticCache:
        """Buffers for `slots` rows a sample, and the rotation of as many positions."""
        like = self.layers[0].qkv_XH
        cos_1PD, sin_1PD = self.rotary(like, torch.arange(slots, device=like.device)[None])
        self.table = cos_1PD[0].contiguous(), sin_1PD[0].contiguous()
        return StaticCache(len(self.layers), batch, self.num_kv, slots, self.size, like.dtype, like.device)

    def __call__(
        self,
        hidden_BQH: Tensor,
        cache: StaticCache,
        depth_BQ: Tensor,
        ancestors_BQQ: Tensor | None,
        *,
        longest: int,
        feature_BQF: Tensor | None = None,
        feature_layers: Iterable[int] = (),
    ) -> Tensor:
        """Hidden states before the final norm, [B, Q, H]; hidden_BQH is overwritten with them.

        Q rows stand behind the committed ones, at positions length + depth_BQ. ancestors_BQQ: who sees whom among them
        (None: all). The outputs of `feature_layers` are put side by side into feature_BQF.
        """
        batch, num_rows, width = hidden_BQH.shape
        hidden_MH = hidden_BQH.view(-1, width)
        place = {layer: i for i, layer in enumerate(feature_layers)}
        for i, layer in enumerate(self.layers):
            qkv_MX = _project(hidden_MH, layer.qkv_XH, layer.norm_H, self.eps)
            key_BKSD, value_BKSD = cache.keys[i], cache.values[i]
            query_BQAD = rotate_and_store(
                qkv_MX.view(batch, num_rows, -1),
                depth_BQ,
                cache.length_B,
                self.table,
                layer.head_norms,
                self.eps,
                key_BKSD,
                value_BKSD,
                self.num_heads,
            )
            seen_BQX = tree_attention(
                query_BQAD,
                key_BKSD,
                value_BKSD,
                cache.length_B,
                ancestors_BQQ,
                max_length=longest,
                scale=self.size**-0.5,
            )
            _add_projection(hidden_MH, seen_BQX.view(len(hidden_MH), -1), layer.out_HX)
            if len(hidden_MH) == 1:
                inner_MI = gated(hidden_MH, layer.gate_up_JH, norm=(layer.mlp_norm_H, self.eps))
            else:
                inner_MI = silu_mul(product(rms_norm(hidden_MH, layer.mlp_norm_H, self.eps), layer.gate_up_JH))
            _add_projection(hidden_MH, inner_MI, layer.down_HI)
            if i in place:
                assert feature_BQF is not None
                feature_BQF[..., place[i] * width : (place[i] + 1) * width] = hidden_BQH
        return hidden_BQH


def head(hidden_MH: Tensor, norm_H: Tensor, eps: float, weight_VH: Tensor) -> Tensor:
    """Logits [M, V] of hidden states that have not been through the final norm."""
    return _project(hidden_MH, weight_VH, norm_H, eps)


def fuse_layer(module: Any) -> Layer:
    """The weights of a transformers Llama or Qwen3 layer (or of a DFlash layer), fused in place.

    Raises ValueError for a layer with biases, which the fused projections do not add.
    """
    attention, mlp = module.self_attn, module.mlp
    biased = [n for n, p in module.named_parameters() if n.endswith(".bias")]
    if biased:
        raise ValueError(f"engine.graphs=on: the layers have biases ({biased[0]}), which the fused path does not add")
    has_norms = hasattr(attention, "q_norm")
    return Layer(
        norm_H=module.input_layernorm.weight,
        qkv_XH=_fuse(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norms=(attention.q_norm.weight, attention.k_norm.weight) if has_norms else None,
        out_HX=attention.o_proj.weight,
        mlp_norm_H=module.post_attention_layernorm.weight,
        gate_up_JH=_fuse(mlp.gate_proj, mlp.up_proj),
        down_HI=mlp.down_proj.weight,
    )


def _fuse(*linears: nn.Linear) -> Tensor:
    """Their weights in one tensor; the modules keep views of it."""
    fused = torch.cat([module.weight.detach() for module in linears])
    start = 0
    for module in linears:
        num = module.weight.shape[0]
        module.weight = nn.Parameter(fused[start : start + num], requires_grad=False)
        start += num
    return fused


def _project(hidden_MH: Tensor, weight_NH: Tensor, norm_H: Tensor, eps: float) -> Tensor:
    if len(hidden_MH) == 1:
        return linear(hidden_MH, weight_NH, norm=(norm_H, eps))
    return product(rms_norm(hidden_MH, norm_H, eps), weight_NH)


def _add_projection(hidden_MH: Tensor, x_MK: Tensor, weight_HK: Tensor) -> None:
    """hidden += x @ weightᵀ, in place."""
    if len(hidden_MH) == 1:
        linear(x_MK, weight_HK, residual_1N=hidden_MH)
    else:
        hidden_MH.addmm_(x_MK, weight_HK.T)
