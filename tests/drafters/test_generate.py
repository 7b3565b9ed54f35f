"""Self-generated text against plain forwards of the same model, and the draw against the distribution it claims.

B rows drawn at once, V vocabulary.
"""

import dataclasses
import itertools

import pytest
import torch
from scipy.stats import chisquare

from harness.drafters.generate import Conversation, Generator
from harness.drafters.recipe import checked, compose


@pytest.fixture
def generator(generated) -> Generator:
    return generated.generator


@pytest.fixture
def conversations(generated) -> list[Conversation]:
    return generated.conversations


def test_every_conversation_has_the_shape_of_a_chat(conversations, generator: Generator) -> None:
    assert (generator.prefix, generator.middle) == ([5, 2], [1, 3])
    assert generator.num_rows > generator.recipe.batch_size  # rows were replaced
    assert {c.temperature for c in conversations} == {0.0, 0.6, 1.0}
    assert any(c.opener >= 0 for c in conversations)
    for c in conversations:
        assert c.tokens[:2] == generator.prefix
        assert c.tokens[c.response_start - 2 : c.response_start] == generator.middle
        assert 1 not in c.tokens[2 : c.response_start - 2]
        assert 1 not in c.tokens[c.response_start : -1]
        assert c.tokens[-1] == 1 or len(c.tokens) == generator.recipe.max_length
        opener = generator.openers[c.opener] if c.opener >= 0 else []
        assert c.tokens[2 : 2 + len(opener)] == opener


def test_greedy_answers_are_the_models_own_argmax(conversations, tiny_chat) -> None:
    greedy = [c for c in conversations if c.temperature == 0]
    warm = [c for c in conversations if c.temperature == 1]
    agree = []
    for c in greedy + warm:
        guess = tiny_chat.target(torch.tensor([c.tokens])).logits[0].argmax(-1).tolist()
        answer = range(c.response_start, len(c.tokens))
        agree.append(all(guess[p - 1] == c.tokens[p] for p in answer))
    assert len(greedy) >= 5
    assert all(agree[: len(greedy)])
    assert not any(agree[len(greedy) :])  # the check can fail: text drawn at 1 is not the argmax


def test_draws_follow_the_distribution(generator: Generator, monkeypatch) -> None:
    """Three chi-squared tests at a false-alarm level of 1e-4 each, with a fixed seed."""
    num, size = 40_000, 6
    logits_V = torch.tensor([2.0, 1.0, 0.5, 0.0, -1.0, -3.0])
    for answering, heat in ((True, 1.0), (True, 0.6), (False, 0.6)):
        monkeypatch.setattr(generator, "temperature_B", torch.full((num,), heat))
        torch.manual_seed(0)
        drawn_B = generator._draw(logits_V.expand(num, size).clone(), torch.full((num,), answering))
        probability = (logits_V.double() / (heat if answering else 1.0)).softmax(-1)
        if not answering:  # outside the first tokens that reach the mass, a draw becomes token 0
            before = probability.cumsum(0) - probability
            lost = probability[before >= generator.recipe.user_top_p].sum()
            assert lost > 0.005
            probability = torch.where(before < generator.recipe.user_top_p, probability, 0.0)
            probability[0] += lost
        seen = torch.bincount(drawn_B, minlength=size).double()
        kept = probability > 0
        assert seen[~kept].sum() == 0
        assert chisquare(seen[kept], probability[kept] * num).pvalue > 1e-4


def test_the_seed_decides_the_text(tiny_chat, overrides: list[str]) -> None:
    recipe = checked(compose(overrides)).generate

    recipe = dataclasses.replace(recipe, batch_size=8)

    def first(seed: int) -> list[Conversation]:
        text = Generator(tiny_chat.target, tiny_chat.tokenizer, recipe, seed).conversations()
        return list(itertools.chain.from_iterable(itertools.islice(text, 3)))

    assert first(1) == first(1) != first(2)
