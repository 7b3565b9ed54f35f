"""What DDTREE cannot honour, said by name: server options before a model loads, request options before a token.

A tree's nodes see the state of their own path. Penalties, grammars and logit processors of SGLang see the state of the
committed text, so under a tree they would act on the wrong history; log-probabilities of a path are not kept.
"""

from typing import Any

from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.sglang_plugin.options import NAME

BACKENDS = {"cuda": "triton", "cpu": "torch_native"}
TOP_K_ALL = 1 << 30  # SGLang's "off"


def check_server_args(args: Any, block_size: int) -> None:
    """Raises ValueError with the option and the fix. args: SGLang's ServerArgs; block_size: of the drafter."""
    device = str(args.device).split(":")[0]
    if device not in BACKENDS:
        raise ValueError(f"{NAME}: --device {args.device} is not supported; supported: {', '.join(BACKENDS)}")
    wanted = BACKENDS[device]
    for option in ("attention_backend", "decode_attention_backend", "prefill_attention_backend"):
        backend = getattr(args, option, None)
        if backend not in (None, wanted) or (option == "attention_backend" and backend is None):
            raise ValueError(
                f"{NAME}: --{option.replace('_', '-')} is {backend}, but a tree mask works with {wanted} on {device} "
                f"only (MHA, GQA and MLA targets). Set --attention-backend {wanted}"
            )
    if device == "cuda" and getattr(args, "speculative_draft_attention_backend", None) not in (None, wanted):
        raise ValueError(f"{NAME}: --speculative-draft-attention-backend must be {wanted} or absent")
    limits = {
        "page_size": (None, 1),
        "pp_size": (None, 1),
        "enable_dp_attention": (None, False),
        "enable_two_batch_overlap": (None, False),
        "enable_pdmux": (None, False),
        "enable_deterministic_inference": (None, False),
        "speculative_draft_window_size": (None,),
        "speculative_dflash_block_size": (None,),
        "disaggregation_mode": (None, "null"),
    }
    for option, allowed in limits.items():
        value = getattr(args, option, None)
        if value not in allowed:
            raise ValueError(f"{NAME} does not support --{option.replace('_', '-')} {value}; leave it out")
    if not args.speculative_draft_model_path:
        raise ValueError(f"{NAME} needs --speculative-draft-model-path, a DFlash checkpoint")
    width = int(args.speculative_num_draft_tokens)
    if width < block_size:
        raise ValueError(
            f"{NAME}: the tree budget {width - 1} is below the drafter's {block_size - 1} depths. "
            f"Set --speculative-num-draft-tokens (tree budget + 1) to {block_size} or more"
        )


def check_model(runner: Any) -> None:
    """Raises ValueError for a target whose attention or cache cannot hold a tree. runner: the target's ModelRunner."""
    if runner.sliding_window_size:
        raise ValueError(
            f"{NAME}: the target has sliding-window layers, whose window counts rows and not tree depths. "
            "Targets with full attention in every layer work (MHA, GQA, MLA)"
        )
    head = getattr(runner.model, "lm_head", None)
    if head is None or not hasattr(head, "weight") or not head.weight.is_floating_point():
        raise ValueError(
            f"{NAME} reads the drafter's marginals through the target's lm_head, which must be unquantized"
        )


def params_of(req: Any, stream: int = 0) -> SamplingParams:
    """The request's sampling parameters. SGLang writes temperature 0 as top_k 1."""
    given = req.sampling_params
    if given.top_k == 1:
        return SamplingParams(temperature=0.0, stream=stream)
    top_k = 0 if given.top_k in (-1, TOP_K_ALL) else int(given.top_k)
    return SamplingParams(float(given.temperature), top_k, float(given.top_p), float(given.min_p), stream)


def check_request(req: Any) -> str | None:
    """The message of a refusal, or None. It reaches the client as the error of its request."""
    given = req.sampling_params
    asked = {
        "return_logprob (log-probabilities)": req.return_logprob,
        "return_hidden_states": req.return_hidden_states,
        "a grammar (json_schema, regex, ebnf, structural_tag)": (
            given.json_schema or given.regex or given.ebnf or given.structural_tag
        ),
        "frequency_penalty": given.frequency_penalty != 0,
        "presence_penalty": given.presence_penalty != 0,
        "repetition_penalty": given.repetition_penalty != 1,
        "min_new_tokens": given.min_new_tokens > 0,
        "logit_bias": given.logit_bias,
        "a custom logit processor": req.custom_logit_processor,
        "return_sampling_mask": getattr(req, "return_sampling_mask", False),
        "n > 1 with one sampling_seed (the texts would be equal)": given.sampling_seed is not None and given.n > 1,
    }
    found = [name for name, is_asked in asked.items() if is_asked]
    if found:
        return f"{NAME} does not support {', '.join(found)}"
    try:
        sampling_batch([params_of(req)])
    except ValueError as error:
        return f"{NAME}: {error}"
    return None
