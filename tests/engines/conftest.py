"""Tiny random checkpoints of the architectures that engine=hf claims, and a drafter that knows the future."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

VOCABULARY = 101
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # the same tests hold on both


def tiny_config(kind: str):
    from transformers import AutoConfig

    common = dict(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        eos_token_id=1,
        bos_token_id=0,
        pad_token_id=None,
        initializer_range=0.2,
    )
    special = {
        "llama": dict(head_dim=8),
        "qwen3": dict(head_dim=8),
        "qwen3_moe": dict(head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16),
        "gpt_oss": dict(
            head_dim=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        ),
        "deepseek_v3": dict(
            num_key_value_heads=4,
            q_lora_rank=16,
            kv_lora_rank=8,
            qk_rope_head_dim=8,
            qk_nope_head_dim=8,
            v_head_dim=12,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            n_group=1,
            topk_group=1,
            first_k_dense_replace=1,
        ),
    }
    return AutoConfig.for_model(kind, **{**common, **special[kind]})


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def make(kind: str) -> Path:
        if kind not in made:
            from transformers import AutoModelForCausalLM

            torch.manual_seed(0)
            made[kind] = tmp_path_factory.mktemp(kind)
            AutoModelForCausalLM.from_config(tiny_config(kind)).save_pretrained(made[kind])
        return made[kind]

    return make


class Oracle:
    """Proposes the known continuation of each sample, at a random rank, so that deep and non-first paths are accepted.

    `futures[b]` is what autoregressive decoding gave; the place is known from the rows that `extend` counted.
    """

    def __init__(self, block_size: int, prompts: list[list[int]], futures: list[list[int]], seed: int = 0):
        self.block_size, self.futures = block_size, futures
        self.lengths = [len(prompt) for prompt in prompts]
        self.generator = torch.Generator().manual_seed(seed)

    def new_state(self, batch: int, slots: int):
        self.features: list[list[torch.Tensor]] = [[] for _ in range(batch)]
        return torch.zeros(batch, dtype=torch.int64, device=DEVICE)

    def extend(self, state, feature_BQF, num_B) -> None:
        for b, num in enumerate(num_B.tolist()):
            self.features[b].append(feature_BQF[b, :num])
        state += num_B

    def propose(self, state, root_B, *, num_slots):
        logits = torch.randn(len(root_B), self.block_size - 1, VOCABULARY, generator=self.generator)
        for b, future in enumerate(self.futures):
            done = int(state[b]) - self.lengths[b]  # output tokens before the root
            for depth, token in enumerate(future[done + 1 : done + self.block_size]):
                logits[b, depth, token] = 2.5 + torch.rand((), generator=self.generator)
        return logits.to(DEVICE)


@pytest.fixture(scope="session")
def oracle() -> type[Oracle]:
    return Oracle
