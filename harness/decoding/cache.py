"""A key/value cache that is written by position and keeps the accepted path of a draft tree.

Shapes: B batch, H key/value heads, Q rows written at once, S slots, D head size, W path width.

Row `b` holds `length_B[b]` committed rows, left-aligned. A forward over Q new rows writes them behind the committed ones;
`commit` then keeps the rows of the accepted path, in order, and forgets the rest. Rows beyond `length_B` are garbage that
the next write overwrites, so rejecting costs nothing. Lengths change in place: a captured graph reads them again.
"""

import torch
from torch import Tensor


class PositionCache:
    """Buffers are made at the first write of each layer, so head counts and sizes may differ by layer (MLA, hybrids)."""

    def __init__(self, batch: int, slots: int, device: torch.device | str):
        self.slots = slots
        self.length_B = torch.zeros(batch, dtype=torch.int64, device=device)
        self.keys: dict[int, Tensor] = {}
        self.values: dict[int, Tensor] = {}
        self._row_B1 = torch.arange(batch, device=device)[:, None]

    def write(self, layer: int, key_BHQD: Tensor, value_BHQD: Tensor) -> None:
        """Put Q new rows at slots length_B .. length_B + Q - 1, which must be inside the buffer."""
        num_new = key_BHQD.shape[2]
        if layer not in self.keys:
            self.keys[layer] = self._buffer(key_BHQD)
            self.values[layer] = self._buffer(value_BHQD)
        if key_BHQD.shape[0] == 1 and key_BHQD.device.type == "cpu":  # a slice costs a tenth of an indexed write
            start = int(self.length_B)
            self.keys[layer][:, :, start : start + num_new] = key_BHQD
            self.values[layer][:, :, start : start + num_new] = value_BHQD
            return
        slot_BQ = self.length_B[:, None] + torch.arange(num_new, device=self.length_B.device)
        self.keys[layer][self._row_B1, :, slot_BQ] = key_BHQD.transpose(1, 2)
        self.values[layer][self._row_B1, :, slot_BQ] = value_BHQD.transpose(1, 2)

    def view(self, layer: int, num_slots: int) -> tuple[Tensor, Tensor]:
        """The first `num_slots` slots of a layer, [B, H, num_slots, D] each, without a copy."""
        return self.keys[layer][:, :, :num_slots], self.values[layer][:, :, :num_slots]

    def commit(self, path_BW: Tensor, num_B: Tensor) -> None:
        """Keep rows path_BW[b, :num_B[b]] of the rows just written (0 = the first of them), in order.

        path_BW: int64 [B, W], offsets behind length_B; entries at and beyond num_B may hold anything in [-1, Q).
        """
        source_BW = self.length_B[:, None] + path_BW.clamp(min=0)
        target_BW = self.length_B[:, None] + torch.arange(path_BW.shape[1], device=path_BW.device)
        if path_BW.device.type == "cpu" and self._in_place(path_BW, num_B):
            self.length_B += num_B
            return
        # Slots behind num_B are garbage either way, but must stay inside the buffer.
        target_BW = target_BW.clamp(max=self.slots - 1)
        keep_BW1 = (torch.arange(path_BW.shape[1], device=path_BW.device) < num_B[:, None])[..., None, None]
        for buffer in (*self.keys.values(), *self.values.values()):
            old = buffer[self._row_B1, :, target_BW]
            new = buffer[self._row_B1, :, source_BW]
            buffer[self._row_B1, :, target_BW] = torch.where(keep_BW1, new, old)
        self.length_B += num_B

    @staticmethod
    def _in_place(path_BW: Tensor, num_B: Tensor) -> bool:
        """Whether every kept row already stands where it belongs, as in a chain. Asks the device: for the CPU alone."""
        place_W = torch.arange(path_BW.shape[1])
        return bool(((path_BW == place_W) | (place_W >= num_B[:, None])).all())

    def _buffer(self, like_BHQD: Tensor) -> Tensor:
        batch, heads, _, size = like_BHQD.shape
        return like_BHQD.new_zeros(batch, heads, self.slots, size)
