"""A drafter that knows the continuation and proposes it at a random rank: deep paths through branches of any rank.

Shapes: B batch, Q rows, F feature size, D draft depths, V vocabulary.

Only for comparisons of state and of coupled outputs, which must hold for any tree: with a weak drafter they would compare
empty paths. Features go to the real drafter as always, and are kept for comparison.
"""

from typing import Any

import torch
from torch import Tensor

LEVELS = (4.0, 1.95, 1.5)  # above, between and below the two tokens that the real drafter likes best


class Foreseeing:
    def __init__(self, drafter: Any, prompts: list[list[int]], futures: list[list[int]], seed: int):
        self.drafter, self.block_size, self.futures = drafter, drafter.block_size, futures
        self.lengths = [len(prompt) for prompt in prompts]
        self.random = torch.Generator().manual_seed(seed)

    def new_state(self, batch: int, slots: int) -> Any:
        self.committed = torch.zeros(batch, dtype=torch.int64)
        self.features: list[list[Tensor]] = [[] for _ in range(batch)]
        self.state = self.drafter.new_state(batch, slots)
        return self.state

    def extend(self, state: Any, feature_BQF: Tensor, num_B: Tensor) -> None:
        self.drafter.extend(state, feature_BQF, num_B)
        for b, num in enumerate(num_B.tolist()):
            self.features[b].append(feature_BQF[b, :num].clone())
            self.committed[b] += num

    def propose(self, state: Any, root_B: Tensor, *, num_slots: int) -> Tensor:
        own_BDV = self.drafter.propose(state, root_B, num_slots=num_slots)
        liked_BD2 = own_BDV.topk(2, dim=-1)
        logits_BDV = torch.full(own_BDV.shape, -8.0, device=root_B.device)
        logits_BDV.scatter_(
            2, liked_BD2.indices, torch.tensor([2.0, 1.9], device=root_B.device).expand_as(liked_BD2[0])
        )
        for b, future in enumerate(self.futures):
            done = int(self.committed[b]) - self.lengths[b]  # output tokens before the root
            for depth, token in enumerate(future[done + 1 : done + self.block_size]):
                rank = int(torch.randint(len(LEVELS), (), generator=self.random))
                logits_BDV[b, depth, token] = LEVELS[rank]
        return logits_BDV
