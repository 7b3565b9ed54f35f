"""How probable an output is under the target: one forward over prompt and output, outside every timed pass."""

import torch


@torch.no_grad()
def mean_target_logprob(model: torch.nn.Module, prompt_ids: list[int], output_ids: list[int]) -> float:
    """Mean natural log-probability of a token of `output_ids` after `prompt_ids`, at temperature 1 and without filters.

    `model` is a transformers causal language model; its logits are read at the output's places alone, and the log-softmax
    is taken in float32. Raises ValueError for an empty prompt or output.
    """
    if not prompt_ids or not output_ids:
        raise ValueError("a prompt and an output are needed, both with tokens")
    device = next(model.parameters()).device
    token_1L = torch.tensor([[*prompt_ids, *output_ids[:-1]]], device=device)
    logits_TV = model(input_ids=token_1L, logits_to_keep=len(output_ids), use_cache=False).logits[0]
    output_T = torch.tensor(output_ids, device=device)
    return float(logits_TV.float().log_softmax(dim=-1).gather(1, output_T[:, None]).mean())
