"""Does the verification kernel do what the harness says it does? Random trees against a scalar walk, and the torch form.

    python -m benchmarks.kernel_agreement [--device cuda] [--trees 20000] [--seconds 90] [--out FILE]

On CUDA the real kernel of sgl_kernel is tested, and the torch form of its contract beside it; on a CPU the torch form.
Required, tree by tree (`failures` in the result counts them, and the exit status is 1 when one is not 0):
- the accepted path, the tokens on it and the rejected mass equal the scalar walk's, bit for bit, and nothing else is
  written; the same for the torch form, so the two agree;
- where no sum rounds (probabilities in 1/4096, one-hot) the final token is equal too;
- elsewhere the final token has residual mass, and its float64 share of the residual, widened by 1e-5, holds the coin;
- where the residual is zero everywhere the token is V - 1: the fault that `verify.py` must prevent.
`controls` are wrong verifiers, each of which the same checks must catch.
"""

import argparse
import collections
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks import machine
from benchmarks.kernel_oracle import EXACT, Case, distance_from_interval, exact_token, random_case, walk
from harness.decoding.verify_kernel import find_kernel, kernel_origin, tree_speculative_sampling_target_only

TOLERANCE = 1e-5  # of a float32 sum over a vocabulary, in units of probability
UNWRITTEN = -7
SMALL = [(vocab, 64, 40) for vocab in (2, 3, 4, 5, 7, 16, 31, 100, 101, 1022, 1023, 1024)]
MIDDLE = [(vocab, 24, 24) for vocab in (4096, 4097, 4098, 4099, 4100)]
LARGE = [(vocab, 6, 12) for vocab in (32003, 49152, 50257, 128003, 151643, 151936)]
FAILURES = ("path", "untouched", "scratch", "exact_final", "no_mass_final", "outside_interval", "zero_residual_final")


def sizes(full: bool) -> list[tuple[int, int, int]]:
    """(vocabulary, batch, nodes) of one pass. All vocabularies modulo 4 occur: the kernel reads 1, 2 or 4 at a time."""
    return SMALL + SMALL + MIDDLE + LARGE if full else SMALL + MIDDLE[:2]


def call(kernel: Callable[..., Any], case: Case, device: str, stale: float = 0.0) -> dict[str, np.ndarray]:
    """What the kernel leaves behind, on the host. Outputs are poisoned before, scratch is `stale` (right: 0)."""
    batch, nodes = case.token_BN.shape

    def put(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(array).to(device)

    def poison(*shape: int) -> torch.Tensor:
        return torch.full(shape, UNWRITTEN, dtype=torch.int32, device=device)

    predicts, path, num = poison(batch * nodes), poison(batch, case.width), poison(batch)
    target = put(case.target_BNV)
    scratch = torch.full_like(target, stale)
    kernel(
        predicts, path, num, put(case.token_BN), put(np.arange(batch * nodes).reshape(batch, nodes)),
        put(case.first_child_BN), put(case.next_sibling_BN), put(case.coin_BN), put(case.final_B), target, scratch,
        1.0, 1.0, True,
    )  # fmt: skip
    named = {"predicts": predicts.view(batch, nodes), "path": path, "num": num, "scratch": scratch}
    return {name: tensor.cpu().numpy() for name, tensor in named.items()}


def compare(case: Case, got: dict[str, np.ndarray], tally: collections.Counter[str]) -> float:
    """Count into `tally`. Returns the farthest that a coin lay outside its token's interval."""
    batch, nodes = case.token_BN.shape
    farthest = 0.0
    for b in range(batch):
        right = walk(case, b)
        shape, length, last = case.shape_B[b], len(right.path), right.path[-1]
        tally["trees"] += 1
        tally["accepted_drafts"] += length - 1
        tally["coins_on_a_sum"] += right.num_ties
        tally[f"trees_{shape}"] += 1
        rows = [b * nodes + node for node in right.path]
        same_path = got["num"][b] == length - 1 and got["path"][b, :length].tolist() == rows
        same_path &= got["predicts"][b, right.path[:-1]].tolist() == right.tokens
        tally["path"] += not bool(same_path)
        if not same_path:
            continue  # what follows would count the same fault again
        unwritten = np.delete(got["predicts"][b], right.path)
        tally["untouched"] += bool((got["path"][b, length:] != UNWRITTEN).any() or (unwritten != UNWRITTEN).any())
        scratch_NV = np.zeros_like(case.target_BNV[b])
        for place, mass in right.scratch.items():
            scratch_NV[place] = mass
        tally["scratch"] += not np.array_equal(got["scratch"][b], scratch_NV)
        token = int(got["predicts"][b, last])
        if not (right.left_V > 0).any():
            tally["zero_residuals"] += 1
            tally["zero_residual_final"] += token != len(right.left_V) - 1
        elif shape in EXACT:
            tally["exact_finals"] += 1
            tally["exact_final"] += int(token) != exact_token(right.left_V, case.final_B[b])
        else:
            tally["rounded_finals"] += 1
            tally["no_mass_final"] += not bool(right.left_V[token] > 0)
            distance = distance_from_interval(right.left_V, case.final_B[b], token)
            tally["outside_interval"] += bool(distance > TOLERANCE)
            farthest = max(farthest, distance)
    return farthest


def strict(*arguments: Any) -> None:
    """Control: a coin equal to the sum refuses."""
    *before, coins, final, target, scratch = arguments[:11]
    coins = torch.nextafter(coins, torch.full_like(coins, 2))
    tree_speculative_sampling_target_only(*before, coins, final, target, scratch, *arguments[11:])


def one_coin(*arguments: Any) -> None:
    """Control: every node is decided by the root's coin."""
    *before, coins, final, target, scratch = arguments[:11]
    coins = coins[:, :1].expand_as(coins)
    tree_speculative_sampling_target_only(*before, coins, final, target, scratch, *arguments[11:])


def full_final(*arguments: Any) -> None:
    """Control: the final draw forgets the rejected children."""
    *before, scratch = arguments[:11]
    tree_speculative_sampling_target_only(*before, scratch, *arguments[11:])
    predicts, path, num, final, target = (before[i] for i in (0, 1, 2, 8, 9))
    place = path.gather(1, num[:, None].to(torch.int64))[:, 0].to(torch.int64)
    cdf_BV = target.flatten(0, 1)[place].cumsum(1)
    predicts[place] = (cdf_BV <= (final * cdf_BV[:, -1])[:, None]).sum(1).clamp(max=cdf_BV.shape[1] - 1).to(torch.int32)


def run(device: str, num_trees: int, seconds: float, full: bool, seed: int = 0) -> dict[str, Any]:
    """The result without the machine's facts. Ends after `num_trees` or `seconds`, whichever comes first."""
    started, rng = time.monotonic(), np.random.default_rng(seed)
    arms = {"kernel": (find_kernel(device), device)}
    if device == "cuda":
        arms["torch_form"] = (tree_speculative_sampling_target_only, "cpu")
    tallies = {name: collections.Counter[str]() for name in arms}
    farthest = dict.fromkeys(arms, 0.0)
    finals = collections.Counter[str]()
    controls = {
        "coin_equal_to_the_sum_refuses": (strict, 0.0),
        "one_coin_for_all_nodes": (one_coin, 0.0),
        "final_draw_forgets_rejected": (full_final, 0.0),
        "stale_scratch": (tree_speculative_sampling_target_only, 1e-3),
    }
    caught = {name: collections.Counter[str]() for name in controls}
    num_passes = 0
    while tallies["kernel"]["trees"] < num_trees and time.monotonic() - started < seconds:
        for vocab, batch, nodes in sizes(full and num_passes % 3 == 0):
            case = random_case(rng, batch, nodes, vocab)
            answers = {name: call(function, case, place) for name, (function, place) in arms.items()}
            for name, got in answers.items():
                farthest[name] = max(farthest[name], compare(case, got, tallies[name]))
            if len(answers) == 2:
                _compare_arms(case, *answers.values(), finals)
            if num_passes == 0 and vocab < 4096:
                for name, (function, stale) in controls.items():
                    compare(case, call(function, case, "cpu", stale), caught[name])
            if time.monotonic() - started > seconds:
                break
        num_passes += 1
    failures = {name: {key: tally[key] for key in FAILURES} for name, tally in tallies.items()}
    return {
        "kernel": kernel_origin(device),
        "seconds": round(time.monotonic() - started, 1),
        "vocabularies": sorted({vocab for vocab, _, _ in sizes(full)}),
        "failures": failures,
        "farthest_outside_interval": farthest,
        "counts": {name: {k: n for k, n in sorted(tally.items()) if k not in FAILURES} for name, tally in tallies.items()},
        "kernel_against_torch_form": dict(finals),
        "controls_caught": {name: sum(tally[key] for key in FAILURES) for name, tally in caught.items()},
    }  # fmt: skip


def passed(result: dict[str, Any]) -> bool:
    """Required of a result: no failure, something tested, every control caught."""
    none_failed = all(count == 0 for arm in result["failures"].values() for count in arm.values())
    return none_failed and all(result["controls_caught"].values()) and result["counts"]["kernel"]["trees"] > 0


def _compare_arms(
    case: Case, first: dict[str, np.ndarray], second: dict[str, np.ndarray], tally: collections.Counter[str]
) -> None:
    for b in range(len(case.final_B)):
        same = np.array_equal(first["path"][b], second["path"][b]) and first["num"][b] == second["num"][b]
        tally["trees"] += 1
        tally["path_disagreements"] += not bool(same)
        tally["final_token_disagreements"] += bool(same) and not np.array_equal(
            first["predicts"][b], second["predicts"][b]
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    machine.add_arguments(parser)
    parser.add_argument("--trees", type=int, default=4000)
    parser.add_argument("--seconds", type=float, default=90)
    parser.add_argument("--small", action="store_true", help="vocabularies below 5,000 only")
    arguments = parser.parse_args()
    device = machine.pick_device(arguments.device)
    about = machine.facts(device, arguments.commit)
    result = {"machine": about} | run(device, arguments.trees, arguments.seconds, not arguments.small)
    result["passed"] = passed(result)
    machine.write(arguments.out, result)
    for key in (
        "kernel",
        "failures",
        "counts",
        "kernel_against_torch_form",
        "farthest_outside_interval",
        "controls_caught",
    ):
        print(key, result[key])
    print("passed" if result["passed"] else "FAILED")
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    sys.exit(main())
