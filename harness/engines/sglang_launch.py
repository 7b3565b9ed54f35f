"""From model, hardware, mode and sampling to the words and variables that start SGLang, and what it cannot honour.

Source of the options: SGLang 0.5.17, `server_args.py` and `arg_groups/speculative_hook.py`; of what its samplers do:
`layers/sampler.py`, `speculative/dflash_utils.py`, `speculative/eagle_utils.py`.
"""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.config import HardwareConfig
from harness.engines.base import Setup
from harness.prompts import read_json
from harness.speculative.autoregressive import Autoregressive
from harness.speculative.ddtree import DDTree
from harness.speculative.dflash import DFlash
from harness.speculative.eagle3 import Eagle3
from harness.speculative.ngram import Ngram

if TYPE_CHECKING:
    from harness.engines.sglang import SGLangEngine

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / ".venv-sglang" / "bin" / "python"  # where `make install-sglang` puts it
PYTHON_VARIABLE = "DDTREE_SGLANG_PYTHON"
CPU_TOKENS = 16384
# So little that no token falls to it, and yet a min-p: then SGLang applies top-k, top-p and min-p one after the other, as
# the harness and every speculative mode do. Without one it measures top-p on the distribution before top-k.
NO_MIN_P = 1e-12
PACKAGES = ("sglang", "torch", "transformers", "sglang-kernel", "sgl-kernel", "ddtree-eval")


@dataclass(frozen=True)
class Launch:
    command: list[str]
    environment: dict[str, str]
    resolved: dict[str, Any]  # what "auto" came to


def launch(engine: "SGLangEngine", setup: Setup, python: str) -> Launch:
    """For a setting that `refuse` lets through. Starts nothing."""
    hardware, cpu = setup.hardware, setup.hardware.device == "cpu"
    attention = engine.attention if engine.attention != "auto" else "torch_native" if cpu else "triton"
    overlap = engine.overlap_schedule and not cpu
    graphs = engine.cuda_graphs and not cpu
    words = [
        *(python, "-m", "sglang.launch_server", "--model-path", str(setup.target)),
        *("--dtype", _dtype_word(engine, cpu), "--attention-backend", attention, "--page-size", "1"),
        *("--tp-size", str(hardware.count), "--random-seed", str(setup.seed)),
        *("--max-running-requests", str(engine.concurrency), "--stream-interval", "1"),
        *("--incremental-streaming-output", "--log-level", "info"),
        *(["--trust-remote-code"] if engine.trust_remote_code else []),
        *([] if overlap else ["--disable-overlap-schedule"]),
        *([] if engine.radix_cache else ["--disable-radix-cache"]),
    ]
    environment = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}  # every file is here already
    if cpu:
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
        words += ["--device", "cpu", "--sampling-backend", "pytorch", "--skip-server-warmup"]
        words += ["--max-total-tokens", str(engine.max_total_tokens or CPU_TOKENS)]
    elif engine.max_total_tokens:
        words += ["--max-total-tokens", str(engine.max_total_tokens)]
    words += ["--cuda-graph-max-bs-decode", str(engine.concurrency)] if graphs else ["--disable-cuda-graph"]
    for option, value in (("mem-fraction-static", engine.memory_fraction), ("context-length", engine.context_length)):
        words += [] if value is None else [f"--{option}", str(value)]
    if hardware.count > 1:
        more, variables = between_devices(hardware)
        words, environment = words + more, environment | variables
    more, variables = speculation(setup)
    if min_p_to_send(setup) != setup.sampling.min_p:
        words += ["--sampling-backend", "flashinfer"]
    resolved = {
        "dtype": resolved_dtype(engine, setup),
        "attention": attention,
        "graph_mode": f"cuda graphs up to {engine.concurrency}" if graphs else "none",
        "overlap_schedule": overlap,
        "tensor_parallel": hardware.count,
        "verifier": setup.mode.verifier if isinstance(setup.mode, DDTree) else "sglang",
        "seeded_by": "request" if isinstance(setup.mode, DDTree) else "server",
    }
    return Launch(
        command=[*words, *more, *engine.arguments],
        environment={**environment, **variables, **engine.environment},
        resolved=resolved,
    )


def min_p_to_send(setup: Setup) -> float:
    """The asked one, or NO_MIN_P where it is needed to have the filters applied one after the other."""
    sampling = setup.sampling
    both = isinstance(setup.mode, Autoregressive) and sampling.top_k > 0 and sampling.top_p < 1
    return NO_MIN_P if both and not sampling.min_p else sampling.min_p


def refuse(engine: "SGLangEngine", setup: Setup) -> None:
    """ValueError for every setting that SGLang would take and not honour, or not take."""
    mode, sampling, cpu = setup.mode, setup.sampling, setup.hardware.device == "cpu"
    name = type(mode).__name__.lower()
    if mode.verifier != "kernel" and not isinstance(mode, DDTree):
        raise ValueError(
            f"speculative.verifier={mode.verifier}: in engine=sglang only ddtree brings verifiers of its own; the mode "
            f"{name} is SGLang's. Allowed: kernel"
        )
    if cpu and isinstance(mode, DFlash):
        raise ValueError("speculative=dflash: SGLang runs DFLASH on CUDA only. On hardware=cpu use ddtree or engine=hf")
    if cpu and isinstance(mode, Eagle3 | Ngram) and sampling.temperature > 0:
        raise ValueError(
            f"sampling.temperature={sampling.temperature:g}: on a CPU SGLang's {name} decodes greedily whatever the "
            "temperature. Allowed on hardware=cpu: 0"
        )
    if sampling.min_p > 0 and sampling.temperature > 0 and isinstance(mode, DFlash | Eagle3 | Ngram):
        raise ValueError(f"sampling.min_p={sampling.min_p:g}: SGLang's {name} ignores min-p. Allowed: 0")
    if cpu and isinstance(mode, Autoregressive) and sampling.top_k > 0 and sampling.top_p < 1:
        raise ValueError(
            f"sampling.top_p={sampling.top_p:g} with sampling.top_k={sampling.top_k}: on a CPU SGLang measures top-p "
            "before top-k, not after it. Allowed here: one of the two"
        )
    if cpu and engine.dtype in ("float16", "bfloat16"):
        raise ValueError(f"engine.dtype={engine.dtype}: SGLang's draft on a CPU wants float32. Allowed: auto, float32")
    if setup.hardware.count > 1 and setup.hardware.interconnect == "none":
        raise ValueError(
            f"hardware.interconnect=none: {setup.hardware.count} devices are joined by something. Allowed: pcie, nvlink"
        )
    if isinstance(mode, DDTree) and setup.drafter is not None:
        config = read_json(setup.drafter / "config.json")
        depth = (config.get("block_size") or (config.get("dflash_config") or {}).get("block_size") or 1) - 1
        if mode.tree_budget < depth:
            raise ValueError(
                f"speculative.tree_budget={mode.tree_budget}: SGLang's key/value reserve holds the drafter's block, so "
                f"with this drafter the budget must be at least {depth}"
            )


def speculation(setup: Setup) -> tuple[list[str], dict[str, str]]:
    mode, drafter = setup.mode, str(setup.drafter)
    if isinstance(mode, DDTree):
        words = ["--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", drafter]
        words += ["--speculative-num-draft-tokens", str(mode.tree_budget + 1)]
        return words, {"DDTREE_VERIFIER": mode.verifier, "DDTREE_SPINE": str(int(mode.spine))}
    if isinstance(mode, DFlash):
        return ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", drafter], {}
    if isinstance(mode, Eagle3):
        words = ["--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", drafter]
        words += ["--speculative-num-steps", str(mode.num_steps), "--speculative-eagle-topk", str(mode.top_k)]
        return [*words, "--speculative-num-draft-tokens", str(mode.num_draft_tokens)], {}
    if isinstance(mode, Ngram):
        words = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(mode.num_draft_tokens)]
        return [*words, "--speculative-ngram-max-trie-depth", str(mode.max_trie_depth)], {}
    assert isinstance(mode, Autoregressive)
    return [], {}


def between_devices(hardware: HardwareConfig) -> tuple[list[str], dict[str, str]]:
    """NVLink: SGLang's own choices. PCIe: its all-reduce kernels want NVLink beyond two devices, so NCCL alone."""
    if hardware.interconnect == "nvlink":
        return [], {}
    words = ["--disable-custom-all-reduce", "--enforce-disable-flashinfer-allreduce-fusion"]
    return words, {"NCCL_NVLS_ENABLE": "0", "NCCL_P2P_LEVEL": "SYS"}


def resolved_dtype(engine: "SGLangEngine", setup: Setup) -> str:
    if engine.dtype != "auto":
        return engine.dtype
    if setup.hardware.device == "cpu":
        return "float32"
    config = read_json(setup.target / "config.json")
    parts = (config, config.get("text_config") or {})
    return str(next((part[key] for part in parts for key in ("dtype", "torch_dtype") if part.get(key)), "auto"))


def _dtype_word(engine: "SGLangEngine", cpu: bool) -> str:
    return "float32" if cpu and engine.dtype == "auto" else engine.dtype


def interpreter(asked: str | None) -> str:
    """engine.python, else $DDTREE_SGLANG_PYTHON, else that of `make install-sglang`, else this one if it has SGLang."""
    for value, key in ((asked, "engine.python"), (os.environ.get(PYTHON_VARIABLE), PYTHON_VARIABLE)):
        if value:
            path = Path(value).expanduser()
            if not path.is_file():
                raise ValueError(f"{key}={value}: no such file. `make install-sglang` makes {INSTALLED}")
            return str(path.absolute())  # not resolved: a venv's python is a link, and the link decides what it imports
    if INSTALLED.is_file():
        return str(INSTALLED)
    if find_spec("sglang"):
        return sys.executable
    raise ValueError(
        "engine.python: SGLang pins torch and transformers, so it has an environment of its own, and there is none yet. Run "
        "`make install-sglang`, or name the interpreter of one with engine.python=PATH"
    )


ASK = """
import importlib.metadata, importlib.util, json, sys
found = {"python": sys.version.split()[0]}
for name in sys.argv[1:]:
    try:
        found[name] = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        pass
spec = importlib.util.find_spec("harness")
print(json.dumps([found, list(spec.submodule_search_locations)[0] if spec else None]))
"""


def versions(python: str, plugin: bool = False) -> dict[str, str]:
    """The packages of that environment that decide results. Raises ValueError when it cannot serve.

    plugin: this project's plugin is needed there, and out of this very clone: `versions.code` in run.json is its hash.
    """
    done = subprocess.run([python, "-c", ASK, *PACKAGES], capture_output=True, text=True, cwd=ROOT / "outputs")
    if done.returncode:
        raise ValueError(f"engine.python={python} does not run: {done.stderr.strip()[-300:]}")
    found, harness = json.loads(done.stdout)
    if plugin and (harness is None or Path(harness).resolve() != ROOT / "harness"):
        raise ValueError(
            f"engine.python={python}: DDTREE is this project's plugin, and that environment "
            f"{'does not have it' if harness is None else f'has it from {harness}'}. Run `make install-sglang` in {ROOT}"
        )
    if "sglang" not in found:
        raise ValueError(f"engine.python={python}: SGLang is not installed there. Run `make install-sglang`")
    if {"sglang-kernel", "sgl-kernel"} <= set(found):
        raise ValueError(
            f"engine.python={python}: sglang-kernel and sgl-kernel are both installed and overwrite each other's files. "
            "Remove both, then install the one that SGLang pins"
        )
    return found
