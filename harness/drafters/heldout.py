"""Acceptance length on held-out conversations, measured offline along the text.

Shapes: B conversations, A anchors, R = B x A blocks, D drafted tokens, V vocabulary, K candidates, N tree nodes.

The text was sampled by the target at the conversation's temperature, so following it through a draft tree is what an
exact verifier does. `measure` takes places at random: cheap, for comparing checkpoints, but too high as a forecast,
because rounds start more often where acceptance is short. `measure_rounds` goes through each answer round by round,
so its pooled length is what a decoder would report on this text. Neither says anything about speed.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from harness.decoding.tree import candidates, level_wise
from harness.drafters.blocks import make_blocks, random_anchors
from harness.drafters.corpus import Batch, Corpus
from harness.drafters.recipe import HeldoutRecipe

# (batch, blocks) -> logits [B, A, D, V] of the drafter
DraftLogits = Callable[..., Tensor]


def measure(
    draft: DraftLogits,
    corpus: Corpus,
    recipe: HeldoutRecipe,
    temperatures: list[float],
    *,
    block_size: int,
    mask_token_id: int,
    num_slots: int,
    budgets: list[int],
    keep: Tensor | None = None,
    rows_at_once: int = 20,
) -> dict[str, dict[str, float]]:
    """Acceptance length (bonus token included) by temperature, for a chain and each tree budget, with counts.

    A temperature without conversations has a count of 0 and no lengths. keep: bool [R], the conversations of the
    corpus to look at; default all. Anchors are the same at every call.
    """
    found = {}
    for heat in temperatures:
        fits = corpus.heldout(recipe.every) & ((corpus.temperature - heat).abs() < 1e-3)
        fits &= corpus.length.clamp(max=num_slots) - corpus.start >= block_size + 4
        if keep is not None:
            fits &= keep
        rows = fits.nonzero().flatten()[: recipe.conversations]
        sums: dict[str, float] = {}
        with torch.random.fork_rng(devices=[rows.device] if rows.device.type == "cuda" else []):
            torch.manual_seed(0)
            for some in rows.split(rows_at_once) if len(rows) else ():
                batch = corpus.batch(some, num_slots)
                anchor_BA = random_anchors(batch, recipe.anchors, whole_blocks_of=block_size)
                for name, length in _lengths(draft, batch, anchor_BA, block_size, mask_token_id, budgets).items():
                    sums[name] = sums.get(name, 0.0) + float(length.double().sum())
        blocks = len(rows) * recipe.anchors
        found[f"{heat:g}"] = {name: total / blocks for name, total in sums.items()} | {"conversations": len(rows)}
    return found


def measure_rounds(
    draft: DraftLogits,
    corpus: Corpus,
    rows: Tensor,
    *,
    block_size: int,
    mask_token_id: int,
    num_slots: int,
    budgets: list[int],
    anchors_at_once: int = 128,
) -> dict[str, float]:
    """Acceptance length pooled over the rounds of the conversations `rows` (int64): tokens emitted / rounds.

    A round at the end of a text emits no more than is left of it.
    """
    emitted: dict[str, int] = {}
    rounds: dict[str, int] = {}
    for row in rows:
        batch = corpus.batch(row[None], num_slots)
        start, last = int(batch.start_B), int(batch.end_B) - 1
        places = torch.arange(start, last, device=rows.device)
        lengths: dict[str, list[int]] = {}
        for some in places.split(anchors_at_once):
            for name, length in _lengths(draft, batch, some[None], block_size, mask_token_id, budgets).items():
                lengths.setdefault(name, []).extend(length.tolist())
        for name, length_of_place in lengths.items():
            emitted[name] = emitted.get(name, 0) + last - start
            rounds[name] = rounds.get(name, 0) + count_rounds(length_of_place)
    return {name: emitted[name] / rounds[name] for name in emitted} | {"rounds": rounds.get("chain", 0)}


def count_rounds(length_of_place: list[int]) -> int:
    """How many rounds it takes to leave the list, when a round at place p goes on to p + length_of_place[p]."""
    place = num_rounds = 0
    while place < len(length_of_place):
        place += length_of_place[place]
        num_rounds += 1
    return num_rounds


def _lengths(
    draft: DraftLogits, batch: Batch, anchor_BA: Tensor, block_size: int, mask_token_id: int, budgets: list[int]
) -> dict[str, Tensor]:
    """int64 [R] by name. Places behind the text match nothing."""
    blocks = make_blocks(batch, anchor_BA, block_size, mask_token_id)
    logits_RDV = draft(batch, blocks).flatten(0, 1).float()
    label_RD = torch.where(blocks.valid_BAD, blocks.label_BAD, -1).flatten(0, 1)
    greedy_RD = logits_RDV.argmax(-1)
    lengths = {"chain": 1 + (greedy_RD == label_RD).long().cumprod(1).sum(1)}
    if budgets:
        logp_RDK, ids_RDK = candidates(logits_RDV, max(budgets))
        root_R = batch.ids_BS.gather(1, anchor_BA).flatten()
        for budget in budgets:
            tree = level_wise(root_R, logp_RDK[..., :budget], ids_RDK[..., :budget], budget)
            lengths[str(budget)] = 1 + followed(tree.token_BN, tree.parent_BN, tree.valid_BN, label_RD)
    return lengths


def followed(token_RN: Tensor, parent_RN: Tensor, valid_RN: Tensor, label_RD: Tensor) -> Tensor:
    """How many labels lie on one path down from the root (node 0), int64 [R]."""
    node_R = torch.zeros(len(label_RD), dtype=torch.int64, device=label_RD.device)
    depth_R, alive_R = torch.zeros_like(node_R), torch.ones_like(node_R, dtype=torch.bool)
    for label_R in label_RD.unbind(1):
        match_RN = valid_RN & (parent_RN == node_R[:, None]) & (token_RN == label_R[:, None])
        alive_R = alive_R & match_RN.any(1)
        node_R = torch.where(alive_R, match_RN.long().argmax(1), node_R)
        depth_R = depth_R + alive_R
    return depth_R
