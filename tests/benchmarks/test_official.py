"""How the official loop's answers are read, and how its draws are coupled to ours. The loop itself is not in here."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks.official import CoupledNoise, import_checkout, read
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.decoding.tree import candidates, level_wise
from harness.decoding.verify import verify_coupled

PROMPT = [5, 6, 7]


def answer(output: list[int], accepted: list[int]) -> SimpleNamespace:
    return SimpleNamespace(
        output_ids=torch.tensor([PROMPT + output]),
        num_input_tokens=len(PROMPT),
        acceptance_lengths=accepted,
        round_timestamps=[1.0 + place for place in range(len(accepted))],
        time_to_first_token=0.5,
        stage_times={"draft": 1.0},
    )


def test_rounds_are_cut_where_the_output_ends():
    found = read(answer([10, 11, 12, 13, 14, 15], [2, 1, 4]), max_new_tokens=6, stop_ids=[2])
    assert found.output_ids == [10, 11, 12, 13, 14, 15]
    assert found.emitted == [2, 1, 2]
    assert found.round_s == [1.0, 1.0, 1.0]
    assert found.decode_s == 3


def test_a_round_behind_the_cap_is_not_counted():
    found = read(answer([10, 11, 12, 13], [2, 1, 4]), max_new_tokens=4, stop_ids=[2])
    assert found.emitted == [2, 1]
    assert found.decode_s == 2


def test_a_stop_id_ends_the_last_round():
    found = read(answer([10, 11, 2], [1, 5]), max_new_tokens=64, stop_ids=[2])
    assert found.emitted == [1, 1]
    assert read(answer([2], [3]), max_new_tokens=64, stop_ids=[2]).emitted == []


def test_ids_missing_from_the_output_are_refused():
    """It drops ids that equal the mask id: five tokens were decoded here, four are left."""
    with pytest.raises(ValueError, match="5 tokens decoded, 4 left"):
        read(answer([10, 11, 12, 13], [2, 2]), max_new_tokens=64, stop_ids=[2])


def test_another_checkout_is_refused_with_the_command(tmp_path):
    (tmp_path / "ddtree.py").write_text("x = 1\n")
    with pytest.raises(ValueError, match=r"git clone .*checkout"):
        import_checkout(tmp_path)


class Positions(torch.nn.Module):
    def forward(self, tokens, position_ids=None):
        return tokens


def test_coupled_draws_are_those_of_our_verifier():
    """A tree behind 4 output tokens: every node of the accepted path draws what `verify_coupled` takes there."""
    vocab, stream, index = 50, 12345, 3
    generator = torch.Generator().manual_seed(0)
    logp, ids = candidates(2 * torch.randn(1, 4, vocab, generator=generator), 12)
    tree = level_wise(torch.tensor([9]), logp, ids, 12)
    logits = torch.randn(1, tree.num_nodes, vocab, generator=generator)
    deep = 0
    for place in range(64):
        sampling = sampling_batch([SamplingParams(0.7, stream=stream + place)])
        verified = verify_coupled(tree, logits, sampling, torch.tensor([index]))
        target = Positions()
        sample = CoupledNoise(target, None).start(stream + place, prompt_tokens=len(PROMPT))
        target(None, position_ids=len(PROMPT) + index + tree.depth_BN)
        drawn = sample(logits, 0.7)
        accepted = int(verified.num_accepted_B[0])
        path = verified.path_BW[0, : accepted + 1]
        follows = torch.cat([tree.token_BN[0, path[1:]], verified.bonus_B])
        assert torch.equal(drawn[0, path], follows)
        deep += accepted
        wrong = CoupledNoise(target, None).start(stream + place, prompt_tokens=len(PROMPT) + 1)
        target(None, position_ids=len(PROMPT) + index + tree.depth_BN)
        assert not torch.equal(wrong(logits, 0.7), drawn)  # another index, other noise
    assert deep > 5  # paths are followed at all


def test_greedy_draws_are_its_own():
    target = Positions()
    sample = CoupledNoise(target, lambda logits, temperature: logits.argmax(-1)).start(1, 3)
    logits = torch.randn(1, 2, 9)
    assert torch.equal(sample(logits), logits.argmax(-1))
