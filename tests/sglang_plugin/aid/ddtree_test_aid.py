"""A second SGLang plugin, for tests: breaks DDTREE on purpose in the processes that load it (negative controls)."""

import os


def register():
    """DDTREE_TEST_BREAK=commit: the accepted path's KV rows stay where they are."""
    if os.environ.get("DDTREE_TEST_BREAK") == "commit":
        from harness.sglang_plugin.commit import RowMover

        RowMover.move = lambda self, slots_BN, path_BK, count_B: None
