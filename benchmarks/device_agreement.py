"""Do the harness's own decoding functions give the same on CUDA as on the CPU, and do they fit in a CUDA graph?

Called by `benchmarks.verifiers --check`; on a machine without CUDA it compares the CPU with itself, to keep it working.
Shapes: B batch, N nodes with the root, D draft depths, K candidates, V vocabulary.
"""

from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from harness.decoding import verify
from harness.decoding.noise import gumbel, uniform
from harness.decoding.sampling import SamplingParams, probabilities, sampling_batch
from harness.decoding.tree import DraftTree, candidates, level_wise

FIELDS = ("token_BN", "parent_BN", "depth_BN", "score_BN", "count_B")


def check(device: str, small: bool = False) -> dict[str, Any]:
    """All of it. What fails to run is reported under `error`, so that one fault does not lose the rest of a GPU run."""
    vocab, rounds = (1024, 4) if small else (151936, 8)
    parts: dict[str, Callable[[], Any]] = {
        "uniform": lambda: uniform_bits(device, 2**14 if small else 2**22),
        "gumbel": lambda: [gumbel_ulps(device, vocab, dtype) for dtype in (torch.float32, torch.float64)],
        "level_wise": lambda: level_wise_trees(device, 12 if small else 200),
        "top_candidates": lambda: top_candidates(device, vocab),
        **{
            f"verify_{name}": lambda name=name: verified(device, name, 2003 if small else 32003, rounds)
            for name in verify.VERIFIERS
        },
        "coins_of_one": lambda: coins_of_one(device, 400),
        **{f"cuda_graph_{name}": lambda name=name: graph(device, name, vocab) for name in ("kernel", "coupled")},
    }
    return {name: _attempt(part) for name, part in parts.items()}


def _attempt(part: Callable[[], Any]) -> Any:
    try:
        return part()
    except Exception as error:
        return {"error": f"{type(error).__name__}: {str(error).strip()[:300]}"}


def uniform_bits(device: str, count: int) -> dict[str, int]:
    """Integer hashes: every bit must be equal."""
    generator = torch.Generator().manual_seed(1)
    stream = torch.randint(2**62, (count,), generator=generator)
    index, purpose = torch.arange(count) // 7, torch.arange(count) % 600 - 3
    here = uniform(stream, index, purpose)
    there = uniform(stream.to(device), index.to(device), purpose.to(device)).cpu()
    return {"numbers": count, "differ": int((here != there).sum()), "zeros": int((there <= 0).sum())}


def gumbel_ulps(device: str, vocab: int, dtype: torch.dtype) -> dict[str, Any]:
    """Through two logarithms: neighbours at most. The argmax decides tokens, so equal winners are counted too."""
    stream = torch.arange(16) * 7919 + 3
    here = gumbel(stream, stream % 5, vocab, dtype)
    there = gumbel(stream.to(device), (stream % 5).to(device), vocab, dtype).cpu()
    bits = torch.int32 if dtype == torch.float32 else torch.int64
    same_sign = (here >= 0) == (there >= 0)
    ulps = (here.view(bits) - there.view(bits)).abs().masked_fill(~same_sign, 0)
    # Near 0 an error of one place in the inner logarithm is many places of the result: absolute there.
    absolute = (here - there).abs()
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "numbers": here.numel(),
        "differ": int((here != there).sum()),
        "max_ulps_above_1": int(ulps[here > 1].max()),
        "max_absolute": float(absolute.max()),
        "argmax_differ": int((here.argmax(-1) != there.argmax(-1)).sum()),
    }


def level_wise_trees(device: str, count: int) -> dict[str, int]:
    """Trees out of the same (log p, ids): every field. A third of the marginals are coarse, so scores tie."""
    generator = torch.Generator().manual_seed(2)
    trees = differ = 0
    for trial in range(count):
        batch, depth, k = 4, int(torch.randint(1, 16, (1,), generator=generator)), 24
        budget = int(torch.randint(depth, 130, (1,), generator=generator))
        logits = torch.randn(batch, depth, k, generator=generator) * 3
        logits = logits.round() if trial % 3 == 0 else logits
        logp = logits.log_softmax(-1).sort(-1, descending=True).values
        logp = logp.masked_fill(logp < -6, float("-inf")) if trial % 4 == 0 else logp
        ids = torch.rand(batch, depth, 1000, generator=generator).argsort(-1)[..., :k].contiguous()
        root = torch.zeros(batch, dtype=torch.int64)
        here = level_wise(root, logp, ids, budget, spine=trial % 2 == 0)
        there = level_wise(root.to(device), logp.to(device), ids.to(device), budget, spine=trial % 2 == 0)
        trees += batch
        differ += any(not torch.equal(getattr(here, f), getattr(there, f).cpu()) for f in FIELDS) * batch
    return {"trees": trees, "differ": differ}


def top_candidates(device: str, vocab: int) -> dict[str, int]:
    """Top-k over coarse logits, where ties cross the cut: ids."""
    logits = (torch.randn(4, 15, vocab, generator=torch.Generator().manual_seed(3)) * 4).round()
    here, there = candidates(logits, 64)[1], candidates(logits.to(device), 64)[1].cpu()
    return {"rows": 60, "differ": int((here != there).any(-1).sum())}


def problem(vocab: int, batch: int, budget: int, device: str, seed: int = 0) -> tuple[DraftTree, Tensor]:
    """A tree out of a drafter's marginals, and target logits that mostly agree with them. Made on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    base = torch.randn(batch, 8, vocab, generator=generator)
    favoured = torch.randint(vocab, (batch, 8, 12), generator=generator)
    base.scatter_(-1, favoured, torch.linspace(16, 6, 12).expand(batch, 8, 12))
    logp, ids = candidates(base[:, 1:], min(budget, vocab))
    tree = level_wise(torch.zeros(batch, dtype=torch.int64), logp, ids, budget)
    logits = base[torch.arange(batch)[:, None], tree.depth_BN] + 0.3 * torch.randn(
        batch, budget + 1, vocab, generator=generator
    )
    return to_device(tree, device), logits.to(device)


def to_device(tree: DraftTree, device: str) -> DraftTree:
    return DraftTree(*(getattr(tree, field).to(device) for field in FIELDS), depth_limit=tree.depth_limit)


def verified(device: str, name: str, vocab: int, rounds: int) -> dict[str, Any]:
    """Whole verifiers on both devices. Softmax and logarithms round apart, so single differences are no fault."""
    params = [SamplingParams(0.6, 20, 0.95, stream=1), SamplingParams(1.0, stream=2), SamplingParams(0.0, stream=3)]
    counts = {"verifier": name, "rounds": 0, "path_differs": 0, "bonus_differs": 0, "outside_filter": 0}
    for seed in range(rounds):
        tree, logits = problem(vocab, len(params), 24, "cpu", seed)
        index = torch.full((len(params),), seed)
        here = verify.VERIFIERS[name](tree, logits, sampling_batch(params), index)
        on_device = sampling_batch(params, device)
        there = verify.VERIFIERS[name](to_device(tree, device), logits.to(device), on_device, index.to(device))
        row = torch.arange(len(params))
        path, bonus = there.path_BW.cpu(), there.bonus_B.cpu()
        p = probabilities(logits, sampling_batch(params))[row, path[row, there.num_accepted_B.cpu()], bonus]
        counts["rounds"] += len(params)
        counts["path_differs"] += int((here.path_BW != path).any(1).sum())
        counts["bonus_differs"] += int((here.bonus_B != bonus).sum())
        counts["outside_filter"] += int((p <= 0).sum())
    return counts


def coins_of_one(device: str, batch: int) -> dict[str, int]:
    """Children that carry all mass (top-k 3, three children) and every coin 1: one must be accepted, none be outside."""
    generator = torch.Generator().manual_seed(4)
    logits = torch.randn(batch, 4, 9, generator=generator)
    logits[..., -1] = -9  # V - 1 is what the kernel would answer
    logp, ids = candidates(logits[:, :1], 3)
    tree = to_device(level_wise(torch.zeros(batch, dtype=torch.int64), logp, ids, 3), device)
    sampling = sampling_batch([SamplingParams(top_k=3)] * batch, device)

    def ones(stream: Tensor, index: Tensor, purpose: Tensor | int) -> Tensor:
        return torch.ones(torch.broadcast_shapes(index.shape, torch.as_tensor(purpose).shape), device=device)

    with mock.patch.object(verify, "uniform", ones):
        got = verify.VERIFIERS["kernel"](
            tree, logits.to(device), sampling, torch.zeros(batch, dtype=torch.int64, device=device)
        )
    return {
        "trees": batch,
        "none_accepted": int((got.num_accepted_B != 1).sum()),
        "answered_last_id": int((got.bonus_B == 8).sum()),
    }


def graph(device: str, name: str, vocab: int) -> str:
    """Capture a verification and replay it on other logits: 'equal' to the plain call, or why not."""
    if device != "cuda":
        return "no CUDA"
    tree, logits = problem(vocab, 2, 32, device)
    sampling = sampling_batch([SamplingParams(0.8, stream=5), SamplingParams(0.6, 20, 0.95, stream=6)], device)
    index, function = torch.tensor([3, 9], device=device), verify.VERIFIERS[name]
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        function(tree, logits, sampling, index)  # finds the kernel, fills caches
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        static = function(tree, logits, sampling, index)
    wrong = 0
    for seed in range(1, 9):
        other = problem(vocab, 2, 32, device, seed)
        logits.copy_(other[1])
        for field in FIELDS:
            getattr(tree, field).copy_(getattr(other[0], field))
        index.fill_(seed)
        captured.replay()
        plain = function(tree, logits, sampling, index)
        wrong += not all(
            torch.equal(getattr(static, f), getattr(plain, f)) for f in ("path_BW", "num_accepted_B", "bonus_B")
        )
    return "equal in 8 of 8 replays" if not wrong else f"differs in {wrong} of 8 replays"
