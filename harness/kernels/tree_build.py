"""The budget search of a draft tree as one kernel: `level_wise`, its ancestor mask and its sibling layout in one launch.

Shapes: B batch, N nodes with the root, D draft depths, K candidates a depth, S candidate pairs of a depth.

One program a sample walks through the depths. It keeps the best `budget` prefixes of the depths so far in order, the
*alive* ones. A prefix that costs no less than the last of a full list comes after it in the total order, and so do its
extensions: it is dropped at once, and deep levels have little to do. Order is found by counting smaller keys, which
costs the square of the few prefixes that are left, and not by sorting the many pairs that might have been.
"""

from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.decoding.layout import SiblingLayout
from harness.decoding.tree import DraftTree, _check_budget, _pairs
from harness.kernels.counting import count_below, search_below

RANK_BITS = 10
MOST_BUDGET = 1 << RANK_BITS


def build_tree(root_B: Tensor, logp_BDK: Tensor, ids_BDK: Tensor, budget: int, spine: bool = False) -> DraftTree:
    """Same arguments and arrays as `harness.decoding.tree.level_wise`, with ancestors and layout filled in.

    The first call of a budget copies a table to the device and compiles: make it before a graph is captured.
    Raises ValueError for the budgets that `level_wise` refuses and above 1024.
    """
    batch, depth_limit, num_ranks = logp_BDK.shape
    _check_budget(budget, depth_limit, spine)
    if budget > MOST_BUDGET:
        raise ValueError(f"speculative.tree_budget must be at most {MOST_BUDGET} on this path, got {budget}")
    device = logp_BDK.device
    logp_BDK = logp_BDK.to(torch.float32).contiguous()
    num_nodes = budget + 1
    pairs_S, num_pairs = _packed_pairs(num_ranks, budget, device)
    block = pairs_S.shape[0]
    integers_3BN = torch.empty(3, batch, num_nodes, dtype=torch.int64, device=device)
    layout_3BN = torch.empty(3, batch, num_nodes, dtype=torch.int64, device=device)
    score_BN = torch.empty(batch, num_nodes, dtype=torch.float32, device=device)
    count_B = torch.empty(batch, dtype=torch.int64, device=device)
    ancestors_BNN = torch.empty(batch, num_nodes, num_nodes, dtype=torch.bool, device=device)
    keys_BX = torch.empty(batch, block + 2 * budget, dtype=torch.int64, device=device)
    levels_BX = torch.empty(batch, depth_limit * (3 * budget + block), dtype=torch.int32, device=device)
    num_warps = 4 if block <= 1024 else 8 if block <= 2048 else 16
    _build_tree[(batch,)](
        *(root_B.to(torch.int64).contiguous(), logp_BDK, ids_BDK.contiguous(), pairs_S, keys_BX, levels_BX),
        *(integers_3BN, layout_3BN, score_BN, count_B, ancestors_BNN.view(torch.uint8)),
        *(num_nodes, batch, depth_limit, num_ranks, num_pairs, budget.bit_length()),
        SPINE=spine,
        BLOCK=block,
        TILE=32 * num_warps,
        num_warps=num_warps,
    )
    return DraftTree(
        token_BN=integers_3BN[0],
        parent_BN=integers_3BN[1],
        depth_BN=integers_3BN[2],
        score_BN=score_BN,
        count_B=count_B,
        depth_limit=depth_limit,
        ancestors_BNN=ancestors_BNN,
        layout=SiblingLayout(layout_3BN[0], layout_3BN[1], layout_3BN[2]),
    )


@lru_cache(maxsize=256)
def _packed_pairs(num_ranks: int, budget: int, device: torch.device) -> tuple[Tensor, int]:
    """(parent's place, sibling rank) of every pair in one int32, padded to a power of two; the number of pairs."""
    place_S, rank_S = _pairs(budget, num_ranks, budget, torch.device("cpu"))
    packed_S = ((place_S << RANK_BITS) | rank_S).to(torch.int32)
    num_pairs = len(packed_S)
    padding = max(32, triton.next_power_of_2(num_pairs)) - num_pairs
    return torch.nn.functional.pad(packed_S, (0, padding)).to(device), num_pairs


@triton.jit
def _tighten(cost, alive_ptr, num_alive, budget, BLOCK: tl.constexpr):
    """A cost that at least `budget` prefixes, alive or new, stay below: near the least such, or infinite.

    cost: float32 [BLOCK], infinite where there is no prefix; alive keys hold theirs in the high word.
    """
    place = tl.arange(0, BLOCK)
    key = tl.load(alive_ptr + place, mask=place < num_alive, other=0x7F80000000000000)
    alive_cost = (key >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    limit = tl.full((), float("inf"), tl.float32)
    low = tl.full((), 0.0, tl.float32)
    high = tl.max(tl.where(cost < float("inf"), cost, 0.0), axis=0)
    for _ in range(12):
        middle = 0.5 * (low + high)
        enough = tl.sum((cost < middle).to(tl.int32) + (alive_cost < middle).to(tl.int32), axis=0) >= budget
        limit = tl.where(enough, middle, limit)
        high = tl.where(enough, middle, high)
        low = tl.where(enough, low, middle)
    return limit


@triton.jit(do_not_specialize=["batch", "depth_limit", "num_ranks", "num_pairs", "search_steps"])
def _build_tree(
    root_ptr, logp_ptr, ids_ptr, pairs_ptr, keys_ptr, levels_ptr, integers_ptr, layout_ptr, score_ptr, count_ptr,
    ancestors_ptr, num_nodes, batch, depth_limit, num_ranks, num_pairs, search_steps,
    SPINE: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """A key is (bits of the cost, place in a list) in one int64: costs are >= 0, so their bits order as they do.

    Cost is the negated score, rounded alike. With a spine the sign bit of a greedy prefix puts it before all others.
    """
    b = tl.program_id(0).to(tl.int64)
    budget = num_nodes - 1
    RANK_MASK: tl.constexpr = 1023
    LOW: tl.constexpr = 0xFFFFFFFF
    logp_ptr += b * depth_limit * num_ranks
    ids_ptr += b * depth_limit * num_ranks
    keys_ptr += b * (BLOCK + 2 * budget)
    levels_ptr += b * depth_limit * (3 * budget + BLOCK)
    fresh_ptr = keys_ptr  # new prefixes of this depth, not in order
    alive_ptr = keys_ptr + BLOCK  # two lists, read and written in turn
    # Per depth and place: cost bits, pair, node. Per depth and pair: place.
    cost_ptr = levels_ptr
    pair_ptr = levels_ptr + depth_limit * budget
    node_ptr = levels_ptr + 2 * depth_limit * budget
    place_ptr = levels_ptr + 3 * depth_limit * budget
    ancestors_ptr += b * num_nodes * num_nodes
    ZEROS: tl.constexpr = 16 * TILE
    for start in range(0, num_nodes * num_nodes, ZEROS):
        cell = start + tl.arange(0, ZEROS)
        tl.store(ancestors_ptr + cell, tl.zeros((ZEROS,), tl.uint8), mask=cell < num_nodes * num_nodes)

    pair = tl.arange(0, BLOCK)
    packed = tl.load(pairs_ptr + pair)
    above_place = packed >> 10
    rank = packed & RANK_MASK
    num_above = 1
    num_alive = 0
    level = 0
    limit = 0x7F800000  # bits of infinity: no prefix of score -inf
    while (level < depth_limit) & (num_above > 0):
        known = (pair < num_pairs) & (above_place < num_above)
        above = tl.load(cost_ptr + (level - 1) * budget + above_place, mask=known & (level > 0), other=0)
        step = tl.load(logp_ptr + level * num_ranks + rank, mask=known, other=float("-inf"))
        order = (above.to(tl.float32, bitcast=True) + tl.maximum(-step, 0.0)).to(tl.int32, bitcast=True)
        if SPINE:
            order = tl.where((pair == 0) & (order < 0x7F800000), order | -0x80000000, order)
        order = tl.where(known & (order < limit), order, 0x7F800000)
        read_ptr = alive_ptr + (level % 2) * budget
        write_ptr = alive_ptr + (1 - level % 2) * budget
        num_new = tl.sum((order < 0x7F800000).to(tl.int32), axis=0)
        if num_new > TILE:
            bound = _tighten(order.to(tl.float32, bitcast=True), read_ptr, num_alive, budget, BLOCK)
            order = tl.where(order < bound.to(tl.int32, bitcast=True), order, 0x7F800000)
            num_new = tl.sum((order < 0x7F800000).to(tl.int32), axis=0)
        new = order < 0x7F800000
        slot = tl.cumsum(new.to(tl.int32), axis=0) - 1
        tl.store(fresh_ptr + slot, (order.to(tl.int64) << 32) | pair, mask=new)
        tl.debug_barrier()
        # Place within the depth, and place among the alive: those of equal cost are less deep and stay before.
        for start in range(0, num_new, TILE):
            i = start + tl.arange(0, TILE)
            key = tl.load(fresh_ptr + i, mask=i < num_new, other=0x7FFFFFFFFFFFFFFF)
            place = count_below(fresh_ptr, num_new, key)
            own_pair = (key & LOW).to(tl.int32)
            cost = (key >> 32).to(tl.int32)
            kept = (i < num_new) & (place < budget)
            tl.store(cost_ptr + level * budget + place, cost & 0x7FFFFFFF, mask=kept)
            tl.store(pair_ptr + level * budget + place, own_pair, mask=kept)
            tl.store(place_ptr + level * BLOCK + own_pair, place, mask=kept)
            alive_key = ((key >> 32) << 32) | (level * budget)
            goal = place + search_below(read_ptr, num_alive, alive_key, search_steps)
            tl.store(write_ptr + goal, alive_key + place, mask=kept & (goal < budget))
        for start in range(0, num_alive, TILE):
            i = start + tl.arange(0, TILE)
            key = tl.load(read_ptr + i, mask=i < num_alive, other=0)
            goal = i + count_below(fresh_ptr, num_new, (key >> 32) << 32)
            tl.store(write_ptr + goal, key, mask=(i < num_alive) & (goal < budget))
        tl.debug_barrier()
        num_above = tl.minimum(num_new, budget)
        num_alive = tl.minimum(num_alive + num_new, budget)
        if num_alive == budget:
            limit = tl.minimum(limit, (tl.load(write_ptr + budget - 1) >> 32).to(tl.int32))
        level += 1

    chosen_ptr = alive_ptr + (level % 2) * budget
    if SPINE:
        other_ptr = alive_ptr + (1 - level % 2) * budget
        for start in range(0, num_alive, TILE):
            i = start + tl.arange(0, TILE)
            key = tl.load(chosen_ptr + i, mask=i < num_alive, other=0)
            tl.store(other_ptr + i, key & 0x7FFFFFFFFFFFFFFF, mask=i < num_alive)
        tl.debug_barrier()
        for start in range(0, num_alive, TILE):
            i = start + tl.arange(0, TILE)
            key = tl.load(other_ptr + i, mask=i < num_alive, other=0x7FFFFFFFFFFFFFFF)
            tl.store(fresh_ptr + count_below(other_ptr, num_alive, key), key, mask=i < num_alive)
        tl.debug_barrier()
        chosen_ptr = fresh_ptr

    token_out = integers_ptr + b * num_nodes
    parent_out = integers_ptr + (batch + b) * num_nodes
    depth_out = integers_ptr + (2 * batch + b) * num_nodes
    score_out = score_ptr + b * num_nodes
    row_out = layout_ptr + b * num_nodes
    child_out = layout_ptr + (batch + b) * num_nodes
    sibling_out = layout_ptr + (2 * batch + b) * num_nodes
    tl.store(count_ptr + b, num_alive + 1)
    for start in range(0, num_nodes, TILE):
        node = start + tl.arange(0, TILE)
        inside = node < num_nodes
        drafted = (node > 0) & (node <= num_alive)
        flat = tl.load(chosen_ptr + node - 1, mask=drafted, other=0) & LOW
        tl.store(node_ptr + flat, node, mask=drafted)
        tl.store(row_out + node, b * num_nodes + node, mask=inside)
        tl.store(child_out + node, tl.full((TILE,), -1, tl.int64), mask=inside)
        tl.store(sibling_out + node, tl.full((TILE,), -1, tl.int64), mask=inside)
        tl.store(ancestors_ptr + node * num_nodes + node, tl.full((TILE,), 1, tl.uint8), mask=inside)
    tl.debug_barrier()
    root = tl.load(root_ptr + b)
    for start in range(0, num_nodes, TILE):
        node = start + tl.arange(0, TILE)
        inside = node < num_nodes
        drafted = (node > 0) & (node <= num_alive)
        flat = (tl.load(chosen_ptr + node - 1, mask=drafted, other=0) & LOW).to(tl.int32)
        above_level = flat // budget
        own_pair = tl.load(pair_ptr + flat, mask=drafted, other=0)
        cost = tl.load(cost_ptr + flat, mask=drafted, other=0x7F800000).to(tl.float32, bitcast=True)
        own = tl.load(pairs_ptr + own_pair, mask=drafted, other=0)
        own_rank = own & RANK_MASK
        token = tl.load(ids_ptr + above_level * num_ranks + own_rank, mask=drafted, other=0)
        deep = drafted & (above_level > 0)
        parent = tl.load(node_ptr + (above_level - 1) * budget + (own >> 10), mask=deep, other=0)
        # The sibling before: always there where log p falls along K. The bounds keep NaN from wild addresses.
        younger = drafted & (own_rank > 0)
        before = tl.load(place_ptr + above_level * BLOCK + own_pair - 1, mask=younger, other=0)
        younger = younger & (before >= 0) & (before < budget)
        elder = tl.load(node_ptr + above_level * budget + before, mask=younger, other=0)
        tl.store(sibling_out + elder, node.to(tl.int64), mask=younger & (elder > 0) & (elder < node))
        tl.store(child_out + parent, node.to(tl.int64), mask=drafted & (own_rank == 0))
        tl.store(token_out + node, tl.where(node == 0, root, token), mask=inside)
        tl.store(parent_out + node, tl.where(drafted, parent, -1).to(tl.int64), mask=inside)
        tl.store(depth_out + node, tl.where(drafted, above_level + 1, 0).to(tl.int64), mask=inside)
        tl.store(score_out + node, tl.where(node == 0, 0.0, 0.0 - cost), mask=inside)
    tl.debug_barrier()
    for start in range(0, num_nodes, TILE):
        node = start + tl.arange(0, TILE)
        above_node = tl.where((node > 0) & (node <= num_alive), node, -1).to(tl.int64)
        for _ in range(level):
            above_node = tl.load(parent_out + above_node, mask=above_node >= 0, other=-1)
            cell = ancestors_ptr + node * num_nodes + above_node
            tl.store(cell, tl.full((TILE,), 1, tl.uint8), mask=above_node >= 0)
