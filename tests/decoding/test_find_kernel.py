"""The door to the real kernel: where it is looked for, what is refused, and that both builds obey one contract."""

import sys
from importlib.metadata import version
from types import ModuleType

import pytest
import torch

from harness.decoding import verify_kernel as door
from harness.decoding.verify_kernel import NAME, find_kernel, find_sgl_kernel, kernel_origin


def strict(*arguments):
    """The JIT build's rule, coin < sum: the contract at the next greater coin, which is refused where it equals."""
    *before, coins, final, target, draft = arguments[:11]
    door.tree_speculative_sampling_target_only(
        *before, torch.nextafter(coins, torch.full_like(coins, 2)), final, target, draft, *arguments[11:]
    )


def without_final_coins(*arguments):
    raise TypeError(f"takes 13 positional arguments, {len(arguments)} given")


def accepts_all(predicts, accept_index, accept_token_num, *_):
    predicts[:], accept_index[:], accept_token_num[:] = 1, 0, 1


@pytest.fixture
def homes(monkeypatch):
    """Put modules in place of the real ones: {name: function or None}."""

    def install(**functions):
        for name, _ in door.HOMES:
            monkeypatch.setitem(sys.modules, name, None)  # its import fails
        for name, function in functions.items():
            module = ModuleType(name)
            if function is not None:
                setattr(module, NAME, function)
            monkeypatch.setitem(sys.modules, name, module)

    monkeypatch.setattr(door, "HOMES", (("first_home", ("no-such-owner",)), ("second_home", ("torch",))))
    return install


def test_the_host_takes_the_torch_form():
    assert find_kernel("cpu") is find_kernel("meta") is door.tree_speculative_sampling_target_only
    assert kernel_origin("cpu") == "torch form of the contract"


def test_a_kernel_that_takes_equal_coins(homes):
    homes(first_home=door.tree_speculative_sampling_target_only)
    kernel = find_sgl_kernel("cpu")
    assert kernel.takes_equal
    assert kernel.origin == "first_home (version unknown)"


def test_a_strict_kernel_behind_the_door_equals_the_contract(homes):
    """Coins on a coarse grid, probabilities on a finer part of it: many coins equal a sum."""
    homes(second_home=strict)
    kernel = find_sgl_kernel("cpu")
    assert not kernel.takes_equal
    assert kernel.origin == f"second_home (torch {version('torch')})"
    generator = torch.Generator().manual_seed(0)
    batch, nodes, vocab = 400, 4, 5
    eighths = torch.multinomial(torch.ones(batch * nodes, vocab), 8, replacement=True, generator=generator)
    target = torch.nn.functional.one_hot(eighths, vocab).sum(1).view(batch, nodes, vocab) / 8
    coins = (torch.randint(8, (batch, nodes), generator=generator) + 1) / 8
    got = {}
    for name, function in (("contract", door.tree_speculative_sampling_target_only), ("door", kernel), ("raw", strict)):
        predicts = torch.zeros(batch * nodes, dtype=torch.int32)
        path, num = torch.zeros(batch, 3, dtype=torch.int32), torch.zeros(batch, dtype=torch.int32)
        draft = torch.zeros_like(target)
        rows = torch.arange(batch * nodes).view(batch, nodes)
        tokens, first, sibling = (
            torch.tensor(x).repeat(batch, 1) for x in ([0, 1, 2, 3], [1, 3, -1, -1], [-1, 2, -1, -1])
        )
        function(
            predicts, path, num, tokens, rows, first, sibling, coins, coins[:, 0].clone(), target, draft, 1.0, 1.0, True
        )
        got[name] = torch.cat([predicts, path.flatten(), num, draft.flatten()])
    assert torch.equal(got["door"], got["contract"])
    assert not torch.equal(got["raw"], got["contract"])  # negative control: the builds do differ


@pytest.mark.parametrize("function", [None, without_final_coins, accepts_all])
def test_what_does_not_follow_the_contract_is_passed_over(homes, function):
    homes(first_home=function, second_home=door.tree_speculative_sampling_target_only)
    assert find_sgl_kernel("cpu").origin.startswith("second_home")


def test_without_a_kernel_the_error_says_what_to_do(homes):
    homes(first_home=accepts_all)
    with pytest.raises(ValueError, match=r"verifier=kernel.*pip install sglang-kernel.*coupled or walk.*second_home"):
        find_sgl_kernel("cpu")


def test_offsets_of_32_bits_are_checked():
    """A meta tensor has the size without the memory."""
    kernel = door.SglKernel(lambda *_: None, "none", True)
    probs = torch.zeros(64, 513, 151936, device="meta")
    arguments = [None] * 7 + [None, None, probs, probs]
    with pytest.raises(ValueError, match=r"engine\.batch_size.*2\*\*32"):
        kernel(*arguments)
