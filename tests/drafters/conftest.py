"""A chat model with sixteen words, random and in float32: small enough to check every token against a plain forward."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch


@pytest.fixture(scope="session")
def tiny_chat(tmp_path_factory) -> SimpleNamespace:
    """target, tokenizer and the folder that holds both. Token 1 ends a turn."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = {word: i for i, word in enumerate(["<pad>", "<end>", "USER", "BOT", *(f"w{i}" for i in range(12))])}
    raw = Tokenizer(models.WordLevel(words, unk_token="w0"))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", pad_token="<pad>", unk_token="w0")
    tokenizer.chat_template = "w1 USER {{ messages[0]['content'] }} <end> {% if add_generation_prompt %}BOT {% endif %}"
    torch.manual_seed(5)
    config = LlamaConfig(
        hidden_size=32, intermediate_size=48, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=16,
        num_hidden_layers=4, max_position_embeddings=256, eos_token_id=1, bos_token_id=0, pad_token_id=0,
        initializer_range=0.3, tie_word_embeddings=True,
    )  # fmt: skip
    target = LlamaForCausalLM(config).eval().requires_grad_(False)
    folder = tmp_path_factory.mktemp("chat")
    target.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return SimpleNamespace(target=target, tokenizer=tokenizer, folder=folder)


WORDS = [
    "device=cpu", "generate.tokens=700", "generate.batch_size=32", "generate.max_length=48",
    "generate.max_user_tokens=24", "generate.shard_tokens=500", "network.num_layers=2",
    "network.intermediate_size=48", "network.block_size=4", "network.target_layer_ids=[0,2]", "train.seconds=1e9",
    "train.steps=6", "train.batch_size=4", "train.anchors=4", "train.warmup_steps=2", "train.log_every=2",
    "train.eval_every=3", "heldout.every=4", "heldout.conversations=3", "heldout.anchors=4",
    "heldout.budgets=[3,8]",
]  # fmt: skip


@pytest.fixture
def overrides(tiny_chat, tmp_path) -> list[str]:
    """A recipe that runs in seconds."""
    return [f"target={tiny_chat.folder}", f"work_dir={tmp_path / 'work'}", f"output_dir={tmp_path / 'best'}", *WORDS]


@pytest.fixture(scope="session")
def generated(tiny_chat) -> SimpleNamespace:
    """A generator after some work, and the conversations that it finished."""
    from harness.drafters.generate import Generator
    from harness.drafters.recipe import checked, compose

    generator = Generator(tiny_chat.target, tiny_chat.tokenizer, checked(compose(WORDS)).generate, seed=3)
    conversations: list = []
    for some in generator.conversations():
        conversations += some
        if len(conversations) >= 40:
            break
    return SimpleNamespace(generator=generator, conversations=conversations)


@pytest.fixture
def shards(generated, tmp_path) -> Path:
    """The work folder of `overrides` with all the text in it that the recipe asks for."""
    from harness.drafters.corpus import write_shard

    write_shard(tmp_path / "work/shards", generated.conversations)
    return tmp_path / "work/shards"
