"""The DDTREE worker: SGLang's DFLASH worker drafts, one tree a request is verified in one target forward, and the
accepted path is committed.

Shapes: B requests, K block size (root and depths 1..K-1), N verify width (tree budget + 1, node 0 = root), F features.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.dflash_info import DFlashVerifyInput
from sglang.srt.speculative.dflash_worker_v2 import DFlashWorkerV2
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from torch import Tensor

from harness.decoding.tree import root_only
from harness.kernels.choice import verifier
from harness.sglang_plugin import compat, mask
from harness.sglang_plugin.commit import RowMover
from harness.sglang_plugin.marginals import draft_candidates
from harness.sglang_plugin.options import read_options
from harness.sglang_plugin.refusals import check_model
from harness.sglang_plugin.round import RoundBuffers, Verdict, judge, plant
from harness.sglang_plugin.rows import Rows, SamplingRows


class DDTreeWorker(DFlashWorkerV2):
    def __init__(self, *args: Any, **kwargs: Any):
        compat.check_hooks()
        super().__init__(*args, **kwargs)
        self.options = read_options(os.environ)
        self.verify = verifier(self.options.verifier)
        self.target_runner = self.model_runner
        check_model(self.target_runner)
        # The base class takes speculative_num_draft_tokens for the block size; here it is the tree's width.
        self.width = int(self.server_args.speculative_num_draft_tokens)
        self.block_size = int(compat.draft_config(self._draft_hf_config()).resolve_block_size(default=16))
        self._block_pos_offsets, self._draft_block_spec_info = compat.draft_position_offsets(
            self.block_size, self.device
        )
        self.group = compat.tp_group()
        self.is_alone = self.group.world_size == 1
        if self.device == "cpu":
            from harness.sglang_plugin.cpu.attention import keep_embedding_dtype

            keep_embedding_dtype(self.draft_model)

    def _draft_hf_config(self) -> Any:
        return self.draft_model_runner.model_config.hf_config

    def _maybe_build_draft_sampler(self) -> None:
        return None  # the argmax head has no marginals; `_plant_in_graph` stands in its place

    def init_attention_backends(self) -> None:
        """Called when the pools exist and before any graph is captured."""
        super().init_attention_backends()
        runner = self.target_runner
        capacity = int(runner.req_to_token_pool.size) + 1
        self.buffers = RoundBuffers(capacity, self.width, self.block_size, self.device)
        self.rows = SamplingRows(capacity, self.device, int(self.server_args.random_seed or 0))
        self.mover = RowMover(runner.token_to_kv_pool_allocator.get_kvcache())
        self._sampled_at_prefill: Any = None
        self._sglang_sample, runner.sample = runner.sample, self._first_token
        if self.device != "cpu" and self.options.verifier != "walk":
            if self.options.verifier == "kernel":
                from harness.decoding.verify_kernel import find_kernel

                find_kernel("cuda")  # tries the kernel and waits for it: not inside a capture
            runner.capture_tail_hooks.append(self._judge_in_graph)
            self._judges_in_graph = True
        else:
            self._judges_in_graph = False
        self._rehearse()
        self._plants_in_graph = self.device != "cpu" and self.is_alone
        if self._plants_in_graph:
            self.draft_model_runner.capture_tail_hooks.append(self._plant_in_graph)

    @torch.inference_mode()
    def _rehearse(self) -> None:
        """Kernels compile and tables go to the device at their first call, which must not be inside a capture."""
        runner = self.target_runner
        weight = runner.model.lm_head.weight
        for count in (1, 2):  # Triton compiles a 1 apart
            rows, prefix_B = self.rows.captured(count), torch.zeros(count, dtype=torch.int64, device=self.device)
            hidden = weight.new_zeros(count * self.block_size, weight.shape[1])
            self._plant(hidden, prefix_B, prefix_B)
            for dtype in {weight.dtype, torch.float32}:
                shape = count * self.width, int(runner.model_config.vocab_size)
                self._judge(torch.zeros(shape, dtype=dtype, device=self.device), prefix_B, rows)

    # What SGLang's graphs end with. All tensors are the graphs' own static ones.

    def _plant_in_graph(self, runner: Any, out: Any, forward_batch: Any, num_tokens: int) -> None:
        count = forward_batch.batch_size
        self._plant(out.hidden_states, forward_batch.input_ids.view(count, -1)[:, 0], forward_batch.seq_lens[:count])
        cells = self._graph_mask(count)
        if cells is not None:
            mask.write(cells, self.buffers.mask[:count], forward_batch.seq_lens[:count].to(torch.int64))

    def _judge_in_graph(self, runner: Any, out: Any, forward_batch: Any, num_tokens: int) -> None:
        count = forward_batch.batch_size
        self._judge(out.next_token_logits, forward_batch.seq_lens[:count], self.rows.captured(count))

    def _plant(self, hidden: Tensor, root_B: Tensor, prefix_B: Tensor) -> None:
        hidden_BDH = hidden.view(len(root_B), self.block_size, -1)[:, 1:]
        head = self.target_runner.model.lm_head
        group = None if self.is_alone else self.group

        def propose(k: int) -> tuple[Tensor, Tensor]:
            return draft_candidates(hidden_BDH, head, k, group)

        plant(self.buffers, root_B, prefix_B, propose, self.options.spine)

    def _judge(self, logits: Tensor, prefix_B: Tensor, rows: Rows) -> None:
        judge(self.buffers, logits[: len(prefix_B) * self.width], prefix_B, rows, self.verify)

    def _graph_mask(self, count: int) -> Tensor | None:
        """The cells that the target's captured attention reads, where they hold so large a batch."""
        held = getattr(self.target_runner.attn_backend, "verify_mask", None)
        return held.buffer if held is not None and held.fits(count) else None

    # The round

    def forward_batch_generation(
        self, batch: Any, on_publish: Callable[[Tensor], None] | None = None, grammar_barrier: Any = None
    ) -> GenerationBatchResult:
        if batch.forward_mode.is_extend() or batch.is_extend_in_batch or batch.forward_mode.is_idle():
            self._sampled_at_prefill = batch
            return super().forward_batch_generation(batch, on_publish, grammar_barrier)
        return self._decode_round(batch, on_publish)

    @torch.inference_mode()
    def _decode_round(self, batch: Any, on_publish: Callable[[Tensor], None] | None) -> GenerationBatchResult:
        if self.device != "cpu":
            # The tensor may come from another stream of the overlap scheduler.
            batch.seq_lens.record_stream(torch.get_device_module(self.device).current_stream())
        prefix_B = batch.seq_lens.to(torch.int64)
        slots_BN = self._window_slots(batch, prefix_B)
        rows = self.rows.update(batch.reqs)
        lens_cpu = self._host_lengths(batch, prefix_B)
        self._draft(batch, prefix_B, slots_BN[:, : self.block_size], lens_cpu + self.block_size)
        target_out = self._target_forward(batch, slots_BN, lens_cpu + self.width)
        logits_output = target_out.logits_output
        if not (self._judges_in_graph and rows.plain and target_out.can_run_cuda_graph):
            self._judge(logits_output.next_token_logits, prefix_B, rows)
        verdict = self._agree(self.buffers.verdict(len(prefix_B)))
        new_seq_lens = prefix_B + verdict.count_B
        if on_publish is not None:
            on_publish(new_seq_lens)
        self._commit(logits_output, prefix_B, slots_BN, verdict)
        bonus_B = verdict.token_BK.gather(1, verdict.count_B.to(torch.int64)[:, None] - 1).squeeze(1)
        return GenerationBatchResult(
            next_token_ids=verdict.token_BK.reshape(-1),
            accept_lens=verdict.count_B,
            new_seq_lens=new_seq_lens,
            next_draft_input=self._make_next_draft_input_decode(bonus_tokens=bonus_B, new_seq_lens=new_seq_lens),
            logits_output=logits_output,
            can_run_cuda_graph=target_out.can_run_cuda_graph,
            speculative_num_draft_tokens=self.block_size,  # the stride of next_token_ids
        )

    def _window_slots(self, batch: Any, prefix_B: Tensor) -> Tensor:
        """KV slots [B, N] reserved behind each prefix. Read once: the table may change during the verify (overlap)."""
        columns_BN = prefix_B[:, None] + torch.arange(self.width, device=self.device)
        table = self.target_runner.req_to_token_pool.req_to_token
        return table[batch.req_pool_indices[:, None], columns_BN].to(torch.int64)

    def _host_lengths(self, batch: Any, prefix_B: Tensor) -> Tensor:
        """Upper bounds of the prefixes that need no answer from the device, int32 [B]."""
        known = batch.seq_lens_cpu
        if known is None:
            known = batch.spec_info.reserved_seq_lens_cpu
        if known is None:
            known = prefix_B.cpu()
        return known.to(torch.int32)

    def _draft(self, batch: Any, prefix_B: Tensor, slots_BK: Tensor, lens_cpu: Tensor) -> None:
        """One draft forward over [root, mask, mask, ...], then the trees."""
        tokens_BK = torch.full(slots_BK.shape, int(self._mask_token_id), dtype=torch.long, device=self.device)
        tokens_BK[:, 0] = batch.spec_info.bonus_tokens
        forward_batch = ForwardBatch(
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            forward_mode=ForwardMode.TARGET_VERIFY,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            batch_size=len(prefix_B),
            req_pool_indices=batch.req_pool_indices,
            input_ids=tokens_BK.flatten(),
            input_embeds=self.target_runner.model.get_input_embeddings()(tokens_BK).flatten(0, 1),
            positions=(prefix_B[:, None] + self._block_pos_offsets).flatten(),
            out_cache_loc=slots_BK.flatten(),
            seq_lens=prefix_B,
            seq_lens_cpu=lens_cpu,
            seq_lens_sum=int(lens_cpu.sum()),
        )
        out = self.draft_model_runner.forward(forward_batch)
        if not (self._plants_in_graph and out.can_run_graph):
            self._plant(out.logits_output.hidden_states, tokens_BK[:, 0], prefix_B)
            self._share_tree(prefix_B)
            cells = self._graph_mask(len(prefix_B))
            if cells is not None:
                mask.write(cells, self.buffers.mask[: len(prefix_B)], prefix_B)

    def _share_tree(self, prefix_B: Tensor) -> None:
        """Rank 0's trees on all ranks: one disagreeing tie would make ranks verify different trees, and hang."""
        if self.is_alone:
            return
        count = len(prefix_B)
        tree = self.buffers.tree(count)
        packed = torch.cat([tree.token_BN, tree.parent_BN, tree.depth_BN, tree.count_B[:, None]], dim=1)
        self.group.broadcast(packed, src=0)
        token_BN, parent_BN, depth_BN, count_B1 = packed.split([self.width] * 3 + [1], dim=1)
        shared = type(tree)(token_BN, parent_BN, depth_BN, tree.score_BN, count_B1[:, 0], tree.depth_limit)
        self.buffers.put_tree(shared, prefix_B)

    def _agree(self, verdict: Verdict) -> Verdict:
        """Rank 0's verdict on all ranks."""
        if self.is_alone:
            return verdict
        packed = torch.cat([verdict.path_BK, verdict.token_BK, verdict.count_B[:, None].to(torch.int64)], dim=1)
        self.group.broadcast(packed, src=0)
        path_BK, token_BK, count_B1 = packed.split([self.block_size] * 2 + [1], dim=1)
        return Verdict(path_BK, token_BK, count_B1[:, 0].to(torch.int32))

    def _target_forward(self, batch: Any, slots_BN: Tensor, lens_cpu: Tensor) -> Any:
        count = len(slots_BN)
        mask_BNN = self.buffers.mask[:count]
        cells = self._graph_mask(count)
        if cells is None:  # no graph holds this batch
            numel = mask.numel(lens_cpu.tolist(), self.width)
            cells = torch.zeros(numel, dtype=torch.uint8, device=self.device)
            mask.write(cells, mask_BNN, batch.seq_lens.to(torch.int64))
        verify_input = DFlashVerifyInput(
            draft_token=self.buffers.token[:count].flatten(),
            positions=self.buffers.position[:count].flatten(),
            draft_token_num=self.width,
            custom_mask=cells,
            capture_hidden_mode=CaptureHiddenMode.FULL,
        )
        verify_input.tree_mask_BNN = mask_BNN  # the CPU's attention reads it
        batch.out_cache_loc = slots_BN.flatten()
        before = batch.seq_lens_cpu, batch.seq_lens_sum
        batch.seq_lens_cpu, batch.seq_lens_sum = lens_cpu, int(lens_cpu.sum())
        forward_batch, _ = verify_input.prepare_for_verify(batch, self.target_worker)
        batch.seq_lens_cpu, batch.seq_lens_sum = before
        return self.target_worker.forward_batch_generation(
            batch=None, forward_batch=forward_batch, is_verify=True, skip_attn_backend_init=True
        )

    def _commit(self, logits_output: Any, prefix_B: Tensor, slots_BN: Tensor, verdict: Verdict) -> None:
        """The accepted path's KV to the front of the window; then the drafter's KV of the same tokens, from its features."""
        count, width = verdict.path_BK.shape
        self.mover.move(slots_BN, verdict.path_BK, verdict.count_B)
        hidden_BNF = logits_output.hidden_states[: count * self.width].view(count, self.width, -1)
        path_BKF = verdict.path_BK[..., None].expand(-1, -1, hidden_BNF.shape[-1])
        front_BK = slots_BN[:, :width].contiguous()
        offset_K = torch.arange(width, device=self.device)
        # The draft block's own rows in these slots were placeholders; only count_B rows of each request are written.
        self._append_target_hidden_to_draft_kv_by_loc(
            target_hidden=hidden_BNF.gather(1, path_BKF).flatten(0, 1),
            cache_loc=front_BK.flatten(),
            cache_loc_2d=front_BK,
            commit_lens=verdict.count_B,
            positions=(prefix_B[:, None] + offset_K).flatten(),
        )
        logits_output.hidden_states = None  # or the overlap scheduler copies it to the host

    def _first_token(self, logits_output: Any, forward_batch: Any) -> Tensor:
        """In place of SGLang's sampler after a prefill: the same law and the same noise as every later token."""
        batch = self._sampled_at_prefill
        rows = self.rows.update(batch.reqs)
        logits_BV = logits_output.next_token_logits
        index_B = forward_batch.seq_lens.to(torch.int64) - rows.prompt_len_B
        start = root_only(torch.zeros_like(index_B))
        token_B = self.verify(start, logits_BV[:, None], rows.sampling, index_B - 1).bonus_B
        if not self.is_alone:
            self.group.broadcast(token_B, src=0)
        return token_B
