"""The log-probability of an output, against the model asked token by token."""

from pathlib import Path

import pytest


def test_against_one_token_at_a_time(tiny_pair: dict[str, Path]) -> None:
    """Oracle: the last logits of a fresh forward for each prefix, the log-softmax written out."""
    import torch
    from transformers import AutoModelForCausalLM

    from harness.engines.target_logprob import mean_target_logprob

    model = AutoModelForCausalLM.from_pretrained(tiny_pair["target"], dtype=torch.float32).eval()
    prompt, output = [5, 9, 40, 7], [11, 12, 250, 2]
    expected = []
    for place, token in enumerate(output):
        with torch.no_grad():
            logits = model(torch.tensor([prompt + output[:place]])).logits[0, -1].double()
        expected.append(float(logits[token] - torch.log(torch.exp(logits).sum())))
    assert mean_target_logprob(model, prompt, output) == pytest.approx(sum(expected) / len(expected), abs=1e-5)
    for empty in (([], output), (prompt, [])):
        with pytest.raises(ValueError, match="both with tokens"):
            mean_target_logprob(model, *empty)


def test_it_goes_through_the_pipeline(harness) -> None:
    from harness.records import RunFolder

    harness("run.limit=3", "run.profile=2")
    [folder] = harness.outputs.iterdir()
    run = RunFolder(folder)
    profiled = run.records("profile.jsonl")
    assert len(profiled) == 2
    assert all(record.target_logprob < 0 for record in profiled)
    tokens = [len(record.output_ids) for record in profiled]
    mean = sum(r.target_logprob * n for r, n in zip(profiled, tokens, strict=True)) / sum(tokens)
    assert run.summary()["quality/target_logprob"] == pytest.approx(mean)
    assert run.summary()["quality/n_target_logprob"] == 2
