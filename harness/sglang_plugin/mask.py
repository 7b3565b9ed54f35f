"""The tree mask in the layout of SGLang's attention kernels.

Shapes: B requests, N nodes. For each request N rows of (prefix + N) cells, concatenated over the batch. The triton
kernel never reads the prefix columns (`skip_prefix_custom_mask`), so only the B·N·N tree cells are written, whatever
the context length, and nothing is concatenated.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def numel(lengths: Sequence[int], num_nodes: int) -> int:
    """Cells of a batch whose prefixes are at most so long."""
    return num_nodes * sum(length + num_nodes for length in lengths)


def write(cells: Tensor, mask_BNN: Tensor, prefix_B: Tensor) -> None:
    """Write the tree cells in place, without asking the device. cells: uint8 or bool, flat. prefix_B: int64."""
    num_nodes = mask_BNN.shape[1]
    width_B = prefix_B + num_nodes  # of a row
    end_B = (num_nodes * width_B).cumsum(0)
    start_B = end_B - num_nodes * width_B + prefix_B
    node_N = torch.arange(num_nodes, device=cells.device)
    place_BNN = start_B[:, None, None] + node_N[:, None] * width_B[:, None, None] + node_N
    cells[place_BNN.flatten()] = mask_BNN.flatten().to(cells.dtype)
