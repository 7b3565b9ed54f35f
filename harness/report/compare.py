"""The comparison of runs that agree, from their records alone: the same samples in every column."""

import math
from collections import defaultdict
from dataclasses import dataclass, field

from harness.certificate.scope import certificate_status
from harness.intervals import score_interval
from harness.metrics import decode_seconds, decoded_tokens, num_emitted, num_rounds
from harness.records import RunFolder, RunManifest, SampleRecord
from harness.report.agreement import Difference, differences
from harness.report.significance import (
    detectable_difference,
    detectable_speed_up,
    score_p_value,
    speed_up_p_value,
)
from harness.report.statistics import Estimate, paired_difference, ratio, speed_up

Key = tuple[str, int]


class CannotCompare(ValueError):
    """The runs, or what is on disk, do not allow a comparison. The message is meant for the person who asked."""


@dataclass(frozen=True)
class Run:
    folder: RunFolder
    manifest: RunManifest
    records: dict[Key, SampleRecord]

    @classmethod
    def read(cls, path: str) -> "Run":
        """Raises ValueError when the folder holds no run."""
        folder = RunFolder(path)
        manifest = folder.manifest()
        records = {record.key: record for record in folder.records()}
        for record in records.values():
            record.check()
        return cls(folder, manifest, records)

    @property
    def mode(self) -> str:
        return str(self.manifest.asked.get("speculative", {}).get("name", "?"))

    @property
    def verifier(self) -> str:
        return str(self.manifest.asked.get("speculative", {}).get("verifier", "?"))

    @property
    def tree_budget(self) -> int | None:
        return self.manifest.asked.get("speculative", {}).get("tree_budget")

    @property
    def ok(self) -> set[Key]:
        return {key for key, record in self.records.items() if record.status == "ok"}


@dataclass
class Column:
    """One run, on the samples that all runs share."""

    run: Run
    samples: int
    acceptance_length: Estimate | None = None
    decode_tokens_per_s: float | None = None
    speed_up: Estimate | None = None
    certificate: str = ""
    score: Estimate | None = None
    score_difference: Estimate | None = None
    speed_up_p: float | None = None  # of "equally fast", two-sided, not corrected for the number of comparisons
    score_difference_p: float | None = None  # McNemar's for 0/1 scores
    detectable_speed_up: float | None = None  # what this many samples find with 80 % power
    detectable_difference: float | None = None
    rates: dict[str, float] = field(default_factory=dict)  # over all the run's own records
    equal_outputs: int | None = None  # samples whose ids equal the baseline's, where noise and prompt are shared
    compared_outputs: int = 0  # samples of which equal_outputs counts some

    @property
    def certified(self) -> bool:
        """Whether its speed-up may stand as a headline; without a green certificate it is shown in parentheses."""
        return self.certificate == "certificate green"


@dataclass
class Comparison:
    columns: list[Column]
    baseline: Run | None
    degenerate: int  # common samples left out of the speed-up because some run fell into a loop there
    notes: list[str]


def compare(runs: list[Run]) -> Comparison:
    """Raises CannotCompare naming every fact that differs, a prompt that differs, or the lack of common samples."""
    refuse_differences(runs)
    common, notes = _common(runs)
    baselines = [run for run in runs if run.mode == "autoregressive"]
    baseline = baselines[0] if baselines else None
    if baseline is None:
        notes.append("No autoregressive run among them: no speed-up and no score difference.")
    elif len(baselines) > 1:
        notes.append(f"{len(baselines)} autoregressive runs: the baseline is {baseline.folder.path}.")
    loops = {key for key in common if any(run.records[key].flags.get("repetition") for run in runs)}
    if loops:
        notes.append(f"{len(loops)} of {len(common)} samples fell into a loop in some run: left out of the speed-up.")
    later = [key for key in common if len({run.records[key].prompt_sha256 for run in runs}) > 1]
    if later:
        notes.append(f"{len(later)} later turns have a history that differs by run: no outputs are compared there.")
    columns = [_column(run, baseline, common, loops) for run in runs]
    if baseline is not None and len(runs) > 1:
        notes.append(_output_note(columns, baseline, len(common)))
    for run in runs:
        if run.manifest.status != "finished":
            done, planned = len(run.records), run.manifest.samples_planned or "?"
            notes.append(f"Unfinished: {run.folder.path} is {run.manifest.status}, {done} of {planned} samples.")
    return Comparison(columns, baseline, len(loops), notes)


def refuse_differences(runs: list[Run]) -> None:
    lines: list[str] = []
    for other in runs[1:]:
        if found := differences(runs[0].manifest, other.manifest):
            lines.append(f"{runs[0].folder.path} and {other.folder.path} differ in")
            lines += [f"  {difference}" for difference in found]
    if lines:
        raise CannotCompare("These runs cannot be compared, their conditions differ.\n" + "\n".join(lines))


def agree(left: Run, right: Run) -> list[Difference]:
    return differences(left.manifest, right.manifest)


def certificate_mark(folder: RunFolder) -> str:
    """What stands beside a speed-up: the state, now, of the certificate with the run's key. Empty for the baseline."""
    status = certificate_status(folder.path, folder.manifest())
    return {"green": "certificate green", "red": "certificate RED", "missing": "no certificate", None: ""}[status]


def _common(runs: list[Run]) -> tuple[list[Key], list[str]]:
    common = set.intersection(*(run.ok for run in runs))
    if not common:
        raise CannotCompare(
            "These runs share no finished sample: " + ", ".join(f"{r.folder.path} has {len(r.ok)}" for r in runs)
        )
    for key in sorted(common):
        # The history of a later turn is what each run wrote itself.
        is_later = all(run.records[key].turn > 1 for run in runs)
        if not is_later and len({run.records[key].prompt_sha256 for run in runs}) > 1:
            raise CannotCompare(f"Sample {key[0]} repeat {key[1]} was given different prompts (prompt_sha256 differs).")
    everything = set.union(*(set(run.records) for run in runs))
    notes = []
    if common != everything:
        notes.append(
            f"Compared on the {len(common)} samples that all runs finished; "
            + ", ".join(f"{r.folder.path} has {len(r.ok)} of {len(everything)}" for r in runs)
            + "."
        )
    return sorted(common), notes


def _column(run: Run, baseline: Run | None, common: list[Key], loops: set[Key]) -> Column:
    records = [run.records[key] for key in common]
    column = Column(run, len(common), certificate=certificate_mark(run.folder), rates=_rates(run))
    if any(num_rounds(r) for r in records):
        per_sample = _totals(records)
        column.acceptance_length = ratio(
            *zip(*[(emitted, rounds) for emitted, rounds in per_sample if rounds], strict=True)
        )
    sound = [run.records[key] for key in common if key not in loops]
    timed = [(decoded_tokens(r), seconds) for r in sound if (seconds := decode_seconds(r))]
    if timed:
        column.decode_tokens_per_s = sum(n for n, _ in timed) / sum(s for _, s in timed)
    if found := score_interval(records):
        mean, low, high, _ = found
        column.score = Estimate(mean) if math.isnan(low) else Estimate(mean, low, high)
    if baseline is None or run is baseline:
        return column
    if sides := _speed_sides(run, baseline, [key for key in common if key not in loops]):
        column.speed_up, column.speed_up_p = speed_up(*sides), speed_up_p_value(*sides)
        column.detectable_speed_up = detectable_speed_up(*sides)
    if scores := _score_sides(run, baseline, common):
        column.score_difference, column.score_difference_p = paired_difference(*scores), score_p_value(*scores)
        column.detectable_difference = detectable_difference(*scores)
    if _noise_is_shared(run, baseline):
        pairs = [(run.records[key], baseline.records[key]) for key in common]
        same_prompt = [(own, base) for own, base in pairs if own.prompt_sha256 == base.prompt_sha256]
        column.compared_outputs = len(same_prompt)
        if same_prompt:
            column.equal_outputs = sum(_same_output(own, base) for own, base in same_prompt)
    return column


def _same_output(one: SampleRecord, two: SampleRecord) -> bool:
    """By token ids; by text where a server shows no ids."""
    if one.output_ids and two.output_ids:
        return one.output_ids == two.output_ids
    return one.output_text == two.output_text


def _totals(records: list[SampleRecord]) -> list[tuple[int, int]]:
    """(tokens emitted in rounds, rounds) of each sample, its repeats together."""
    totals: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for record in records:
        if rounds := num_rounds(record):
            totals[record.sample_id][0] += num_emitted(record)
            totals[record.sample_id][1] += rounds
    return [(emitted, rounds) for emitted, rounds in totals.values()]


def _speed_sides(run: Run, baseline: Run, keys: list[Key]) -> list[tuple[float, ...]]:
    """The baseline's seconds and tokens and this run's, by sample, its repeats together; [] without any.

    Only keys with a decode time in both runs count, so both sides have exactly the same samples.
    """
    totals: dict[str, list[float]] = defaultdict(lambda: [0.0] * 4)
    for key in keys:
        sides = [(decode_seconds(r), decoded_tokens(r)) for r in (baseline.records[key], run.records[key])]
        if all(seconds for seconds, _ in sides):
            for place, value in enumerate(v for side in sides for v in side):
                totals[key[0]][place] += value or 0.0
    return list(zip(*totals.values(), strict=True))


def _score_sides(run: Run, baseline: Run, common: list[Key]) -> list[tuple[float, ...]]:
    """The baseline's mean score and this run's, by sample, over the repeats that both scored; [] without any."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for key in common:
        base, own = baseline.records[key].score, run.records[key].score
        if base is not None and own is not None:
            pairs[key[0]].append((base, own))
    means = [[sum(side) / len(side) for side in zip(*repeats, strict=True)] for repeats in pairs.values()]
    return list(zip(*means, strict=True))


def _noise_is_shared(run: Run, baseline: Run) -> bool:
    """Coupled noise, or none at all: then a lossless mode gives the baseline's very output, up to near ties."""
    sampling = run.manifest.asked.get("sampling", {})
    temperature = run.manifest.resolved.get("sampling", sampling).get("temperature", sampling.get("temperature"))
    return temperature == 0 or (run.verifier == baseline.verifier == "coupled")


def _output_note(columns: list[Column], baseline: Run, common: int) -> str:
    others = [c for c in columns if c.run is not baseline]
    if all(c.equal_outputs is not None for c in others):
        return f"Outputs equal to the baseline's are counted over {common} samples; a near tie can still part them."
    return (
        "Outputs cannot be compared one by one: at this temperature the verifiers draw different noise. Scores can be "
        "compared in the mean only (speculative.verifier=coupled in every run makes outputs comparable)."
    )


def _rates(run: Run) -> dict[str, float]:
    ok = [r for r in run.records.values() if r.status == "ok"]
    rates = {"error": sum(r.status == "error" for r in run.records.values()) / len(run.records)}
    for flag in ("repetition", "truncated"):
        seen = [r.flags[flag] for r in ok if flag in r.flags]
        if seen:
            rates[flag] = sum(seen) / len(seen)
    return rates
