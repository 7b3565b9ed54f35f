"""Target and drafter of engine=hf on the fused stack: the same models, decoded with far fewer launches.

Shapes: B batch, N tree nodes, W path width, Q rows, F feature size, V vocabulary, D drafted depths, L drafter layers,
K key/value heads, S slots.

Both are drop-in: prefill and weights are those of `HFTarget` and `DFlashDrafter`, and the methods that a round calls
neither wait for the device nor allocate by what is on it.
"""

from typing import Any, cast

import torch
from torch import Tensor
from torch.nn.functional import linear as product

from harness.decoding.tree import DraftTree
from harness.drafters.dflash import DFlashDrafter, DrafterState
from harness.drafters.network import head_dim_of, num_key_value_heads_of
from harness.engines.fused import Stack, StaticCache, fuse_layer, head
from harness.engines.hf_target import HFTarget
from harness.kernels.commit import commit_rows
from harness.kernels.norm import rms_norm
from harness.kernels.rotary import store_context

ARCHITECTURES = ("llama", "qwen3")


def why_not(config: Any) -> str | None:
    """Why a target's architecture has no fused path, or None when it has."""
    if config.model_type not in ARCHITECTURES:
        return f"{config.model_type} has no fused path (have: {', '.join(ARCHITECTURES)})"
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") not in ("default", "linear", "llama3", "yarn"):
        return f"rope_type {rope['rope_type']} changes with the length"
    if "sliding_attention" in (getattr(config, "layer_types", None) or []):
        return "it has sliding_attention layers"
    if getattr(config, "attention_bias", False) or getattr(config, "mlp_bias", False):
        return "its projections have biases"
    if config.hidden_act != "silu":
        return f"its activation is {config.hidden_act}"
    return None


class FusedTarget(HFTarget):
    """`HFTarget` whose trees go through the fused stack. Raises ValueError where `why_not` gives a reason."""

    def __init__(self, model: Any, *, feature_layers: list[int]):
        super().__init__(model, feature_layers=feature_layers)
        config = self.config
        reason = why_not(config)
        if reason:
            raise ValueError(f"engine.graphs=on: {reason}. Set engine.graphs=auto")
        decoder = self.model.get_decoder()
        self.stack = Stack(
            [fuse_layer(module) for module in self._layers()],
            num_heads=config.num_attention_heads,
            num_kv=config.num_key_value_heads,
            size=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
            eps=config.rms_norm_eps,
            rotary=decoder.rotary_emb,
        )
        self._norm_H = decoder.norm.weight
        self._embedding_VH = self.embedding.get_parameter("weight")
        self._head_VH = self.lm_head.get_parameter("weight")
        self._static: StaticCache | None = None

    def forward(self, tree: DraftTree, longest: int) -> tuple[Tensor, Tensor | None]:
        hidden_BNH = self._embedding_VH[tree.token_BN]
        batch, num_nodes, width = hidden_BNH.shape
        feature_BNF = None
        if self._feature_layers:
            feature_BNF = hidden_BNH.new_empty(batch, num_nodes, len(self._feature_layers) * width)
        assert self._static is not None
        self.stack(
            hidden_BNH,
            self._static,
            tree.depth_BN,
            tree.ancestor_mask_BNN() if num_nodes > 1 else None,
            longest=longest,
            feature_BQF=feature_BNF,
            feature_layers=self._feature_layers,
        )
        logits_MV = head(hidden_BNH.view(-1, width), self._norm_H, self.stack.eps, self._head_VH)
        return logits_MV.view(batch, num_nodes, -1), feature_BNF

    def commit(self, path_BW: Tensor, num_B: Tensor) -> None:
        assert self._static is not None
        commit_rows(self._static.rows_L2BKSD, self._static.length_B, path_BW, num_B)
        self._static.length_B += num_B

    def _new_cache(self, batch: int, slots: int) -> StaticCache:
        """The same buffers as long as they are of the size asked for: captured graphs hold their addresses."""
        kept = self._static
        if kept is None or (kept.length_B.shape[0], kept.slots) != (batch, slots):
            self._static = kept = self.stack.new_cache(batch, slots)
        kept.length_B.zero_()
        return kept


class FusedDrafter:
    """A loaded `DFlashDrafter`, whose weights it shares, on the fused stack."""

    def __init__(self, drafter: DFlashDrafter):
        network, config = drafter.network, drafter.config.network
        layers = list(network.each_layer())
        self.block_size, self._mask_id = drafter.block_size, drafter.config.mask_token_id
        self._network = network
        self._embedding_VH, self._head_VH = (cast(Any, module).weight for module in drafter.shared)
        self.stack = Stack(
            [fuse_layer(layer) for layer in layers],
            num_heads=config.num_attention_heads,
            num_kv=num_key_value_heads_of(config),
            size=head_dim_of(config),
            eps=config.rms_norm_eps,
            rotary=network.rotary_emb,
        )
        # Held twice, and small: committed rows need the keys and values of all layers at once.
        parts = [part.weight for layer in layers for part in (layer.self_attn.k_proj, layer.self_attn.v_proj)]
        self._context_kv = torch.cat(parts)
        self._key_norm_LD = torch.stack([layer.self_attn.k_norm.weight for layer in layers])
        self._static: StaticCache | None = None

    def new_state(self, batch: int, slots: int) -> DrafterState:
        """As `DFlashDrafter.new_state`; the same buffers as long as they have the size asked for."""
        kept = self._static
        if kept is None or (kept.length_B.shape[0], kept.slots) != (batch, slots):
            self._static = kept = self.stack.new_cache(batch, slots)
            self._token_BQ = kept.length_B.new_full((batch, self.block_size), self._mask_id)
            self._depth_BQ = torch.arange(self.block_size, device=kept.length_B.device).repeat(batch, 1)
        kept.length_B.zero_()
        return DrafterState(kept)

    @torch.no_grad()
    def extend(self, state: DrafterState, feature_BQF: Tensor, num_B: Tensor) -> None:
        """As `DFlashDrafter.extend`: each committed token is projected once, for all layers together."""
        network, cache = self._network, state.cache
        assert isinstance(cache, StaticCache)
        batch, num_rows, width = feature_BQF.shape
        feature_MF = feature_BQF.reshape(batch * num_rows, width).to(network.fc.weight.dtype)
        context_MH = rms_norm(product(feature_MF, network.fc.weight), network.hidden_norm.weight, self.stack.eps)
        store_context(
            product(context_MH, self._context_kv),
            cache.length_B,
            self.stack.table,
            self._key_norm_LD,
            self.stack.eps,
            cache.rows_L2BKSD,
            num_rows,
        )
        cache.length_B += num_B

    @torch.no_grad()
    def propose(self, state: DrafterState, root_B: Tensor, *, num_slots: int) -> Tensor:
        """As `DFlashDrafter.propose`: logits [B, D, V] of the block's mask tokens, of no other row."""
        cache = state.cache
        assert isinstance(cache, StaticCache)
        self._token_BQ[:, 0] = root_B
        hidden_BQH = self._embedding_VH[self._token_BQ]
        self.stack(hidden_BQH, cache, self._depth_BQ, None, longest=num_slots - self.block_size)
        rows_MH = hidden_BQH[:, 1:].reshape(-1, hidden_BQH.shape[-1])
        logits_MV = head(rows_MH, self._network.norm.weight, self.stack.eps, self._head_VH)
        return logits_MV.view(len(root_B), self.block_size - 1, -1)
