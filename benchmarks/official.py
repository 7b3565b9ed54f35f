"""The official DDTree loop beside ours: imported from the user's checkout, run unchanged, none of its code here.

    git clone https://github.com/liranringel/ddtree PATH && git -C PATH checkout c96427a185677bf4133ed865dd1626a5041aef9b
    python -m benchmarks.decode run --official PATH ...

It needs transformers 5.17: from 5.18 on, `DynamicCache.crop(length)`, which it calls, is refused. Set from outside:

- `loguru` and `datasets` get stand-ins where they are not installed (it logs two lines, and we load no data with it);
- its drafter runs with SDPA: it asks for flash-attn, which has to be built, and its own target runs with SDPA too;
- without CUDA its clock does not synchronise; with CUDA its C++ cache compaction is built, as its benchmark does;
- with `noise="coupled"` its `sample` draws with the noise of `harness.decoding`, keyed by the output index, so that
  in float32 its output must equal ours token for token at any temperature. Leave it off where time is measured.
"""

import copy
import hashlib
import importlib
import importlib.util
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import Tensor

from harness.drafters.dflash import DFlashDrafter

COMMIT = "c96427a185677bf4133ed865dd1626a5041aef9b"
FILES = {
    "ddtree.py": "8d0ecd9d07a7266d3825eefd176811502313a0da7cedfcdc8aec1a4971c3a99b",
    "dflash.py": "297e5126980ff7bad7650ce7ede9dea9b11b1b3485154ab5b9a2a3f899b33159",
    "model/dflash.py": "17ab761ba665a41965b27bdc3a1c6795d1b07b285ec1f0789ad146f2ee9c1cc5",
    "model/utils.py": "00b91431932c94b87443d9e2c0cf4d743846bd6c9666c9c736008df7bbd0faf1",
}
Method = Literal["autoregressive", "dflash", "ddtree"]


@dataclass(frozen=True)
class OfficialGeneration:
    """One generation, in the harness's definitions.

    A round is counted when it emits a token that reaches the output. The loop decodes one more when the cap is reached
    exactly: that one, and its time, are left out. `round_s` starts at the loop's own clock, behind prefill; the first
    round also projects the prompt for the drafter.
    """

    output_ids: list[int]  # the prompt left out, the first token from prefill, the stop id included
    emitted: list[int]  # tokens of each round, after the cut
    round_s: list[float]
    ttft_s: float
    stage_s: dict[str, float] = field(default_factory=dict)  # its own stage timers, all rounds together

    @property
    def decode_s(self) -> float:
        return sum(self.round_s)


class OfficialLoop:
    """Target and drafter as its benchmark has them. One prompt at a time, as its loop is."""

    def __init__(
        self,
        folder: Path,
        target: torch.nn.Module,
        make_drafter: Callable[[Any], torch.nn.Module],
        noise: Literal["own", "coupled"] = "own",
    ):
        """target: a transformers model with SDPA on its device. make_drafter: its drafter's class -> the drafter."""
        self.ddtree, self.dflash, model = import_checkout(folder)
        self.target = target.eval()
        self.drafter: Any = make_drafter(model.DFlashDraftModel).eval()
        self.device = self.drafter.device
        self.compiled_compaction = False
        if self.device.type == "cuda":
            self.ddtree.maybe_enable_cpp_compact(True)
            self.compiled_compaction = self.ddtree.load_cpp_compact_module() is not None
        else:
            self.ddtree.cuda_time = self.dflash.cuda_time = time.perf_counter
        self._own_sample = model.sample
        self._noise = CoupledNoise(self.target, self._own_sample) if noise == "coupled" else None

    @classmethod
    def load(
        cls,
        folder: Path,
        target: Path,
        drafter: Path,
        *,
        dtype: torch.dtype,
        device: str,
        noise: Literal["own", "coupled"] = "own",
    ) -> "OfficialLoop":
        """Of checkpoint folders."""
        from transformers import AutoModelForCausalLM
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        asked: dict[str, Any] = dict(attn_implementation="sdpa", dtype=dtype)
        model = AutoModelForCausalLM.from_pretrained(target, **asked).to(device)
        return cls(folder, model, lambda kind: kind.from_pretrained(drafter, **asked).to(device), noise)

    @classmethod
    def of(cls, folder: Path, target: torch.nn.Module, drafter: DFlashDrafter) -> "OfficialLoop":
        """Of models in memory: the target itself, and a copy of our drafter's weights, whose names are the same."""
        weight, ours = drafter.network.fc.weight, drafter.config
        config = copy.deepcopy(ours.network)
        config.block_size, config.num_target_layers = ours.block_size, ours.num_target_layers
        config.dflash_config = {"mask_token_id": ours.mask_token_id, "target_layer_ids": ours.target_layer_ids}

        def make(kind: Any) -> torch.nn.Module:
            model = kind._from_config(config, attn_implementation="sdpa", dtype=weight.dtype).to(weight.device)
            model.load_state_dict(drafter.network.state_dict())
            return model

        return cls(folder, target, make)

    def generate(
        self,
        prompt_ids: list[int],
        *,
        method: Method,
        temperature: float,
        max_new_tokens: int,
        stop_ids: list[int],
        stream: int = 0,
        tree_budget: int | None = None,
    ) -> OfficialGeneration:
        """`stream` seeds torch's generator, or keys the coupled noise. Its autoregressive method is a block of 1."""
        asked: dict[str, Any] = dict(
            model=self.drafter,
            target=self.target,
            input_ids=torch.tensor([prompt_ids], device=self.device),
            mask_token_id=self.drafter.mask_token_id,
            max_new_tokens=max_new_tokens,
            block_size=1 if method == "autoregressive" else self.drafter.block_size,
            stop_token_ids=stop_ids or None,
            temperature=temperature,
        )
        torch.manual_seed(stream)
        sample = self._noise.start(stream, len(prompt_ids)) if self._noise else self._own_sample
        self.ddtree.sample = self.dflash.sample = sample
        if method == "ddtree":
            found = self.ddtree.ddtree_generate(**asked, tree_budget=tree_budget)
        else:
            found = self.dflash.dflash_generate(**asked)
        return read(found, max_new_tokens, stop_ids)

    def facts(self) -> dict[str, Any]:
        return {
            "commit": COMMIT,
            "block_size": self.drafter.block_size,
            "attention": {"target": "sdpa", "drafter": "sdpa"},
            "compiled_cache_compaction": self.compiled_compaction,
            "noise": "coupled" if self._noise else "own",
        }


class CoupledNoise:
    """A `sample` that takes argmax(logits / T + Gumbel noise of (stream, output index, token id)).

    The loop does not tell `sample` where in the output it stands; the positions that the target is called with do.
    """

    def __init__(self, target: torch.nn.Module, own_sample: Any):
        self._own_sample = own_sample
        self._stream, self._prompt = 0, 0
        self._position_N = torch.zeros(0, dtype=torch.int64)
        target.register_forward_pre_hook(self._look, with_kwargs=True)

    def start(self, stream: int, prompt_tokens: int) -> "CoupledNoise":
        self._stream, self._prompt = stream, prompt_tokens
        return self

    def __call__(self, logits_1NV: Tensor, temperature: float = 0.0) -> Tensor:
        if temperature < 1e-5:
            return self._own_sample(logits_1NV, temperature)
        from harness.decoding.noise import gumbel

        rows = logits_1NV.shape[1]
        index_N = self._position_N[-rows:] + 1 - self._prompt
        stream_N = torch.full_like(index_N, self._stream)
        scores_NV = logits_1NV[0].float() / temperature
        return (scores_NV + gumbel(stream_N, index_N, scores_NV.shape[-1])).argmax(-1)[None]

    def _look(self, module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        self._position_N = kwargs["position_ids"][0]


def read(found: Any, max_new_tokens: int, stop_ids: list[int]) -> OfficialGeneration:
    """Its answer in the harness's definitions. Raises ValueError when ids are missing from the output.

    It takes every token that equals the mask id out of the output, so counts would be wrong where a model emits one.
    """
    output = found.output_ids[0, found.num_input_tokens :].tolist()
    decoded = 1 + sum(found.acceptance_lengths)
    if not output or (output[-1] not in stop_ids and len(output) != min(max_new_tokens, decoded)):
        raise ValueError(f"official loop: {decoded} tokens decoded, {len(output)} left in the output")
    emitted: list[int] = []
    for accepted in found.acceptance_lengths:
        emitted.append(min(accepted, len(output) - 1 - sum(emitted)))
    emitted = [tokens for tokens in emitted if tokens]
    ends = [0.0, *found.round_timestamps[: len(emitted)]]
    return OfficialGeneration(
        output_ids=output,
        emitted=emitted,
        round_s=[after - before for before, after in pairwise(ends)],
        ttft_s=found.time_to_first_token,
        stage_s=dict(found.stage_times),
    )


def import_checkout(folder: Path) -> tuple[ModuleType, ModuleType, ModuleType]:
    """Its modules `ddtree`, `dflash` and `model`. Raises ValueError when the folder is not a checkout of COMMIT."""
    for name, expected in FILES.items():
        file = folder / name
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() != expected:
            raise ValueError(
                f"--official={folder}: {name} is not that of commit {COMMIT[:7]}. Make the folder with: "
                f"git clone https://github.com/liranringel/ddtree PATH && git -C PATH checkout {COMMIT}"
            )
    _stand_in("loguru", logger=logging.getLogger("official"))
    _stand_in("datasets", load_dataset=None, Features=None, Sequence=None, Value=None)
    sys.path.insert(0, str(folder))
    try:
        return tuple(importlib.import_module(name) for name in ("ddtree", "dflash", "model"))  # type: ignore
    finally:
        sys.path.remove(str(folder))


def _stand_in(name: str, **members: Any) -> None:
    """An empty module of that name, where it is not installed."""
    if sys.modules.get(name) or (name not in sys.modules and importlib.util.find_spec(name)):
        return
    module = ModuleType(name)
    vars(module).update(members)
    sys.modules[name] = module
