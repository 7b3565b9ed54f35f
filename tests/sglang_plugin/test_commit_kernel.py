"""The CUDA kernel of the commit, run by triton's interpreter on the CPU, against plain indexing; and a wrong one."""

import os
import subprocess

from tests.sglang_plugin.served import ROOT, sglang_python

CODE = """
import torch
from harness.sglang_plugin.commit_kernel import move_rows

torch.manual_seed(0)
rows, nodes, path = 60, 12, 5
buffers = [torch.randint(-9, 9, (rows, words), dtype=torch.int32) for words in (7, 7, 1500)]
slots = torch.randperm(rows)[: 3 * nodes].view(3, nodes)
# The second path's row 3 comes from the slot that its row 2 leaves: an order that a careless copy gets wrong.
paths = torch.tensor([[0, 2, 3, 0, 0], [0, 1, 3, 4, 9], [0, 0, 0, 0, 0]])
counts = torch.tensor([3, 5, 1], dtype=torch.int32)
expected = [b.clone() for b in buffers]
for before, after in zip(buffers, expected):
    for request in range(3):
        for place in range(int(counts[request])):
            after[slots[request, place]] = before[slots[request, paths[request, place]]]
words = torch.tensor([b.shape[1] for b in buffers])
pointers = torch.tensor([b.data_ptr() for b in buffers])
untouched = [b.clone() for b in buffers]
move_rows(pointers, words, 1500, slots, paths, counts)
assert all(torch.equal(a, b) for a, b in zip(buffers, expected))
assert not any(torch.equal(a, b) for a, b in zip(untouched, expected))
print("moved")
"""


def test_only_accepted_rows_move_and_none_is_lost():
    environment = dict(os.environ, TRITON_INTERPRET="1", PYTHONPATH=str(ROOT))
    done = subprocess.run(
        [sglang_python(), "-c", CODE], env=environment, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.stdout.strip() == "moved", done.stderr
