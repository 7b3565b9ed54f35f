"""Registration: the algorithm, and the hooks without which SGLang would drop a tree's mask or a refusal in silence."""

import logging
import os
from typing import Any

from harness.sglang_plugin import compat
from harness.sglang_plugin.options import NAME
from harness.sglang_plugin.refusals import check_request

logger = logging.getLogger(__name__)


def register() -> None:
    """Idempotent, and cheap while another algorithm is chosen."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    from harness.sglang_plugin.algorithm import DDTreeAlgorithm

    try:
        SpeculativeAlgorithm.from_string(NAME)
        return  # this process has it already
    except ValueError:
        pass
    SpeculativeAlgorithm.register(NAME, supports_overlap=True, spec_class=DDTreeAlgorithm)(_worker_class)
    _hook()
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        from harness.sglang_plugin.cpu.attention import allow_cpu

        allow_cpu()
    verdict, message = compat.judge(compat.version())
    if verdict != "ok":
        logger.warning("%s", message)


def _worker_class(server_args: Any) -> type:
    from harness.sglang_plugin.worker import DDTreeWorker

    return DDTreeWorker


def _hook() -> None:
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(compat.GRAPH_SPEC_INFO, _spec_info_with_mask, HookType.AROUND)
    HookRegistry.register(compat.REQUEST_CHECK, _check_request, HookType.AROUND)


def _spec_info_with_mask(original: Any, runner: Any, *args: Any, **kwargs: Any) -> Any:
    """SGLang captures DFLASH's target graph without a mask: a replay would then ignore the tree."""
    spec_info = original(runner, *args, **kwargs)
    model_runner = runner.model_runner
    if getattr(model_runner.spec_algorithm, "name", "") == NAME and not model_runner.is_draft_worker:
        spec_info.custom_mask = runner.attn_backend.verify_mask.buffer
    return spec_info


def _check_request(original: Any, req: Any, *args: Any, **kwargs: Any) -> str | None:
    from sglang.srt.runtime_context import get_spec

    if (get_spec().speculative_algorithm or "").upper() == NAME:
        return check_request(req)
    return original(req, *args, **kwargs)
