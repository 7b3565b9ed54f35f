"""Transformers' own forward over a finished text in float32: the law of every token that a server emitted.

Shapes: T output tokens, V vocabulary. No cache, no mask, no code of the serving path: one causal forward.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Prefill:
    """Raises ValueError when transformers cannot load the target in float32 on the device."""

    def __init__(self, target: Path, device: str):
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
            self.model = model.eval().to(device)
        except (OSError, ValueError, RuntimeError) as error:  # no such architecture, remote code, out of memory
            raise ValueError(
                f"model.target={target}: the certificate of a server holds its tokens against a float32 forward of "
                f"transformers, and the target cannot be loaded for it on {device}: {error}"
            ) from error
        self.device = device

    def logits_TV(self, prompt: list[int], output: list[int]) -> Tensor:
        """float32 on the CPU; row t is what output token t was drawn from."""
        text = torch.tensor([prompt + output[:-1]], device=self.device)
        with torch.inference_mode():
            logits_1TV = self.model(text, logits_to_keep=len(output), use_cache=False).logits
        return logits_1TV[0].cpu()
