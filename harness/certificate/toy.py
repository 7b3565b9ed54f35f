"""Part b (i): a target whose law over whole outputs can be written down, decoded with the verifiers that serve.

Shapes: B generations, N nodes, D draft depths, V vocabulary.

A Markov chain of order two, so that a node's distribution depends on its ancestors. The drafter sees the root alone, as a
DFlash drafter does. Outputs of three tokens take several rounds.
"""

import itertools
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from harness.certificate.line import Line, random_line, z_line
from harness.certificate.reference import Filters, Law
from harness.certificate.serving import Build, Serving
from harness.decoding.noise import stream_key
from harness.decoding.sampling import SamplingParams, sampling_batch
from harness.decoding.tree import DraftTree, candidates, level_wise
from harness.decoding.verify import Verifier

VOCABULARY, DEPTH, BUDGET, LENGTH = 6, 2, 4, 3
START = (1, 2)  # the two tokens before the output
AT_ONCE = 50_000


class Toy:
    def __init__(self, filters: Filters, device: torch.device | str = "cpu"):
        random = torch.Generator().manual_seed(20251107)
        self.filters = filters
        self.logits = (torch.randn(VOCABULARY, VOCABULARY, VOCABULARY, generator=random) * 1.2).to(device)
        noise = torch.randn(VOCABULARY, DEPTH, VOCABULARY, generator=random)
        self.draft_logits = 0.5 * noise.to(device) + 0.7 * self.logits.mean(0)[:, None]

    def build(self, root_B: Tensor, draft_logits_BDV: Tensor | None) -> DraftTree:
        assert draft_logits_BDV is not None
        logp, ids = candidates(draft_logits_BDV, BUDGET)
        return level_wise(root_B, logp, ids, BUDGET)

    def decode(self, verify: Verifier, build: Build, streams: Tensor) -> np.ndarray:
        """int64 [B, LENGTH]: the outputs of B generations."""
        device = self.logits.device
        given = self.filters.temperature, self.filters.top_k, self.filters.top_p, self.filters.min_p
        sampling = sampling_batch([SamplingParams(*given, stream) for stream in streams.tolist()], device)
        row_B = torch.arange(len(streams), device=device)
        token = row_B.new_zeros(len(streams), 2 + LENGTH + 2 * (DEPTH + 1))
        token[:, 0], token[:, 1] = START
        done_B = torch.zeros_like(row_B)  # tokens drawn; the root stands at column 1 + done
        while bool((done_B < LENGTH).any()):
            at_B = done_B.clamp(max=LENGTH)  # a finished row idles behind the end of its output
            root_B = token[row_B, 1 + at_B]
            tree = build(root_B, self.draft_logits[root_B])
            parent_BN = tree.token_BN.gather(1, tree.parent_BN.clamp(min=0))
            before_BN = torch.where(tree.parent_BN < 0, token[row_B, at_B][:, None], parent_BN)
            verified = verify(tree, self.logits[before_BN, tree.token_BN], sampling, at_B)
            accepted_B = verified.num_accepted_B
            drawn = torch.cat([tree.token_BN.gather(1, verified.path_BW.clamp(min=0))[:, 1:], accepted_B[:, None]], 1)
            drawn[row_B, accepted_B] = verified.bonus_B
            for step in range(DEPTH + 1):
                place_B = 2 + at_B + step
                token[row_B, place_B] = torch.where(step <= accepted_B, drawn[:, step], token[row_B, place_B])
            done_B = at_B + 1 + accepted_B
        return token[:, 2 : 2 + LENGTH].cpu().numpy()

    def laws(self) -> dict[tuple[int, int], Law]:
        pairs = itertools.product(range(VOCABULARY), range(VOCABULARY))
        return {(a, b): Law(self.logits[a, b].double().numpy(force=True), self.filters) for a, b in pairs}


def toy_lines(
    serving: Serving,
    verifiers: list[str],
    filters: Filters,
    draws: int,
    seed: int,
    tell: Callable[[str], None],
    device: torch.device | str = "cpu",
) -> list[Line]:
    """The verifiers on the toy, on the device that serves: chi-square over all outputs, and z of log p."""
    toy, lines = Toy(filters, device), []
    laws = toy.laws()
    joint, centred, variance = _enumerate(laws)
    for verifier in verifiers:
        started = time.perf_counter()
        seen = np.zeros_like(joint)
        for start in range(0, draws, AT_ONCE):
            tell(f"toy, {verifier}: {start} of {draws} draws")
            place = torch.arange(start, min(start + AT_ONCE, draws))
            streams = place * 2654435761 + stream_key(seed, "certify toy", verifier, 0) % 2**40
            tokens = toy.decode(serving.verify[verifier], serving.build(toy.build), streams)
            code = (tokens * VOCABULARY ** np.arange(LENGTH - 1, -1, -1)).sum(1)
            seen += np.bincount(code, minlength=len(joint))
        name = f"{verifier}, toy joint of {len(joint)} outputs, {filters}"
        total = float(seen @ centred)
        seconds = time.perf_counter() - started
        common = dict(part="distribution", n=draws, unit="outputs")
        lines.append(_chi_square(joint, seen, name=f"{name}: joint", seconds=seconds, **common))
        lines.append(z_line(name=f"{name}: log p", total=total, variance=draws * variance, temperature=True, **common))
    return lines


def _enumerate(laws: dict[tuple[int, int], Law]) -> tuple[np.ndarray, np.ndarray, float]:
    """For every output, in order of its code: its probability, and the sum of log p - E log p over its tokens, each
    given its prefix. And the variance of that sum."""
    joint, centred = [], []
    for output in itertools.product(range(VOCABULARY), repeat=LENGTH):
        text = (*START, *output)
        steps = [(laws[text[i], text[i + 1]], text[i + 2]) for i in range(LENGTH)]
        p = float(np.prod([law.p_V[token] for law, token in steps]))
        joint.append(p)
        centred.append(sum(float(law.logp_V[token]) - law.mean for law, token in steps) if p > 0 else 0.0)
    joint_O, centred_O = np.array(joint), np.array(centred)
    return joint_O, centred_O, float(joint_O @ centred_O**2)


def _chi_square(joint: np.ndarray, seen: np.ndarray, **values: object) -> Line:
    """Cells that expect fewer than ten are put together; an impossible output fails at once."""
    expected = joint * seen.sum()
    few = expected < 10
    cells = [np.append(x[~few], x[few].sum()) for x in (seen, expected)]
    if cells[1][-1] < 10:  # too little even together: with the last cell
        cells = [np.append(x[:-2], x[-2:].sum()) for x in cells]
    result = stats.chisquare(cells[0], cells[1] * cells[0].sum() / cells[1].sum())
    p_value = 0.0 if seen[joint == 0].any() else float(result.pvalue)
    return random_line(statistic="chi-square", value=float(result.statistic), p_value=p_value, **values)
