"""What `benchmarks.decode` says of samples whose numbers are known, and that it notices a temperature that is ignored."""

import math
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import decode
from benchmarks.decode_arms import Decoded, OurArm, Prompt, our_modes, parse_engine
from benchmarks.decode_rows import rows, same_output
from harness.engines.base import Generation
from harness.records import Round
from harness.speculative.autoregressive import Autoregressive


def sample(tokens: int, rounds: int, seconds: float, ids: tuple[int, ...] = (1,)) -> Decoded:
    return Decoded(list(ids), tokens, rounds, seconds)


ARMS = {
    "autoregressive-coupled": {"a": sample(100, 100, 10.0), "b": sample(50, 50, 5.0), "c": sample(60, 60, 6.0)},
    "autoregressive-walk": {"a": sample(100, 100, 12.0), "b": sample(50, 50, 6.0), "c": sample(60, 60, 7.2)},
    "ddtree-15": {"a": sample(100, 40, 5.0), "b": sample(50, 20, 2.5), "c": sample(60, 24, 3.0)},
    "official autoregressive": {},
    "official ddtree-15": {"a": sample(100, 50, 40.0), "b": sample(50, 25, 20.0)},
}


def test_rows_of_known_samples():
    table = rows(ARMS)
    tree = table["ddtree-15"]
    assert tree["acceptance_length"] == 2.5
    assert tree["tokens_per_s"] == 20
    assert tree["round_ms"] == 125
    assert tree["baseline"] == "autoregressive-coupled"  # the faster of ours, never the official one
    assert tree["speed_up"] == {"value": 2.0, "low": 2.0, "high": 2.0}
    assert tree["round_over_autoregressive"]["value"] == 1.25
    official = tree["over_official"]
    assert official["samples"] == 2  # those of both
    assert official["acceptance_length"]["value"] == 1.25
    assert official["tokens_per_s"]["value"] == 8
    assert table["official ddtree-15"]["speed_up"]["value"] == 0.25
    assert "official autoregressive" not in table
    assert "over_official" not in table["autoregressive-coupled"]


def test_intervals_span_what_prompts_differ_by():
    found = {str(i): sample(100, 40 + i, 1.0 + i / 10) for i in range(12)}
    base = {str(i): sample(100, 50, 2.0) for i in range(12)}
    ratio = rows({"dflash": found, "official dflash": base})["dflash"]["over_official"]["acceptance_length"]
    assert ratio["low"] < ratio["value"] < ratio["high"]
    assert ratio["value"] == pytest.approx(600 / sum(40 + i for i in range(12)), abs=1e-4)


def test_same_output_counts_whole_outputs():
    ours = {"a": sample(2, 2, 1, (1, 2)), "b": sample(2, 2, 1, (1, 3))}
    theirs = {"a": sample(2, 2, 1, (1, 2)), "b": sample(2, 2, 1, (1, 4)), "c": sample(1, 1, 1)}
    assert same_output(ours, theirs) == 0.5
    with pytest.raises(ValueError, match="share no"):
        same_output(ours, {"z": sample(1, 1, 1)})


class Session:
    """Answers with the temperature it was opened with, or with the one it is told."""

    def __init__(self, listens: bool):
        self.listens = listens
        self.setup = SimpleNamespace()

    def generate(self, requests):
        t = self.setup.sampling.temperature if self.listens else 0.0
        ids = [7, requests[0].stream % 97 if t > 0 else 7]
        one = Round(num_accepted=0, num_emitted=1, num_nodes=0, context_length=3)
        yield Generation(request=requests[0], output_ids=ids, finish_reason="length", rounds=[one], decode_s=0.1)


def test_a_failed_sample_is_told_and_leaves_the_others():
    def generate(requests):
        yield Generation(request=requests[0], error="it broke")

    engine = SimpleNamespace(open=lambda setup: SimpleNamespace(generate=generate))
    arm = OurArm(Autoregressive(), engine, target=Path("t"), drafter=Path("d"), device="cpu", stop_ids=[2])
    assert arm.decode(Prompt("task", "1", 4, [1, 2, 3]), 0.0, 8) is None
    assert "T=0.0 task 1: it broke" in arm.failed[0]


@pytest.mark.parametrize("listens", [True, False])
def test_a_session_that_ignores_the_temperature_is_caught(listens):
    engine = SimpleNamespace(open=lambda setup: Session(listens))
    arm = OurArm(Autoregressive(), engine, target=Path("t"), drafter=Path("d"), device="cpu", stop_ids=[2])
    prompt = Prompt("task", "1", 4, [1, 2, 3])
    if listens:
        arm.guard(prompt)
        assert arm.decode(prompt, 1.0, 2) == Decoded([7, 4], 1, 1, 0.1)
    else:
        with pytest.raises(RuntimeError, match="does not reach the sampler"):
            arm.guard(prompt)


def test_arms_take_turns_and_stop_at_their_limits():
    calls = []

    class Arm:
        def __init__(self, name):
            self.name = name

        def decode(self, prompt, temperature, cap):
            calls.append((prompt.sample_id, self.name))
            return sample(2, 1, 0.1)

    prompts = [Prompt("t", str(i), i, [1]) for i in range(3)]
    arms = {"x": Arm("x"), "official y": Arm("y")}
    found, undone = decode.interleave(arms, prompts, {"official y": 1}, 0.0, 4, until=math.inf)
    assert calls == [("0", "x"), ("0", "y"), ("1", "x"), ("2", "x")]
    assert undone == 0
    assert len(found["x"]) == 3
    assert list(found["official y"]) == ["t 0"]
    assert decode.interleave(arms, prompts, {}, 0.0, 4, until=0.0)[1] == 3


def test_priming_meets_every_context_before_the_clock_starts():
    """Prompts of 100 and 300 tokens, 128 more: the longest first, every power of two, the very end."""
    lengths = []

    class Recorder(Session):
        def generate(self, requests):
            lengths.append((len(requests[0].prompt_ids), self.setup.sampling.max_new_tokens))
            yield from super().generate(requests)

    engine = SimpleNamespace(open=lambda setup: Recorder(True))
    arm = OurArm(Autoregressive(), engine, target=Path("t"), drafter=Path("d"), device="cpu", stop_ids=[2])
    arm.prime([Prompt("t", "a", 1, [1] * 100), Prompt("t", "b", 1, [1] * 300)], 0.0, 128)
    assert lengths == [(300, 128), (96, 16), (192, 16), (384, 16), (412, 16)]


def test_arms_and_engine_words():
    assert list(our_modes([7], "coupled", ["coupled", "walk"])) == [
        "autoregressive-coupled", "autoregressive-walk", "dflash", "ddtree-7"
    ]  # fmt: skip
    assert parse_engine(["dtype=float32", "batch_size=2"]).batch_size == 2
    with pytest.raises(ValueError, match="--engine nonsense=1"):
        parse_engine(["nonsense=1"])
