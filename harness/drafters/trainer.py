"""One training step after the other: the frozen target's features, many draft blocks, the loss, the best checkpoint.

Shapes: B conversations, S slots, A anchors of a conversation, D drafted tokens, R = B x A x D, V vocabulary, H hidden
size, F feature width.

Loss and block layout: DFlash, arXiv 2602.06036. Labels are the target's own distribution at each place of the text, whose
expectation is the marginal that the drafter estimates, so they carry less noise than the sampled tokens.
"""

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from harness.drafters.blocks import Blocks, make_blocks, random_anchors
from harness.drafters.checkpoint import write_checkpoint
from harness.drafters.corpus import Batch, Corpus, Sampler
from harness.drafters.heldout import measure, measure_rounds
from harness.drafters.recipe import Recipe
from harness.drafters.start import new_network

BEGIN = time.monotonic()


def log(*words: Any) -> None:
    print(f"[{time.monotonic() - BEGIN:7.1f}]", *words, flush=True)


class Trainer:
    def __init__(self, recipe: Recipe, target: PreTrainedModel, corpus: Corpus):
        self.recipe, self.target, self.corpus = recipe, target, corpus
        self.device = target.device
        self.config, self.network = new_network(recipe.network, target)
        self.network.to(self.device)
        decayed = [p for p in self.network.parameters() if p.dim() > 1]
        other = [p for p in self.network.parameters() if p.dim() == 1]
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": recipe.train.weight_decay}, {"params": other, "weight_decay": 0.0}],
            lr=recipe.train.lr, betas=(0.9, 0.95), fused=self.device.type == "cuda",
        )  # fmt: skip
        place_D = torch.arange(recipe.network.block_size - 1, device=self.device)
        self.weight_D = torch.exp(-place_D / recipe.train.decay)
        self.state: dict[str, Any] = {"step": 0, "elapsed": 0.0, "best": 0.0, "history": []}
        self.loss = torch.compile(self._loss, dynamic=False) if recipe.train.compile else self._loss

    @torch.no_grad()
    def features(self, ids_BS: Tensor) -> tuple[Tensor, Tensor]:
        """(features [B, S, F], last hidden states [B, S, H]) of the frozen target; right padding needs no mask."""
        out = self.target.base_model(input_ids=ids_BS, output_hidden_states=True, use_cache=False)
        feature_BSF = torch.cat([out.hidden_states[i + 1] for i in self.config.target_layer_ids], -1)
        return feature_BSF, out.last_hidden_state

    def hidden(self, batch: Batch, feature_BSF: Tensor, blocks: Blocks) -> Tensor:
        """The drafter's hidden states of drafted positions, [B, A, D, H]."""
        embedding_BQH = self.target.get_input_embeddings()(blocks.token_BQ)
        place_S = torch.arange(feature_BSF.shape[1], device=self.device)
        with torch.autocast(self.device.type, torch.bfloat16):
            hidden_BQH = self.network(
                feature_BSF, embedding_BQH.float(), place_S.expand(len(feature_BSF), -1), blocks.position_BQ,
                blocks.mask_B1QX,
            )  # fmt: skip
        num_rows, num_anchors, depth = blocks.label_BAD.shape
        return hidden_BQH.view(num_rows, num_anchors, depth + 1, -1)[:, :, 1:]

    def _loss(self, batch: Batch, feature_BSF: Tensor, last_BSH: Tensor, anchor_BA: Tensor) -> tuple[Tensor, Tensor]:
        """(loss, right guesses by position [D])."""
        net, floor = self.recipe.network, self.recipe.train.label_temperature
        blocks = make_blocks(batch, anchor_BA, net.block_size, net.mask_token_id)
        head = self.target.get_output_embeddings()
        logits_RV = head(self.hidden(batch, feature_BSF, blocks).flatten(0, 2).to(head.weight.dtype)).float()
        label_R: Tensor = blocks.label_BAD.flatten()
        wanted = label_R
        if floor > 0:
            with torch.no_grad():  # the label at place p is the target's answer at place p - 1
                before_BX = (anchor_BA[..., None] + torch.arange(net.block_size - 1, device=self.device)).flatten(1)
                before_BX = before_BX.clamp(max=batch.ids_BS.shape[1] - 1)
                last_BXH = last_BSH.gather(1, before_BX[..., None].expand(-1, -1, last_BSH.shape[-1]))
                heat_B = batch.temperature_B.clamp(min=floor)
                heat_R1 = heat_B.repeat_interleave(before_BX.shape[1])[:, None]
                wanted = (head(last_BXH.flatten(0, 1)).float() / heat_R1).softmax(-1)
        loss_BAD = F.cross_entropy(logits_RV, wanted, reduction="none").view_as(blocks.label_BAD)
        weight_BAD = blocks.valid_BAD * self.weight_D
        right_D = ((logits_RV.detach().argmax(-1) == label_R).view_as(blocks.label_BAD) & blocks.valid_BAD).sum((0, 1))
        return (loss_BAD * weight_BAD).sum() / weight_BAD.sum(), right_D / blocks.valid_BAD.sum((0, 1))

    def progress(self) -> float:
        train = self.recipe.train
        by_steps = self.state["step"] / train.steps if train.steps else 0.0
        return max(by_steps, self.state["elapsed"] / train.seconds)

    def run(self, state_path: Path, output_dir: Path) -> bool:
        """Train until the recipe's end (True) or train.call_seconds (False). Either way the state is on disk."""
        train, state = self.recipe.train, self.state
        if state_path.is_file():
            saved = torch.load(state_path, map_location=self.device)
            self.network.load_state_dict(saved["network"])
            self.optimizer.load_state_dict(saved["optimizer"])
            state.update(saved["state"])
            log("resumed at step", state["step"], "progress", round(self.progress(), 3))
        allowed = ~self.corpus.heldout(self.recipe.heldout.every)
        sampler = Sampler(self.corpus, allowed, train.batch_size, train.anchors, self.recipe.generate.max_length)
        log("buckets", [(s, b, a, len(rows)) for s, b, a, rows in sampler.buckets])
        tick = time.monotonic()
        while (progress := self.progress()) < 1:
            if train.call_seconds and time.monotonic() - BEGIN >= train.call_seconds:
                break
            rate = min(1.0, (state["step"] + 1) / train.warmup_steps)
            rate *= 0.01 + 0.99 * (1 + math.cos(math.pi * progress)) / 2
            for group in self.optimizer.param_groups:
                group["lr"] = train.lr * rate
            seed = (
                self.recipe.seed * 1_000_003 + state["step"]
            )  # of this step alone, so that a resumed run draws the same
            torch.manual_seed(seed)
            batch, anchors = sampler.draw(seed)
            feature_BSF, last_BSH = self.features(batch.ids_BS)
            loss, right_D = self.loss(batch, feature_BSF, last_BSH, random_anchors(batch, anchors))
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
            self.optimizer.step()
            state["step"] += 1
            if state["step"] % train.log_every == 0:
                value = loss.item()  # waits for the device, so that `elapsed` is real
                log("step", state["step"], "loss", round(value, 3), "right", [round(x, 3) for x in right_D.tolist()])
                if not math.isfinite(value):
                    raise RuntimeError(f"the loss is {value} at step {state['step']}; lower train.lr")
            if state["step"] % train.eval_every == 0:
                self.keep_best(output_dir)
            now = time.monotonic()
            state["elapsed"] += now - tick
            tick = now
        self.keep_best(output_dir)
        state_path.parent.mkdir(parents=True, exist_ok=True)
        saved = {"network": self.network.state_dict(), "optimizer": self.optimizer.state_dict(), "state": state}
        torch.save(saved, state_path.with_suffix(".partial"))
        state_path.with_suffix(".partial").rename(state_path)
        return self.progress() >= 1

    def draft(self, batch: Batch, blocks: Blocks) -> Tensor:
        """Logits [B, A, D, V], as heldout.measure wants them."""
        head = self.target.get_output_embeddings()
        return head(self.hidden(batch, self.features(batch.ids_BS)[0], blocks).to(head.weight.dtype))

    @torch.no_grad()
    def measure(self, budgets: list[int], keep: Tensor | None = None) -> dict[str, dict[str, float]]:
        net, generate = self.recipe.network, self.recipe.generate
        self.network.eval()
        found = measure(
            self.draft, self.corpus, self.recipe.heldout, generate.temperatures, block_size=net.block_size,
            mask_token_id=net.mask_token_id, num_slots=generate.max_length, budgets=budgets, keep=keep,
        )  # fmt: skip
        self.network.train()
        return found

    @torch.no_grad()
    def measure_rounds(self, budgets: list[int]) -> dict[str, dict[str, float]]:
        """By temperature, over a fifth of heldout.conversations."""
        net, generate, held = self.recipe.network, self.recipe.generate, self.recipe.heldout
        found = {}
        for heat in generate.temperatures:
            fits = self.corpus.heldout(held.every) & ((self.corpus.temperature - heat).abs() < 1e-3)
            rows = fits.nonzero().flatten()[: max(1, held.conversations // 5)]
            found[f"{heat:g}"] = measure_rounds(
                self.draft, self.corpus, rows, block_size=net.block_size, mask_token_id=net.mask_token_id,
                num_slots=generate.max_length, budgets=budgets,
            ) | {"conversations": len(rows)}  # fmt: skip
        return found

    def keep_best(self, output_dir: Path) -> None:
        """Write the drafter when its chain acceptance length, averaged over temperatures, is the best so far."""
        found = self.measure([])
        chain = {heat: round(row["chain"], 4) for heat, row in found.items() if row["conversations"]}
        if not chain:
            raise ValueError("heldout.every: no conversation is held out; lower it, or raise generate.tokens")
        mean = sum(chain.values()) / len(chain)
        self.state["history"].append(
            {"step": self.state["step"], "elapsed_s": round(self.state["elapsed"], 1), "chain": chain}
        )
        log("held-out chain", chain, "mean", round(mean, 4))
        if mean > self.state["best"]:
            self.state["best"] = mean
            write_checkpoint(output_dir, self.config, self.network.state_dict(), torch.bfloat16)
