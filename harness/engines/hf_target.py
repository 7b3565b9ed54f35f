"""Any transformers causal language model as the target of the decode loop.

Shapes: B batch, N tree nodes, Q prompt rows, S cache slots in view, V vocabulary, F feature size (layers x hidden).

The model gets a whole attention mask and positions of its own, so one forward serves prefill, a single token and a tree.
Keys and values go through `PositionCache`; the hidden states that a drafter reads are caught by forward hooks.
"""

from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from harness.decoding.cache import PositionCache
from harness.decoding.tree import DraftTree

SUPPORTED_LAYERS = {"full_attention", "sliding_attention"}


class HFTarget:
    """Implements `harness.decoding.loop.Target`.

    Source of the mask convention: transformers' models take a 4-D mask as it is (`masking_utils`), or a mapping from
    layer type to mask where layers differ.
    """

    def __init__(self, model: Any, *, feature_layers: list[int]):
        """model: a loaded transformers model on its device. Raises ValueError for a state other than key/value rows."""
        self.config = model.config.get_text_config()
        refuse_unsupported(self.config)
        self.model = model
        self.attention = model.config._attn_implementation
        self.device, self.dtype = model.device, model.dtype
        self.cache = PositionCache(1, 1, self.device)
        self._features: dict[int, Tensor] = {}
        self._feature_layers = feature_layers
        for index in feature_layers:
            self._layers()[index].register_forward_hook(self._catch(index))

    @classmethod
    def load(cls, path: Path, *, dtype: torch.dtype, device: str, attention: str, feature_layers: list[int]) -> Self:
        """attention: auto, sdpa or eager."""
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()  # the run has one of its own
        config = AutoConfig.from_pretrained(path).get_text_config()
        refuse_unsupported(config)
        implementation = resolve_attention(attention, config)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation=implementation)
        return cls(model.eval().to(device), feature_layers=feature_layers)  # type: ignore[arg-type]  # `to` is decorated

    @property
    def embedding(self) -> torch.nn.Module:
        return self.model.get_input_embeddings()

    @property
    def lm_head(self) -> torch.nn.Module:
        return self.model.get_output_embeddings()

    def streamed_bytes(self) -> int:
        """Bytes of the weights that a forward reads: all, but for an input embedding of its own, read by the row."""
        embedding, head = (module.get_parameter("weight") for module in (self.embedding, self.lm_head))
        read = [p for p in self.model.parameters() if p is not embedding or p is head]
        return sum(p.numel() * p.element_size() for p in read)

    def prefill(self, prompts: list[list[int]], slots: int) -> tuple[Tensor, Tensor | None, Tensor]:
        """logits_BV of each prompt's last token, features_BQF, length_B. Raises ValueError for an empty prompt."""
        if not all(prompts):
            raise ValueError("a prompt has no tokens: check the task's messages and the tokenizer's chat template")
        longest = max(map(len, prompts))
        token_BQ = torch.zeros(len(prompts), longest, dtype=torch.int64)
        for row, prompt in zip(token_BQ, prompts, strict=True):
            row[: len(prompt)] = torch.tensor(prompt)
        length_B = torch.tensor([len(prompt) for prompt in prompts], device=self.device)
        self.cache = self._new_cache(len(prompts), slots)
        position_Q = torch.arange(longest, device=self.device)
        # Padding stands behind the prompt, so causality alone hides it from every real row.
        seen_BQS = (position_Q[None, :] <= position_Q[:, None]).expand(len(prompts), -1, -1)
        last = sorted({len(prompt) - 1 for prompt in prompts})
        place_B = torch.tensor([last.index(len(prompt) - 1) for prompt in prompts], device=self.device)
        logits_BLV = self._run(
            token_BQ.to(self.device),
            position_Q.expand(len(prompts), -1),
            seen_BQS,
            logits_to_keep=torch.tensor(last, device=self.device),
        )
        logits_BV = logits_BLV[torch.arange(len(prompts), device=self.device), place_B]
        features = self._collect()
        self.cache.length_B.copy_(length_B)
        return logits_BV, features, length_B

    def forward(self, tree: DraftTree, longest: int) -> tuple[Tensor, Tensor | None]:
        """logits_BNV and features_BNF; every node sees the committed rows, its ancestors and itself."""
        num_nodes = tree.token_BN.shape[1]
        length_B11 = self.cache.length_B[:, None, None]
        slot_S = torch.arange(longest + num_nodes, device=self.device)
        offset_BNS = (slot_S - length_B11).expand(-1, num_nodes, -1)
        ancestor_BNN = tree.ancestor_mask_BNN()
        in_tree_BNS = (offset_BNS >= 0) & (offset_BNS < num_nodes)
        own_BNS = ancestor_BNN.gather(2, offset_BNS.clamp(0, num_nodes - 1)) & in_tree_BNS
        position_BN = self.cache.length_B[:, None] + tree.depth_BN
        logits_BNV = self._run(tree.token_BN, position_BN, (offset_BNS < 0) | own_BNS)
        return logits_BNV, self._collect()

    def commit(self, path_BW: Tensor, num_B: Tensor) -> None:
        """Keep the key/value rows of the first num_B nodes of the path."""
        self.cache.commit(path_BW, num_B)

    def _new_cache(self, batch: int, slots: int) -> PositionCache:
        return PositionCache(batch, slots, self.device)

    def _run(self, token_BN: Tensor, position_BN: Tensor, seen_BNS: Tensor, **kwargs: Any) -> Tensor:
        view = _CacheView(self.cache, seen_BNS.shape[-1])
        output = self.model(
            input_ids=token_BN,
            position_ids=position_BN,
            attention_mask=self._mask(seen_BNS, position_BN),
            past_key_values=view,
            use_cache=True,
            **kwargs,
        )
        return output.logits

    def _mask(self, seen_BNS: Tensor, position_BN: Tensor) -> Any:
        types = set(getattr(self.config, "layer_types", None) or [])
        full = self._in_model_form(seen_BNS[:, None])
        if "sliding_attention" not in types:
            return full
        # A slot's position is its place in the cache, except in the tree, where siblings share one.
        slot_S = torch.arange(seen_BNS.shape[-1], device=self.device)
        offset_BS = slot_S - self.cache.length_B[:, None]
        new_BS = position_BN.gather(1, offset_BS.clamp(0, position_BN.shape[1] - 1))
        position_BS = torch.where(offset_BS < 0, slot_S, new_BS)
        near_BNS = position_BN[:, :, None] - position_BS[:, None, :] < self.config.sliding_window
        return {"full_attention": full, "sliding_attention": self._in_model_form((seen_BNS & near_BNS)[:, None])}

    def _in_model_form(self, seen: Tensor) -> Tensor:
        if self.attention == "sdpa":
            return seen
        return torch.where(seen, 0.0, torch.finfo(self.dtype).min).to(self.dtype)

    def _layers(self) -> torch.nn.ModuleList:
        decoder = self.model.get_decoder()
        decoder = getattr(decoder, "language_model", decoder)
        return decoder.layers

    def _catch(self, index: int):
        def hook(module: torch.nn.Module, args: Any, output: Any) -> None:
            self._features[index] = output[0] if isinstance(output, tuple) else output

        return hook

    def _collect(self) -> Tensor | None:
        if not self._feature_layers:
            return None
        return torch.cat([self._features[index] for index in self._feature_layers], dim=-1)


class _CacheView:
    """What transformers' attention layers call of a cache: put new rows, get back all rows in view."""

    is_compileable = False

    def __init__(self, cache: PositionCache, num_slots: int):
        self.cache, self.num_slots = cache, num_slots

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.cache.write(layer_idx, key, value)
        return self.cache.view(layer_idx, self.num_slots)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0  # positions are always given


def refuse_unsupported(config: Any) -> None:
    """ValueError for targets whose state cannot be verified as a tree of key/value rows."""
    other = sorted(set(getattr(config, "layer_types", None) or []) - SUPPORTED_LAYERS)
    if other:
        raise ValueError(
            f"model.target has {', '.join(other)} layers: engine=hf keeps key/value rows alone and cannot roll a "
            "recurrent state back to an accepted path"
        )


def resolve_attention(asked: str, config: Any) -> str:
    """`auto` is SDPA, or eager where the architecture has no SDPA path (gpt-oss: attention sinks)."""
    no_sdpa = config.model_type in {"gpt_oss"}
    if asked == "sdpa" and no_sdpa:
        raise ValueError(f"engine.attention=sdpa: {config.model_type} has no SDPA path. Allowed: auto, eager")
    return ("eager" if no_sdpa else "sdpa") if asked == "auto" else asked
