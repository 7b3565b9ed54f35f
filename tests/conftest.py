"""A tiny model pair on disk, so that the whole pipeline runs for real in seconds."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

# Two test processes on two cores: more threads would wait for each other. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import tests.interpreter  # noqa: F401  # before any test imports a kernel

ROOT = Path(__file__).resolve().parent.parent
VOCABULARY = 300


@pytest.fixture(scope="session")
def tiny_pair(tmp_path_factory) -> dict[str, Path]:
    """A random Llama with a byte tokenizer, and a random DFlash drafter that fits it: {"target": ..., "drafter": ...}."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

    from harness.drafters.checkpoint import DrafterConfig, write_checkpoint
    from harness.drafters.network import DFlashNetwork

    folder = tmp_path_factory.mktemp("pair")
    torch.manual_seed(0)
    shape = dict(
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        vocab_size=VOCABULARY,
        max_position_embeddings=512,
    )
    config = LlamaConfig(**shape, num_hidden_layers=3, eos_token_id=1, bos_token_id=0, initializer_range=0.15)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / "target")
    (folder / "target/generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))

    vocab = {token: i for i, token in enumerate(["<s>", "</s>", "<end>", *sorted(pre_tokenizers.ByteLevel.alphabet())])}
    vocab |= {f"<x{i}>": i for i in range(len(vocab), VOCABULARY)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "target/tokenizer.json"))
    settings = dict(tokenizer_class="PreTrainedTokenizerFast", bos_token="<s>", eos_token="</s>")
    (folder / "target/tokenizer_config.json").write_text(json.dumps(settings))

    network = Qwen3Config(**shape, num_hidden_layers=1)
    drafter = DrafterConfig(
        network=network, block_size=5, mask_token_id=0, target_layer_ids=[0, 1], num_target_layers=3
    )
    state = DFlashNetwork(network, 64).state_dict()
    write_checkpoint(folder / "drafter", drafter, state, torch.float32)
    return {"target": folder / "target", "drafter": folder / "drafter"}


@pytest.fixture
def prompts(tmp_path) -> Path:
    """Six prompts of the user's own."""
    path = tmp_path / "prompts.jsonl"
    lines = [json.dumps({"id": f"p{i}", "prompt": f"prompt number {i}: say something"}) for i in range(6)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def harness(tiny_pair, prompts, tmp_path, monkeypatch):
    """Run the command line on the tiny pair and the six prompts, in this process. Returns status, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def words(*overrides: str) -> list[str]:
        dtype = [] if "engine=openai" in overrides else ["engine.dtype=float32"]
        return [
            f"model.target={tiny_pair['target']}", f"model.drafter={tiny_pair['drafter']}", "task=jsonl",
            f"task.path={prompts}", "tracking=none", *dtype, "sampling.max_new_tokens=24",
            f"run.output_dir={tmp_path / 'outputs'}", *overrides,
        ]  # fmt: skip

    def run(*overrides: str, check: bool = True) -> subprocess.CompletedProcess:
        from harness.__main__ import main

        out, err = io.StringIO(), io.StringIO()
        handler = signal.getsignal(signal.SIGTERM)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(words(*overrides))
        signal.signal(signal.SIGTERM, handler)
        if check:
            assert status == 0, out.getvalue() + err.getvalue()
        return subprocess.CompletedProcess(overrides, status, out.getvalue(), err.getvalue())

    run.command = lambda *overrides: [sys.executable, "-m", "harness", *words(*overrides)]
    run.outputs = tmp_path / "outputs"
    return run


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "160"}
