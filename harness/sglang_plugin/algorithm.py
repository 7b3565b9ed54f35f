"""DDTREE as SGLang sees it: an algorithm of the DFLASH family whose verify window is a tree."""

import os
from typing import Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from harness.sglang_plugin import compat
from harness.sglang_plugin.options import DEFAULT_WIDTH, read_options
from harness.sglang_plugin.refusals import check_server_args


class DDTreeAlgorithm(CustomSpecAlgo):
    """Joins DFLASH's branches: capture of target features, pool sizes, draft graph fed with embeddings, KV reserve."""

    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    # The scheduler asks these three of every algorithm; CustomSpecAlgo lacks them (0.5.13 to 0.5.23).
    def need_topk(self) -> bool:
        return False

    def carries_draft_hidden_states(self) -> bool:
        return False

    def create_future_map(self, device: Any, req_to_token_pool: Any, *args: Any, **kwargs: Any) -> Any:
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(device, self, req_to_token_pool, *args, **kwargs)

    def get_num_tokens_per_req_for_target_verify(self, num_draft_tokens: int, is_draft_worker: bool) -> int:
        """The draft runner verifies a block, the target a tree."""
        return draft_block_size() if is_draft_worker else num_draft_tokens

    def handle_server_args(self, args: Any) -> None:
        verdict, message = compat.judge(compat.version())
        if verdict == "refuse":
            raise ValueError(message)
        read_options(os.environ)  # refused before a model loads
        if args.speculative_num_draft_tokens is None:
            args.speculative_num_draft_tokens = DEFAULT_WIDTH
        block_size = 1
        if args.speculative_draft_model_path:
            block_size = compat.block_size_of(
                args.speculative_draft_model_path, args.trust_remote_code, args.speculative_draft_model_revision
            )
        check_server_args(args, block_size)
        width = args.speculative_num_draft_tokens
        if str(args.device) == "cpu":  # SGLang's DFLASH refuses it: set what the rest of SGLang reads
            args.speculative_num_steps = args.speculative_eagle_topk = 1
            args.max_running_requests = args.max_running_requests or 48
            args.disable_overlap_schedule = True  # its streams are CUDA's
        else:
            compat.dflash_server_args(args)
        args.speculative_num_draft_tokens = width


def draft_block_size() -> int:
    """Of the running server's drafter."""
    from sglang.srt.runtime_context import get_spec

    spec = get_spec()
    return compat.block_size_of(spec.speculative_draft_model_path, False, spec.speculative_draft_model_revision)
