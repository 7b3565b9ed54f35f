"""Stops and caps: ids, counts and committed rows are cut at one place (design.md "Stops"; cases 8, 14, 15, 17)."""

import pytest
import torch

from harness.decoding.loop import decode
from harness.decoding.round import cut, emitted_tokens
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.decoding.tree import chain, root_only
from harness.decoding.verify import VERIFIERS, Verified

STOP = 7


def run_cut(tokens: list[int], room: int, stops: tuple[int, ...] = (STOP,)) -> tuple[list[int], bool]:
    token_BW = torch.tensor([tokens + [STOP] * 3])  # entries behind the round mean nothing
    num, stopped = cut(token_BW, torch.tensor([len(tokens)]), torch.tensor(stops), torch.tensor([room]))
    return tokens[: int(num)], bool(stopped)


@pytest.mark.parametrize(
    ("tokens", "room", "kept", "stopped"),
    [
        ([1, 2, STOP, 3, 4], 99, [1, 2, STOP], True),  # a stop id inside the accepted path
        ([10, 11, STOP, 20, 21, 22], 5, [10, 11, STOP], True),
        ([10, 11, STOP, 20, 21, 22], 2, [10, 11], False),  # the cap comes first
        ([10, 11, STOP], 3, [10, 11, STOP], True),  # both at once: a stop
        ([10, 11, 12], 3, [10, 11, 12], False),
        ([STOP], 1, [STOP], True),
        ([10, 11, 12, 13], 1, [10], False),
    ],
)
def test_a_round_is_cut_at_the_first_stop_or_the_cap(tokens, room, kept, stopped):
    assert run_cut(tokens, room) == (kept, stopped)


def test_every_stop_id_of_the_list_stops():
    assert run_cut([1, 9, 3], 9, stops=(STOP, 9)) == ([1, 9], True)


def test_a_sample_without_stop_ids_runs_to_the_cap():
    token_BW = torch.tensor([[1, 2, 3]])
    num, stopped = cut(token_BW, torch.tensor([3]), torch.tensor([], dtype=torch.int64), torch.tensor([2]))
    assert (int(num), bool(stopped)) == (2, False)


def test_emitted_tokens_are_the_path_then_the_bonus():
    tree = chain(torch.tensor([5]), torch.tensor([[1, 2, 3]]), torch.zeros(1, 3))
    verified = Verified(torch.tensor([[0, 1, 2, -1]]), torch.tensor([2]), torch.tensor([8]))
    assert emitted_tokens(tree, verified)[0, :3].tolist() == [1, 2, 8]


class Counting:
    """A target that always says the last token plus one, and keeps what was committed as plain lists."""

    vocabulary = 64

    def __init__(self) -> None:
        self.rows: list[list[int]] = []

    def _logits(self, token: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot((token + 1) % self.vocabulary, self.vocabulary).float() * 50

    def prefill(self, prompts, slots):
        self.rows = [list(prompt) for prompt in prompts]
        last = torch.tensor([prompt[-1] for prompt in prompts])
        longest = max(map(len, prompts))
        return self._logits(last), torch.zeros(len(prompts), longest, 1), torch.tensor([len(p) for p in prompts])

    def forward(self, tree, longest):
        assert longest == max(map(len, self.rows))
        self.tree = tree
        return self._logits(tree.token_BN), torch.zeros(*tree.token_BN.shape, 1)

    def commit(self, path_BW, num_B):
        for b, row in enumerate(self.rows):
            nodes = path_BW[b, : int(num_B[b])]
            row += self.tree.token_BN[b, nodes].tolist()


class Guessing:
    """A drafter that guesses right for `right` depths and wrong from there on; it counts its context."""

    def __init__(self, block_size: int, right: int):
        self.block_size, self.right = block_size, right

    def new_state(self, batch, slots):
        return {"length": torch.zeros(batch, dtype=torch.int64)}

    def extend(self, state, feature_BQF, num_B):
        state["length"] = state["length"] + num_B

    def propose(self, state, root_B, *, num_slots):
        assert int(state["length"].max()) + self.block_size <= num_slots
        depth_D = torch.arange(1, self.block_size)
        guess_BD = root_B[:, None] + torch.where(depth_D <= self.right, depth_D, depth_D + 7)
        return torch.nn.functional.one_hot(guess_BD % Counting.vocabulary, Counting.vocabulary).float() * 9


def run(prompts, *, block=5, right=2, cap=20, stops=(40,)):
    from harness.speculative.dflash import DFlash

    target = Counting()
    sampling = sampling_batch([SamplingParams(temperature=0.0) for _ in prompts], "cpu")
    results = decode(
        target,
        Guessing(block, right),
        DFlash().build,
        VERIFIERS["walk"],
        prompts,
        sampling,
        max_new_tokens=cap,
        num_nodes=block,
        stop_ids=list(stops),
    )
    return target, results


@pytest.mark.parametrize("cap", [1, 2, 3, 4, 5, 6, 19, 20])
@pytest.mark.parametrize("right", [0, 2, 4])
def test_output_is_exactly_the_cap(cap, right):
    _, [result] = run([[3]], right=right, cap=cap)
    assert result.output_ids == [4 + i for i in range(cap)]
    assert result.finish_reason == "length"
    assert 1 + sum(r.num_emitted for r in result.rounds) == cap


@pytest.mark.parametrize("right", [0, 1, 3, 4])
@pytest.mark.parametrize("first", range(30, 40))
def test_a_stop_anywhere_ends_ids_counts_and_rows_together(right, first):
    target, [result] = run([[first - 1]], right=right, cap=64)
    assert result.output_ids == list(range(first, 41))
    assert result.finish_reason == "stop"
    # The rows are the prompt and all output but the last token, as if it had been decoded token by token.
    assert target.rows[0] == list(range(first - 1, 40))
    assert 1 + sum(r.num_emitted for r in result.rounds) == len(result.output_ids)


def test_a_first_token_that_stops_has_no_rounds():
    _, [result] = run([[39]])
    assert (result.output_ids, result.finish_reason, result.rounds) == ([40], "stop", [])


def test_all_accepted_counts_the_bonus_once():
    _, [result] = run([[3]], block=16, right=15, cap=17)
    assert [(r.num_accepted, r.num_emitted) for r in result.rounds] == [(15, 16)]


def test_samples_of_a_batch_end_on_their_own():
    prompts = [[3], [1, 2, 30], [38]]
    _, results = run(prompts, cap=12)
    assert [r.output_ids for r in results] == [list(range(4, 16)), list(range(31, 41)), [39, 40]]
    assert [r.finish_reason for r in results] == ["length", "stop", "stop"]
    alone = [run([prompt], cap=12)[1][0] for prompt in prompts]
    assert [[(s.num_accepted, s.num_emitted, s.context_length) for s in r.rounds] for r in results] == [
        [(s.num_accepted, s.num_emitted, s.context_length) for s in r.rounds] for r in alone
    ]


def test_the_profile_pass_expects_what_a_certain_target_accepts():
    """The target is certain, so expected and measured accepts are equal and the variance is nought."""
    from contextlib import nullcontext

    from harness.speculative.dflash import DFlash

    results = decode(
        Counting(),
        Guessing(5, 2),
        DFlash().build,
        VERIFIERS["walk"],
        [[3]],
        sampling_batch([SamplingParams(temperature=1.0)], "cpu"),
        max_new_tokens=10,
        num_nodes=5,
        stop_ids=[],
        profile=lambda name: nullcontext(),
    )
    for r in results[0].rounds:
        assert r.expected_accepted == pytest.approx(r.num_accepted, abs=1e-6)
        assert r.expected_variance == pytest.approx(0, abs=1e-6)


def test_expected_accepts_against_enumeration():
    """Mean and variance of the accepted drafts, summed over all outcomes of an independent walk."""
    from harness.decoding.expected import expected_accepted
    from harness.decoding.tree import DraftTree

    generator = torch.Generator().manual_seed(0)
    p = torch.softmax(torch.randn(1, 6, 5, generator=generator), -1)
    tree = DraftTree(
        token_BN=torch.tensor([[0, 1, 2, 3, 1, 0]]),
        parent_BN=torch.tensor([[-1, 0, 0, 1, 1, -1]]),
        depth_BN=torch.tensor([[0, 1, 1, 2, 2, 0]]),
        score_BN=torch.zeros(1, 6),
        count_B=torch.tensor([5]),
    )
    outcome = {0: 0.0, 1: 0.0, 2: 0.0}

    def walk(node: int, depth: int, mass: float) -> None:
        children = [i for i in range(1, 5) if tree.parent_BN[0, i] == node]
        taken = 0.0
        for child in children:
            q = float(p[0, node, tree.token_BN[0, child]])
            taken += q
            walk(child, depth + 1, mass * q)
        outcome[depth] += mass * (1 - taken)

    walk(0, 0, 1.0)
    mean = sum(a * q for a, q in outcome.items())
    variance = sum((a - mean) ** 2 * q for a, q in outcome.items())
    got_mean, got_variance = expected_accepted(tree, p)
    assert got_mean.item() == pytest.approx(mean, abs=1e-6)
    assert got_variance.item() == pytest.approx(variance, abs=1e-6)


def test_a_root_alone_expects_nothing():
    from harness.decoding.expected import expected_accepted

    mean, variance = expected_accepted(root_only(torch.tensor([3, 4])), torch.full((2, 1, 5), 0.2))
    assert mean.tolist() == [0, 0]
    assert variance.tolist() == [0, 0]


def traced(right: int = 2, cap: int = 10, prompts: tuple[tuple[int, ...], ...] = ((3,),), **changes):
    from contextlib import nullcontext

    from harness.speculative.ddtree import DDTree

    mode = DDTree(tree_budget=changes.pop("budget", 6))
    return decode(
        Counting(),
        Guessing(5, right),
        mode.build,
        VERIFIERS["walk"],
        [list(prompt) for prompt in prompts],
        sampling_batch([SamplingParams(temperature=1.0) for _ in prompts], "cpu"),
        max_new_tokens=cap,
        num_nodes=mode.num_nodes(5),
        stop_ids=[],
        **{"profile": lambda name: nullcontext(), **changes},
    )


def test_a_trace_tells_the_output_and_the_expected_accepts():
    """The path's tokens and the bonus are the output itself; the probabilities give the expectation, summed by hand."""
    for result in traced(prompts=((3,), (7, 20))):
        said = [result.output_ids[0]]
        assert len(result.trees) == len(result.rounds) > 1
        for stats, tree in zip(result.rounds, result.trees, strict=True):
            assert len(tree.tokens) == stats.num_nodes + 1 == 7
            assert tree.tokens[0] == said[-1]
            assert tree.path[0] == 0
            assert all(tree.parents[after] == before for before, after in zip(tree.path, tree.path[1:], strict=False))
            assert (tree.parents[0], tree.scores[0], tree.probabilities[0]) == (-1, 0, 1)
            said += ([tree.tokens[node] for node in tree.path[1:]] + [tree.bonus])[: stats.num_emitted]
            expected = 0.0
            for node in range(1, len(tree.tokens)):
                mass, above = 1.0, node
                while above > 0:
                    assert tree.parents[above] < above
                    mass, above = mass * tree.probabilities[above], tree.parents[above]
                expected += mass
            assert expected == pytest.approx(stats.expected_accepted, abs=1e-4)
        assert said == result.output_ids


def test_the_timed_pass_leaves_no_trace_and_looks_at_nothing(monkeypatch):
    def never(*_):
        raise AssertionError("the timed pass must not look at trees")

    monkeypatch.setattr("harness.decoding.loop._look", never)
    [result] = traced(profile=None)
    assert result.trees == []
    with pytest.raises(AssertionError, match="timed pass"):  # the control: a profile pass would have called it
        traced()


def test_a_trace_is_bounded_in_rounds():
    from harness.decoding.trace import MAX_TRACED_ROUNDS

    [result] = traced(right=0, cap=3 * MAX_TRACED_ROUNDS)
    assert len(result.rounds) > MAX_TRACED_ROUNDS
    assert len(result.trees) == MAX_TRACED_ROUNDS


def test_a_large_tree_keeps_its_path_and_stays_closed_under_parents():
    """200 nodes: a chain of 4 at the very end, all accepted, behind 196 children of the root."""
    from harness.decoding.trace import MAX_TRACED_NODES, trace_trees
    from harness.decoding.tree import DraftTree

    wide, total = 196, 201
    parents = [-1, *[0] * wide, 0, wide + 1, wide + 2, wide + 3]
    tree = DraftTree(
        token_BN=torch.arange(total)[None] + 1000,
        parent_BN=torch.tensor([parents]),
        depth_BN=torch.tensor([[0, *[1] * wide, 1, 2, 3, 4]]),
        score_BN=-torch.arange(total, dtype=torch.float32)[None],
        count_B=torch.tensor([total]),
    )
    verified = Verified(torch.tensor([[0, 197, 198, 199, 200]]), torch.tensor([4]), torch.tensor([5]))
    [found] = trace_trees(tree, verified, torch.linspace(1, 0, total, dtype=torch.float64)[None])
    assert len(found.tokens) == MAX_TRACED_NODES + 1
    assert [found.tokens[node] for node in found.path] == [1000, 1197, 1198, 1199, 1200]
    assert [found.tokens[found.parents[node]] for node in found.path[1:]] == [1000, 1197, 1198, 1199]
    assert found.parents[1 : MAX_TRACED_NODES - 3] == [0] * (MAX_TRACED_NODES - 4)
    assert found.probabilities[found.path[-1]] == 0.0
