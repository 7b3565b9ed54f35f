"""Everything that depends on SGLang's version, in one place.

Tested: 0.5.17. Import and registration alone are tested with 0.5.23. The names below were read in both.
"""

import re
from typing import Any

TESTED = "0.5.17"
REGISTERS = "0.5.23"

# Hook points, as SGLang's HookRegistry wants them. The second is imported by name into the scheduler.
GRAPH_SPEC_INFO = "sglang.srt.model_executor.runner.decode_cuda_graph_runner.DecodeCudaGraphRunner.get_spec_info"
REQUEST_CHECK = "sglang.srt.managers.scheduler.validate_dflash_request"


def version() -> str:
    import sglang

    return sglang.__version__


def judge(found: str) -> tuple[str, str]:
    """("ok" | "warn" | "refuse", message) for an SGLang version."""
    if found == TESTED:
        return "ok", ""
    numbers = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
    if (0, 5, 17) < numbers <= (0, 5, 23):
        part = "its import and registration are tested, nothing else" if found == REGISTERS else "it is not tested"
        return "warn", f"DDTREE was written and tested with SGLang {TESTED}; this is {found}: {part}"
    return "refuse", f"DDTREE supports SGLang {TESTED} (and, untested, up to {REGISTERS}); this is {found}"


def dflash_server_args(args: Any) -> None:
    """SGLang's own checks and settings of DFLASH, which DDTREE drafts with. They refuse a CPU."""
    from sglang.srt.arg_groups.speculative_hook import _handle_dflash

    _handle_dflash(args)


def draft_config(hf_config: Any) -> Any:
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config

    return parse_dflash_draft_config(draft_hf_config=hf_config)


def block_size_of(path: str, trust_remote_code: bool = False, revision: str | None = None) -> int:
    """Block size of a DFlash checkpoint: root and the depths behind it."""
    from sglang.srt.utils.hf_transformers_utils import get_config

    config = get_config(path, trust_remote_code=trust_remote_code, revision=revision)
    return int(draft_config(config).resolve_block_size(default=16))


def allow_draft_backend(name: str) -> None:
    """Let a draft runner use an attention backend that SGLang's own list leaves out (CPU tests). Raises ValueError."""
    from sglang.srt.speculative import draft_worker_common

    if not hasattr(draft_worker_common, "_SUPPORTED_DRAFT_BACKENDS"):
        raise ValueError(f"DDTREE on a CPU works with SGLang {TESTED} only; this is {version()}")
    draft_worker_common._SUPPORTED_DRAFT_BACKENDS += (name,)


def check_hooks() -> None:
    """Raises RuntimeError when SGLang could not apply a hook: it only logs that, and trees would lose their mask."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    missing = [name for name in (GRAPH_SPEC_INFO, REQUEST_CHECK) if name not in HookRegistry._patched]
    if missing:
        raise RuntimeError(f"DDTREE needs hooks that SGLang {version()} did not take: {', '.join(missing)}")


def tp_group() -> Any:
    from sglang.srt.distributed import get_tp_group

    return get_tp_group()


def kv_pool_classes() -> tuple[type, type]:
    """Pools whose rows can be moved byte for byte: (MHA, MLA). Subclasses keep scales or pages beside them."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    return MHATokenToKVPool, MLATokenToKVPool


def draft_position_offsets(length: int, device: Any) -> tuple[Any, Any]:
    """(offsets of a draft block's positions, the attention input of its forward)."""
    from sglang.srt.speculative.draft_worker_common import build_block_pos_offsets, make_draft_block_spec_info

    return (
        build_block_pos_offsets(length=length, device=device),
        make_draft_block_spec_info(draft_token_num=length, device=device),
    )
