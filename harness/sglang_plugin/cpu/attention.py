"""SGLang's torch_native attention with what it lacks on a CPU: TARGET_VERIFY, for a tree, a chain or a draft block.

Shapes: B requests, N window rows, P prefix. For tests: one request after the other, in plain torch.
"""

from typing import Any

import torch
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from torch import Tensor

from harness.sglang_plugin import compat


class TreeTorchBackend(TorchNativeAttnBackend):
    needs_cpu_seq_lens = True

    def forward_extend(
        self, q: Tensor, k: Tensor, v: Tensor, layer: Any, forward_batch: Any, save_kv_cache: bool = True
    ) -> Tensor:
        if not forward_batch.forward_mode.is_target_verify():
            return super().forward_extend(q, k, v, layer, forward_batch, save_kv_cache)
        pool = self.token_to_kv_pool
        if save_kv_cache:
            pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        window_BN = forward_batch.out_cache_loc.view(forward_batch.batch_size, -1)
        num_rows = window_BN.shape[1]
        queries = q.view(*window_BN.shape, layer.tp_q_head_num, layer.qk_head_dim)
        attended = []
        for b, table_row in enumerate(forward_batch.req_pool_indices):
            prefix = int(forward_batch.seq_lens[b])
            prefix_P = self.req_to_token_pool.req_to_token[table_row, :prefix].long()
            slots = torch.cat([prefix_P, window_BN[b]])
            key, value = (cache[slots].transpose(0, 1)[None].to(q.dtype) for cache in (keys, values))
            seen = torch.ones(num_rows, prefix + num_rows, dtype=torch.bool)
            seen[:, prefix:] = _window_mask(forward_batch.spec_info, layer, b, num_rows)
            out = torch.nn.functional.scaled_dot_product_attention(
                queries[b].transpose(0, 1)[None],
                key,
                value,
                attn_mask=seen,
                scale=layer.scaling,
                enable_gqa=layer.tp_q_head_num != key.shape[1],
            )
            attended.append(out[0].transpose(0, 1))
        return torch.stack(attended).reshape(window_BN.numel(), -1)


def _window_mask(spec_info: Any, layer: Any, b: int, num_rows: int) -> Tensor:
    tree_mask_BNN = getattr(spec_info, "tree_mask_BNN", None)
    if tree_mask_BNN is not None:
        return tree_mask_BNN[b]
    everything = torch.ones(num_rows, num_rows, dtype=torch.bool)
    return everything if layer.attn_type == AttentionType.ENCODER_ONLY else everything.tril()


def allow_cpu() -> None:
    """Put it in torch_native's place, and let a draft runner use it."""
    from sglang.srt.layers.attention.attention_registry import ATTENTION_BACKENDS

    compat.allow_draft_backend("torch_native")
    ATTENTION_BACKENDS["torch_native"] = TreeTorchBackend


def keep_embedding_dtype(draft_model: Any) -> None:
    """SGLang's eager forward casts input embeddings to bfloat16; a float32 draft model needs the uncast ones."""
    forward, dtype = draft_model.forward, draft_model.fc.weight.dtype

    def uncast(input_ids: Tensor, positions: Tensor, forward_batch: Any, input_embeds: Any = None, **more: Any) -> Any:
        embeds = forward_batch.input_embeds.to(dtype)
        return forward(input_ids, positions, forward_batch, input_embeds=embeds, **more)

    draft_model.forward = uncast
