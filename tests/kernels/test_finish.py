"""The walk, the cut and the state's step in one launch, against the torch forms: every field of every round, equal."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.decoding import round as reference
from harness.decoding.round import RoundState
from harness.decoding.sampling import SamplingParams, sampling_batch, stream_key
from harness.decoding.tree import DraftTree, candidates, chain, level_wise, root_only
from harness.decoding.verify import Verified, coupled_at_once, verify_kernel
from harness.decoding.verify_kernel import tree_speculative_sampling_target_only
from harness.kernels.draws import Partials
from harness.kernels.finish import finish, sample_coupled, walk_and_finish
from harness.kernels.sample_kernel import sample_kernel

FIELDS = ("root_B", "index_B", "active_B", "cap_B", "stop_S", "num_B")
STOP = 3


def new_state(device, batch, width, *, stops=(STOP,), cap=100, index=None, active=None) -> RoundState:
    state = RoundState.new(batch, width, list(stops), cap, torch.device(device))
    state.root_B += torch.arange(batch, device=device) + 11
    state.num_B += 99  # of the round before
    state.report_BX -= 5
    state.index_B += torch.tensor(index or [0] * batch, device=device)
    state.active_B |= torch.tensor(active or [True] * batch, device=device)
    return state


def random_tree(device, batch, depth, budget, vocab, seed, spine=False):
    generator = torch.Generator().manual_seed(seed)
    logp, ids = candidates(torch.randn(batch, depth, vocab, generator=generator) * 2, budget)
    root = torch.randint(vocab, (batch,), generator=generator)
    return level_wise(root.to(device), logp.to(device), ids.to(device), budget, spine)


def likely_logits(tree: DraftTree, vocab: int, seed: int, boost=6.0):
    """Integers, so that ties abound; most inner nodes take one of their children, so that paths are long."""
    generator = torch.Generator().manual_seed(seed)
    batch, nodes = tree.token_BN.shape
    logits = torch.randint(0, 4, (batch, nodes, vocab), generator=generator).float()
    token, parent = tree.token_BN.cpu(), tree.parent_BN.cpu()
    for b in range(batch):
        for node in range(1, nodes):
            if parent[b, node] >= 0 and torch.rand((), generator=generator) < 0.7:
                logits[b, parent[b, node], token[b, node]] += boost
    return logits.to(tree.token_BN.device)


def partials_of(logits_BNV, chunk) -> Partials:
    """Greedy partials in torch: the kernel under test is the walk alone."""
    padded = torch.nn.functional.pad(logits_BNV, (0, -logits_BNV.shape[-1] % chunk), value=float("-inf"))
    best = padded.unflatten(-1, (-1, chunk)).max(-1)
    start = torch.arange(best.values.shape[-1], device=logits_BNV.device) * chunk
    return Partials(best.values.contiguous(), (best.indices + start).to(torch.int32).contiguous())


def assert_equal(state: RoundState, expected: RoundState, verified: Verified):
    for field in FIELDS:
        assert torch.equal(getattr(state, field), getattr(expected, field)), field
    assert torch.equal(state.report_BX[:, -4:], expected.report_BX[:, -4:])
    width = verified.path_BW.shape[1]
    place = torch.arange(state.report_BX.shape[1] - 4, device=state.root_B.device)
    means_BW = place <= verified.num_accepted_B[:, None]
    assert torch.equal(state.report_BX[:, :-4][means_BW], expected.report_BX[:, :-4][means_BW])
    assert (state.report_BX[:, :-4][~means_BW] == -1).all()
    assert means_BW.shape[1] == width


def check_walk(tree, logits, state, chunk=8):
    """Greedy: walk and finish in one launch against `coupled_at_once` and `round.finish`. Returns what was verified."""
    batch = len(state.root_B)
    sampling = sampling_batch([SamplingParams(0.0)] * batch, logits.device)
    expected_state, verify_state = copy.deepcopy(state), copy.deepcopy(state)
    expected = coupled_at_once(tree, logits, sampling, state.index_B)
    reference.finish(tree, expected, expected_state)
    finish(tree, expected, verify_state)
    assert_equal(verify_state, expected_state, expected)
    got = walk_and_finish(tree, partials_of(logits, chunk), state)
    for field in ("path_BW", "num_accepted_B", "bonus_B"):
        assert torch.equal(getattr(got, field), getattr(expected, field)), field
        assert getattr(got, field).dtype == torch.int64
    assert_equal(state, expected_state, expected)
    return got


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_any_round_equals_the_reference(device, data):
    batch = data.draw(st.integers(1, 4), "batch")
    depth = data.draw(st.integers(1, 5), "depth")
    budget = data.draw(st.integers(depth, 14), "budget")
    vocab = data.draw(st.integers(4, 30), "vocab")
    seed = data.draw(st.integers(0, 2**20), "seed")
    tree = random_tree(device, batch, depth, budget, vocab, seed, data.draw(st.booleans(), "spine"))
    cap = data.draw(st.integers(2, 20), "cap")
    active = data.draw(st.lists(st.booleans(), min_size=batch, max_size=batch), "active")
    state = new_state(
        device,
        batch,
        depth + 1,
        stops=data.draw(st.lists(st.integers(0, vocab - 1), max_size=3, unique=True), "stops"),
        cap=cap,
        # An active row has room for a token; an inactive one may stand anywhere up to its end.
        index=[data.draw(st.integers(0, cap - 2 if is_active else cap - 1)) for is_active in active],
        active=active,
    )
    check_walk(tree, likely_logits(tree, vocab, seed), state, chunk=data.draw(st.sampled_from([2, 8, 64]), "chunk"))


def test_the_cases_above_reach_what_they_are_meant_to(device):
    """The generator makes paths of every length up to the depth."""
    lengths = set()
    for seed in range(6):
        tree = random_tree(device, 4, 4, 12, 9, seed)
        lengths |= set(check_walk(tree, likely_logits(tree, 9, seed), new_state(device, 4, 5)).num_accepted_B.tolist())
    assert lengths >= {0, 1, 2, 3, 4}


def drafted(device, tokens, bonus):
    """A chain that is accepted whole, and its logits."""
    score = torch.arange(len(tokens), device=device)[None] * -1.0
    tree = chain(torch.tensor([9], device=device), torch.tensor([tokens], device=device), score)
    return tree, torch.nn.functional.one_hot(torch.tensor([[*tokens, bonus]], device=device), 30).float()


@pytest.mark.parametrize("place", range(5))
def test_a_stop_id_anywhere_in_the_path_ends_the_row(device, place):
    tokens = [20, 21, 22, 23, 24]
    tokens[place] = STOP
    tree, logits = drafted(device, tokens[:4], tokens[4])
    state = new_state(device, 1, 5, stops=(8, STOP, 9))
    got = check_walk(tree, logits, state)
    assert got.num_accepted_B.tolist() == [4]
    assert state.report_BX.tolist() == [[*tokens, place + 1, 1, 4, 4]]
    assert (state.root_B.item(), state.index_B.item(), state.active_B.item()) == (STOP, place + 1, False)


@pytest.mark.parametrize(
    ("cap", "index", "emitted", "goes_on"),
    [
        (2, 0, 1, False),
        (3, 0, 2, False),
        (5, 0, 4, False),  # room W - 1
        (6, 0, 5, False),  # room W: the whole path, and the end
        (7, 0, 5, True),
        (100, 98, 1, False),
        (100, 97, 2, False),
    ],
)
def test_the_cap_cuts_and_ends_the_row(device, cap, index, emitted, goes_on):
    tokens = [20, 21, 22, 23, 24]
    tree, logits = drafted(device, tokens[:4], tokens[4])
    state = new_state(device, 1, 5, cap=cap, index=[index])
    check_walk(tree, logits, state)
    assert state.report_BX.tolist() == [[*tokens, emitted, 0, 4, 4]]
    assert state.num_B.tolist() == [emitted]
    assert (state.root_B.item(), state.index_B.item()) == (tokens[emitted - 1], index + emitted)
    assert state.active_B.item() is goes_on


def test_a_stop_id_in_the_last_place_of_the_cap_is_a_stop(device):
    tree, logits = drafted(device, [20, STOP, 22], 23)
    state = new_state(device, 1, 4, cap=3)
    check_walk(tree, logits, state)
    assert state.report_BX[0, -4:].tolist() == [2, 1, 3, 3]
    state = new_state(device, 1, 4, cap=2)  # the cap comes first
    check_walk(tree, logits, state)
    assert state.report_BX[0, -4:].tolist() == [1, 0, 3, 3]


def test_inactive_rows_stay_as_they_are(device):
    tree = random_tree(device, 3, 3, 6, 9, 0)
    state = new_state(device, 3, 4, index=[4, 99, 7], active=[True, False, False])
    check_walk(tree, likely_logits(tree, 9, 0), state)
    assert state.root_B[1:].tolist() == [12, 13]
    assert state.index_B[1:].tolist() == [99, 7]
    assert state.num_B[1:].tolist() == [0, 0]
    assert state.report_BX[1:, -4].tolist() == [0, 0]
    assert not state.active_B[1:].any()


def test_a_root_alone_and_a_report_with_more_room(device):
    """Autoregressive decoding; and a state made for a wider path than the tree has."""
    tree = root_only(torch.tensor([5, 6], device=device))
    logits = torch.zeros(2, 1, 20, device=device)
    logits[0, 0, 13], logits[1, 0, STOP] = 1, 1
    state = new_state(device, 2, 1)
    check_walk(tree, logits, state)
    assert state.report_BX.tolist() == [[13, 1, 0, 0, 0], [STOP, 1, 1, 0, 0]]
    assert state.active_B.tolist() == [True, False]
    wide = new_state(device, 2, 4)
    walk_and_finish(tree, partials_of(logits, 8), wide)
    assert wide.report_BX.tolist() == [[13, -1, -1, -1, 1, 0, 0, 0], [STOP, -1, -1, -1, 1, 1, 0, 0]]


def test_a_report_without_room_is_refused(device):
    tree = random_tree(device, 1, 3, 6, 9, 0)
    with pytest.raises(ValueError, match="room for 2"):
        walk_and_finish(tree, partials_of(torch.zeros(1, 7, 9, device=device), 8), new_state(device, 1, 2))


def test_padding_is_never_followed(device):
    """Padding holds token 0: a taken 0 must not step into it."""
    infinite = torch.tensor([[-1.0, float("-inf")]], device=device)
    tree = chain(torch.tensor([3], device=device), torch.tensor([[2, 1]], device=device), infinite)
    logits = torch.tensor([[[0.0, 0, 9, 0], [9.0, 0, 0, 0], [0.0, 0, 0, 9]]], device=device)
    got = check_walk(tree, logits, new_state(device, 1, 3))
    assert got.path_BW.tolist() == [[0, 1, -1]]


@pytest.mark.parametrize("extra", [{}, {"top_k": 4}], ids=["plain", "filtered"])
@pytest.mark.parametrize(("sample", "verifier"), [(sample_coupled, coupled_at_once), (sample_kernel, verify_kernel)])
def test_rounds_on_end_at_mixed_temperatures(device, monkeypatch, sample, verifier, extra):
    """Draw, walk and state together over rounds, until every row has ended; the torch sampler's state stays equal."""
    # One verification kernel for both sides, on any device: it is not under test.
    monkeypatch.setattr("harness.decoding.verify.find_kernel", lambda kind: tree_speculative_sampling_target_only)
    batch, vocab, depth, budget = 4, 50, 3, 6
    params = [
        SamplingParams(t, stream=stream_key(0, "f", str(i), 0), **extra) for i, t in enumerate((1.0, 0.0, 0.5, 1.3))
    ]
    sampling = sampling_batch(params, device)
    state = new_state(device, batch, depth + 1, cap=14)
    expected_state = copy.deepcopy(state)
    torch_sampler = reference.sampler(verifier)
    num_rounds = 0
    while state.active_B.any():
        tree = random_tree(device, batch, depth, budget, vocab, num_rounds)
        logits = likely_logits(tree, vocab, num_rounds, boost=4.0).to(torch.bfloat16)
        expected = torch_sampler(tree, logits, sampling, expected_state)
        got = sample(tree, logits, sampling, state)
        assert torch.equal(got.path_BW, expected.path_BW)
        assert_equal(state, expected_state, expected)
        num_rounds += 1
    assert 3 < num_rounds < 14


def test_a_wrong_step_is_seen(device):
    """Negative control: a tree whose last node hangs elsewhere, or another stop id, changes what is compared."""
    tree, logits = drafted(device, [20, 21, 22], 23)
    right, wrong = new_state(device, 1, 4), new_state(device, 1, 4, stops=(21,))
    walk_and_finish(tree, partials_of(logits, 8), right)
    walk_and_finish(tree, partials_of(logits, 8), wrong)
    assert not torch.equal(right.report_BX, wrong.report_BX)
    moved = DraftTree(
        tree.token_BN,
        torch.tensor([[-1, 0, 1, 1]], device=device),
        tree.depth_BN,
        tree.score_BN,
        tree.count_B,
        tree.depth_limit,
    )
    got = walk_and_finish(moved, partials_of(logits, 8), wrong)
    assert got.num_accepted_B.tolist() == [2]
