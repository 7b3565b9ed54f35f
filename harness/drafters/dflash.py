"""The DFlash drafter as the engine uses it: features in, marginals of the next block out.

Shapes: B batch, Q rows, F width of the concatenated target features, D draft depth, V vocabulary, S slots.

A block is [last committed token, mask x (block_size - 1)] at the positions behind the context. Its rows see the
context and each other (not causal); the LM head's logits at block positions 1.. are the marginals of the next tokens.
The context holds features of the tokens *before* the root, because the root has not been through the target yet: its
length is that of the target's committed KV. Source: DFlash, arXiv 2602.06036; public checkpoints z-lab/*-DFlash*.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig

from harness.decoding.cache import PositionCache
from harness.drafters.checkpoint import KEY, DrafterConfig, check_fit, read_config, read_weights
from harness.drafters.network import DFlashNetwork, KeyValue


@dataclass
class DrafterState:
    """Context keys and values. Rows behind the context are scratch: the block is written there and overwritten."""

    cache: PositionCache

    @property
    def length(self) -> Tensor:
        """int64 [B]: context rows, equal to the target's committed KV length."""
        return self.cache.length_B


class DFlashDrafter(nn.Module):
    """`embedding` and `lm_head` are the target's own modules: shared, not copied, not in this module's state dict."""

    def __init__(
        self, config: DrafterConfig, embedding: Callable[[Tensor], Tensor], lm_head: Callable[[Tensor], Tensor]
    ):
        super().__init__()
        self.config = config
        self.block_size = config.block_size
        self.target_layer_ids = config.target_layer_ids
        self.num_features = len(config.target_layer_ids) * config.network.hidden_size
        self.network = DFlashNetwork(config.network, self.num_features)
        self.shared = (embedding, lm_head)  # the target's; in a tuple, so that nn.Module does not register them

    @classmethod
    def load(
        cls,
        path: Path,
        *,
        target_config: PretrainedConfig,
        embedding: nn.Module,
        lm_head: nn.Module,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> "DFlashDrafter":
        """Load a checkpoint in the public layout for this target.

        Hidden state of target layer i means its output (transformers' hidden_states[i + 1]). Raises ValueError naming
        `speculative.drafter` when the checkpoint does not fit the target or holds what is not supported.
        """
        config = read_config(Path(path))
        check_fit(config, target_config, cast(Tensor, embedding.weight).shape[0])
        drafter = cls(config, embedding, lm_head)
        state = read_weights(Path(path))
        expected = drafter.network.state_dict()
        missing, unexpected = sorted(expected.keys() - state.keys()), sorted(state.keys() - expected.keys())
        wrong = sorted(k for k in expected.keys() & state.keys() if expected[k].shape != state[k].shape)
        for what, names in (("lacks", missing), ("has unexpected", unexpected), ("has wrongly shaped", wrong)):
            if names:
                more = f" and {len(names) - 3} more" if len(names) > 3 else ""
                raise ValueError(f"{KEY}: {path} {what} weights {', '.join(names[:3])}{more}")
        drafter.network.load_state_dict(state)
        return drafter.to(device=device, dtype=dtype).eval().requires_grad_(False)

    def new_state(self, batch: int, slots: int) -> DrafterState:
        """slots: at least the longest context plus max(block_size, rows of one `extend`)."""
        return DrafterState(PositionCache(batch, slots, self.network.fc.weight.device))

    @torch.no_grad()
    def extend(self, state: DrafterState, feature_BQF: Tensor, num_B: Tensor) -> None:
        """Add newly committed tokens to the context: rows 0..num_B[b]-1 of feature_BQF (any float dtype, [B, Q, F]).

        For prefill Q is the right-padded prompt length, in a round the width of the accepted path. num_B: int64 [B].
        Rows at and beyond num_B may hold anything finite.
        """
        cache = state.cache
        position_BQ = cache.length_B[:, None] + torch.arange(feature_BQF.shape[1], device=feature_BQF.device)
        context = self.network.context(feature_BQF.to(self.network.fc.weight.dtype), position_BQ)
        for index, (key, value) in enumerate(context):
            cache.write(index, key, value)
        cache.length_B += num_B

    @torch.no_grad()
    def propose(
        self, state: DrafterState, root_B: Tensor, depth: int | None = None, num_slots: int | None = None
    ) -> Tensor:
        """Logits of the next tokens' marginals, [B, D, V], as the LM head gives them; D = `depth`, or block_size - 1.

        root_B: int64 [B], the last committed token. num_slots: attend within the first so many slots only (a bound on
        every length + block_size that the caller knows); default all. The state's length is left as it was.
        """
        embedding, lm_head = self.shared
        cache, block_size = state.cache, self.block_size
        depth = block_size - 1 if depth is None else depth
        if not 1 <= depth < block_size:
            raise ValueError(
                f"speculative.depth: {depth} is outside 1..{block_size - 1}, the drafter's block size less one"
            )
        num_slots = cache.slots if num_slots is None else num_slots
        token_BQ = root_B.new_full((root_B.shape[0], block_size), self.config.mask_token_id)
        token_BQ[:, 0] = root_B
        position_BQ = cache.length_B[:, None] + torch.arange(block_size, device=root_B.device)
        end_B11 = (cache.length_B + block_size)[:, None, None]
        mask_B11S = (torch.arange(num_slots, device=root_B.device) < end_B11)[:, None]

        def join(index: int, block: KeyValue) -> KeyValue:
            cache.write(index, *block)  # behind the context: scratch that the next extend overwrites
            return cache.view(index, num_slots)

        embedding_BQH = embedding(token_BQ).to(self.network.fc.weight.dtype)
        hidden_BQH = self.network.block(embedding_BQH, position_BQ, mask_B11S, join)
        return lm_head(hidden_BQH[:, 1 : depth + 1])
