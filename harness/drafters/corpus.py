"""Self-generated conversations on disk, in shards, and batches of them on the device.

Shapes: T tokens of the whole corpus, R conversations, B of them in a batch, S padded length.

A shard is one safetensors file of flat arrays. Shards are only ever added, so a later call goes on counting where an
earlier one stopped. Which conversations are held out depends on their place alone: growing the corpus never moves one.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.drafters.generate import Conversation
from harness.metrics import repetition


def write_shard(folder: Path, conversations: list[Conversation]) -> Path:
    """Add a shard. The file appears under its name only when whole."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"shard-{len(list(folder.glob('shard-*.safetensors'))):05d}.safetensors"
    arrays = {
        "token": torch.tensor([t for c in conversations for t in c.tokens], dtype=torch.int32),
        "length": torch.tensor([len(c.tokens) for c in conversations], dtype=torch.int32),
        "response_start": torch.tensor([c.response_start for c in conversations], dtype=torch.int32),
        "temperature": torch.tensor([c.temperature for c in conversations], dtype=torch.float32),
        "opener": torch.tensor([c.opener for c in conversations], dtype=torch.int32),
    }
    partial = path.with_suffix(".partial")
    save_file(arrays, partial)
    os.replace(partial, path)
    return path


@dataclass(frozen=True)
class Batch:
    """ids_BS int64, padded with 0; start_B: first answer token; end_B: conversation length; temperature_B float32."""

    ids_BS: Tensor
    start_B: Tensor
    end_B: Tensor
    temperature_B: Tensor


class Corpus:
    """All shards of a folder on one device. length, start: int64 [R]; temperature: float32 [R]; opener: int64 [R]."""

    def __init__(self, folder: Path, device: torch.device | str):
        paths = sorted(folder.glob("shard-*.safetensors"))
        if not paths:
            raise ValueError(f"work_dir: no shards in {folder}; generate.tokens must be at least 1")
        shards = [load_file(path) for path in paths]

        def joined(name: str) -> Tensor:
            return torch.cat([shard[name] for shard in shards])

        self.token_T = joined("token").to(device)
        self.length = joined("length").long().to(device)
        self.start = joined("response_start").long().to(device)
        self.temperature = joined("temperature").to(device)
        self.opener = joined("opener").long().to(device)
        self.offset = self.length.cumsum(0) - self.length

    @property
    def num_conversations(self) -> int:
        return len(self.length)

    def num_response_tokens(self) -> int:
        return int((self.length - self.start).sum())

    def heldout(self, every: int) -> Tensor:
        """bool [R]: conversations that training never sees."""
        return torch.arange(self.num_conversations, device=self.length.device) % every == 0

    def loops(self, rows: Tensor) -> Tensor:
        """bool [R]: of the conversations `rows`, those whose answer holds a degenerate loop; false for all others."""
        found = torch.zeros(self.num_conversations, dtype=torch.bool)
        for row in rows.tolist():
            begin = int(self.offset[row])
            found[row] = repetition(self.token_T[begin + int(self.start[row]) : begin + int(self.length[row])].tolist())
        return found.to(rows.device)

    def batch(self, row_B: Tensor, num_slots: int) -> Batch:
        """Conversations row_B (int64 [B]) in num_slots slots; longer ones are cut."""
        slot_S = torch.arange(num_slots, device=row_B.device)
        end_B = self.length[row_B].clamp(max=num_slots)
        at_BS = (self.offset[row_B, None] + slot_S).clamp(max=len(self.token_T) - 1)
        ids_BS = torch.where(slot_S < end_B[:, None], self.token_T[at_BS].long(), 0)
        return Batch(ids_BS, self.start[row_B], end_B, self.temperature[row_B])


class Sampler:
    """Random batches of a few fixed shapes, so that nothing is recompiled and every answer token is equally likely.

    Conversations are sorted into buckets by length (multiples of `step`). A bucket is drawn by its answer tokens; a
    batch of shorter conversations has more of them and fewer anchors in each. Draws depend on (seed, step) alone.
    """

    def __init__(self, corpus: Corpus, allowed: Tensor, batch_size: int, anchors: int, longest: int, step: int = 128):
        self.corpus = corpus
        self.buckets: list[tuple[int, int, int, Tensor]] = []  # slots, rows, anchors, conversations
        weights = []
        for slots in range(step, longest + step, step):
            inside = allowed & (corpus.length <= slots) & (corpus.length > slots - step)
            rows = inside.nonzero().flatten()
            if len(rows):
                share = slots / longest
                shape = (min(slots, longest), max(1, round(batch_size / share)), max(1, round(anchors * share)))
                self.buckets.append((*shape, rows))
                weights.append(float((corpus.length - corpus.start)[rows].sum()))
        self.weights = torch.tensor(weights)

    def draw(self, seed: int) -> tuple[Batch, int]:
        """(batch, anchors a conversation)."""
        generator = torch.Generator().manual_seed(seed)
        slots, num_rows, anchors, rows = self.buckets[int(torch.multinomial(self.weights, 1, generator=generator))]
        pick = torch.randint(len(rows), (num_rows,), generator=generator)
        if rows.device.type == "cuda":
            pick = pick.pin_memory().to(rows.device, non_blocking=True)
        return self.corpus.batch(rows[pick], slots), anchors
