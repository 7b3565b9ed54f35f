"""Text made by the target itself: it invents a user turn, then answers it. Many conversations at once.

Shapes: B conversations at once, S slots (tokens of a conversation), P prompt prefix, V vocabulary, N/K/D attention
heads, key/value heads and head size.

Each row is a small state machine on the device. `text_BS` holds its tokens, of which `known_B` are decided; a step
feeds the token at `length_B` and, when the next one is not decided yet, draws it. So the system prompt, openers and
the turn markers are fed by the very step that draws. A finished row is replaced: its slots 0..P-1 hold the common
prefix for ever. The step reads and writes fixed buffers only, so on CUDA it is one captured graph, and the host looks
every few steps. Idea of the empty user turn: Magpie, arXiv 2406.08464.
"""

import random
import time
from collections.abc import Callable
from collections.abc import Generator as Generator_
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PreTrainedModel, PreTrainedTokenizerBase

from harness.decoding.cache import PositionCache
from harness.drafters.openers import OPENERS
from harness.drafters.recipe import GenerateRecipe

STEPS_PER_LOOK = 16
_MARK = "\u2063user\u2063"


@dataclass(frozen=True)
class Conversation:
    tokens: list[int]
    response_start: int  # first token of the answer
    temperature: float  # of the answer
    opener: int  # index into OPENERS, -1 = the user turn started empty


def _grouped_attention(module, query_BNQD, key_BKSD, value_BKSD, attention_mask, scaling=None, dropout=0.0, **_):
    """One query row: fold the query heads of a group into rows, so that no key or value is copied."""
    batch, heads, num_rows, size = query_BNQD.shape
    if num_rows == 1:
        query = query_BNQD.reshape(batch, key_BKSD.shape[1], -1, size)
        out = scaled_dot_product_attention(query, key_BKSD, value_BKSD, attn_mask=attention_mask, scale=scaling)
        out = out.reshape(batch, heads, 1, size)
    else:
        out = scaled_dot_product_attention(
            query_BNQD, key_BKSD, value_BKSD, attn_mask=attention_mask, scale=scaling, enable_gqa=True
        )
    return out.transpose(1, 2), None


AttentionInterface.register("drafter_generate", _grouped_attention)


class _Slots(PositionCache):
    """The part of transformers' cache interface that a forward pass uses."""

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self.write(layer_idx, key, value)
        return self.view(layer_idx, self.slots)

    def get_seq_length(self, *_: Any) -> int:
        return 0


class Generator:
    def __init__(self, target: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, recipe: GenerateRecipe, seed: int):
        self.target, self.recipe, self.random = target, recipe, random.Random(seed)
        self.device = target.device
        torch.manual_seed(seed)
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": _MARK}], tokenize=False, add_generation_prompt=True
        )
        head, tail = str(text).split(_MARK)
        self.prefix: list[int] = tokenizer(head, add_special_tokens=False)["input_ids"]
        self.middle: list[int] = tokenizer(tail, add_special_tokens=False)["input_ids"]
        self.openers: list[list[int]] = [tokenizer(o, add_special_tokens=False)["input_ids"] for o in OPENERS]
        eos = target.generation_config.eos_token_id if target.generation_config else None
        stops = {self.middle[0], *(eos if isinstance(eos, list) else [eos] if eos is not None else [])}
        B, S = recipe.batch_size, recipe.max_length
        zeros = torch.zeros(B, dtype=torch.int64, device=self.device)
        self.text_BS = torch.zeros(B, S, dtype=torch.int64, device=self.device)
        self.known_B, self.start_B, self.end_B = zeros.clone(), zeros.clone(), zeros.clone()
        self.done_B = torch.ones(B, dtype=torch.bool, device=self.device)
        self.temperature_B = torch.ones(B, device=self.device)
        self.opener_of_row = [-1] * B
        self.num_rows = self.num_lost = 0  # rows finished; those without a usable user turn or answer
        self.stop_ids = torch.tensor(sorted(stops), device=self.device)
        self.cache = _Slots(B, S, self.device)
        self._slot_S = torch.arange(S, device=self.device)
        self._graph: torch.cuda.CUDAGraph | None = None

    @torch.no_grad()
    def conversations(self) -> Generator_[list[Conversation], None, None]:
        """Yield lists of finished conversations, for ever. Those still open when the caller stops are dropped."""
        kept = self.target.config._attn_implementation
        self.target.set_attn_implementation("drafter_generate")
        self._prefill()
        self._refill(list(range(self.recipe.batch_size)))
        try:
            while True:
                for _ in range(STEPS_PER_LOOK):
                    self._advance()
                rows = self.done_B.nonzero().flatten().tolist()
                finished = self._harvest(rows) if rows else []
                if rows:
                    self._refill(rows)
                yield finished
        finally:
            self.target.set_attn_implementation(kept)

    def _prefill(self) -> None:
        """Put the prefix less its last token into every row's first slots: the last one is fed by the first step."""
        num = len(self.prefix) - 1
        ids = torch.tensor(self.prefix[:num], device=self.device).expand(self.recipe.batch_size, num)
        mask = (self._slot_S[None] <= torch.arange(num, device=self.device)[:, None])[None, None]
        self.cache.length_B.zero_()
        self.target(
            input_ids=ids,
            position_ids=torch.arange(num, device=self.device)[None],
            attention_mask=mask.expand(self.recipe.batch_size, -1, -1, -1),
            past_key_values=self.cache,
            logits_to_keep=1,
        )

    def _refill(self, rows: list[int]) -> None:
        text, known, temperature = [], [], []
        for row in rows:
            use = self.random.random() < self.recipe.opener_share
            self.opener_of_row[row] = self.random.randrange(len(self.openers)) if use else -1
            ids = self.prefix + (self.openers[self.opener_of_row[row]] if use else [])
            known.append(len(ids))
            text.append(ids + [0] * (self.recipe.max_length - len(ids)))
            temperature.append(self.random.choice(self.recipe.temperatures))
        index = torch.tensor(rows, device=self.device)
        self.text_BS[index] = torch.tensor(text, device=self.device)
        self.known_B[index] = torch.tensor(known, device=self.device)
        self.temperature_B[index] = torch.tensor(temperature, device=self.device)
        self.start_B[index] = 0
        self.end_B[index] = 0
        self.cache.length_B[index] = len(self.prefix) - 1
        self.done_B[index] = False

    def _harvest(self, rows: list[int]) -> list[Conversation]:
        index = torch.tensor(rows, device=self.device)
        text, start, end = self.text_BS[index].tolist(), self.start_B[index].tolist(), self.end_B[index].tolist()
        heat = self.temperature_B[index].tolist()
        found = []
        for i, row in enumerate(rows):
            user = start[i] - len(self.middle) - len(self.prefix)
            if start[i] and user >= 4 and end[i] - start[i] >= 16:
                tokens = text[i][: end[i]]
                found.append(Conversation(tokens, start[i], round(heat[i], 4), self.opener_of_row[row]))
        self.num_rows += len(rows)
        self.num_lost += len(rows) - len(found)
        return found

    def _advance(self) -> None:
        if self.device.type != "cuda":
            return self._step()
        if self._graph is None:
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(3):
                    self._step()
            torch.cuda.current_stream().wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._step()
        self._graph.replay()

    def _step(self) -> None:
        """Feed one token of every row and, where the next one is open, draw it. Touches fixed buffers in place."""
        length_B = self.cache.length_B
        logits_BV = self.target(
            input_ids=self.text_BS.gather(1, length_B[:, None]),
            position_ids=length_B[:, None],
            attention_mask=(self._slot_S <= length_B[:, None])[:, None, None],
            past_key_values=self.cache,
        ).logits[:, -1]
        answering_B = self.start_B > 0
        drawn_B = self._draw(logits_BV.float(), answering_B)
        next_B = length_B + 1  # a row with length S - 1 is done, so this is at most S - 1 where it matters
        free_B = (next_B >= self.known_B) & ~self.done_B
        turn_B = free_B & ~answering_B & (drawn_B == self.middle[0])
        lost_B = free_B & ~answering_B & ~turn_B & (next_B - len(self.prefix) >= self.recipe.max_user_tokens)
        self._put(next_B, drawn_B, free_B)
        for offset, token in enumerate(self.middle):
            self._put(next_B + offset, torch.full_like(drawn_B, token), turn_B)
        self.known_B.copy_(torch.where(free_B, next_B + 1, self.known_B))
        self.known_B.copy_(torch.where(turn_B, next_B + len(self.middle), self.known_B))
        self.start_B.copy_(torch.where(turn_B, next_B + len(self.middle), self.start_B))
        ended_B = free_B & answering_B & torch.isin(drawn_B, self.stop_ids)
        over_B = ~self.done_B & (ended_B | lost_B | (next_B >= self.recipe.max_length - 1))
        self.end_B.copy_(torch.where(over_B, next_B + 1, self.end_B))
        self.done_B.logical_or_(over_B)
        length_B.add_((~self.done_B).to(length_B.dtype))

    def _put(self, position_B: Tensor, token_B: Tensor, where_B: Tensor) -> None:
        position_B1 = position_B.clamp(max=self.recipe.max_length - 1)[:, None]
        old_B1 = self.text_BS.gather(1, position_B1)
        self.text_BS.scatter_(1, position_B1, torch.where(where_B[:, None], token_B[:, None], old_B1))

    def _draw(self, logits_BV: Tensor, answering_B: Tensor) -> Tensor:
        """Answers at their temperature. User turns at 1: a draw outside the top-p set becomes the most likely token."""
        heat_B1 = torch.where(answering_B, self.temperature_B, 1.0)[:, None]
        uniform_BV = torch.rand_like(logits_BV).clamp_(min=1e-20)
        # The minimum of Exp(1) / p is a draw from p; written in place, because V is large.
        probability_BV = (logits_BV / heat_B1.clamp(min=1e-3)).softmax(-1)
        drawn_B1 = (probability_BV / uniform_BV.log_().neg_()).argmax(-1, keepdim=True)
        above_B1 = torch.where(probability_BV > probability_BV.gather(1, drawn_B1), probability_BV, 0.0).sum(-1, True)
        outside_B1 = ~answering_B[:, None] & (above_B1 >= self.recipe.user_top_p)
        greedy_B1 = logits_BV.argmax(-1, keepdim=True)
        return torch.where((heat_B1 == 0) | outside_B1, greedy_B1, drawn_B1)[:, 0]


def stop_after(seconds: float | None) -> Callable[[], bool]:
    """A clock: true once `seconds` have passed; never where None."""
    begin = time.monotonic()
    return lambda: seconds is not None and time.monotonic() - begin >= seconds
