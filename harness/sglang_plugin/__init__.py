"""DDTREE for an unmodified SGLang: found through the entry-point group `sglang.srt.plugins`, inert until it is chosen.

`--speculative-algorithm DDTREE --speculative-draft-model-path DFLASH_CHECKPOINT --speculative-num-draft-tokens BUDGET+1`.
The design and its limits stand in docs/sglang.md.
"""


def register() -> None:
    """Entry point. SGLang calls it in each of its processes; only logs on failure, so what can fail comes later."""
    from harness.sglang_plugin.plugin import register as register_algorithm

    register_algorithm()
