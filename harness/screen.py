"""What a person sees while a run goes on and when it ends."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from harness.metrics import decode_seconds, decoded_tokens
from harness.plan import Plan
from harness.records import RunFolder, SampleRecord
from harness.tracking.base import Tracker

RATES = {
    "repetition": "rate/repetition",
    "truncated": "rate/truncated",
    "empty": "rate/empty",
    "open reasoning": "rate/open_reasoning",
    "error": "rate/error",
}


CERTIFICATE = {
    "green": "certificate green",
    "red": "[bold red]certificate RED: this setting is not lossless[/]",
    "missing": "[yellow]no certificate[/] of this setting: `make certify` with the same words",
}


def show_plan(console: Console, plan: Plan, run: RunFolder) -> None:
    """What was asked for and what it came to, in the few lines that decide a result."""
    table = Table.grid(padding=(0, 2))
    sources = plan.resolved["sources"]
    for name in ("target", "drafter", "data"):
        if name in sources:
            revision = sources[name]["revision"]
            table.add_row(name, sources[name]["location"] + (f" @ {revision}" if revision else ""))
    table.add_row("sampling", " ".join(f"{key}={value}" for key, value in plan.resolved["sampling"].items()))
    table.add_row("engine", " ".join(f"{key}={value}" for key, value in plan.resolved["engine"].items()))
    table.add_row("samples", f"{plan.num_records} ({len(run.finished())} finished before)")
    console.print(table, highlight=False)


class Live:
    """Acceptance length and tokens a second while samples are decoded."""

    def __init__(self, bar: Progress, task: Any):
        self.bar, self.task = bar, task
        self.rounds = self.tokens = 0
        self.decoded = 0
        self.decode_s = 0.0

    def add_tokens(self, rounds: int, tokens: int) -> None:
        self.rounds += rounds
        self.tokens += tokens
        self._show()

    def add_sample(self, record: SampleRecord) -> None:
        if seconds := decode_seconds(record):
            self.decoded += decoded_tokens(record)
            self.decode_s += seconds
        self.bar.advance(self.task)
        self._show()

    def _show(self) -> None:
        speed = f"{self.decoded / self.decode_s:.1f} tok/s" if self.decode_s else ""
        length = f"acceptance {self.tokens / self.rounds:.2f}" if self.rounds else ""
        self.bar.update(self.task, figures=f"{length}  {speed}")


@contextmanager
def progress(console: Console, total: int, done: int) -> Iterator[Live]:
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, TextColumn("{task.fields[figures]}"), console=console) as bar:
        yield Live(bar, bar.add_task("decode", total=total, completed=done, figures=""))


def show_summary(console: Console, run: RunFolder, tracker: Tracker) -> None:
    """The figures that a run is made for, and where everything else lies."""
    summary, manifest = run.summary() or {}, run.manifest()
    table = Table(title=f"{manifest.name}: {manifest.status}", title_justify="left", show_header=False)
    for label, value in _rows(summary):
        table.add_row(label, value)
    console.print(table)
    for warning in summary.get("warnings", []):
        console.print(f"warning: {warning}", style="yellow", markup=False)
    console.print(f"records  {run.path}", soft_wrap=True, highlight=False)
    if tracker.location():
        console.print(f"W&B      {tracker.location()}", soft_wrap=True, highlight=False)


def _rows(summary: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Label and value of what is there; a metric that is missing has no row."""

    def has(name: str) -> bool:
        return summary.get(name) is not None

    if has("acceptance_length/pooled"):
        over = f" over {summary['rounds/total']} rounds" if has("rounds/total") else ""
        yield "acceptance length", f"{summary['acceptance_length/pooled']:.3f} tokens a round{over}"
    if has("acceptance/expected_accepted"):
        expected, measured = summary["acceptance/expected_accepted"], summary["acceptance/expected_measured"]
        yield "accepted drafts", f"{measured:.3f} a round, {expected:.3f} expected (profiled samples)"
    if has("throughput/decode_tokens_per_s"):
        looped = summary.get("throughput/n_repetition")
        without = f" without {looped} samples that fell into a loop" if looped else ""
        yield "decode", f"{summary['throughput/decode_tokens_per_s']:.1f} tokens/s{without}"
    if has("latency/ttft_s_p50"):
        yield "TTFT p50 / p90", f"{summary['latency/ttft_s_p50']:.3f} / {summary['latency/ttft_s_p90']:.3f} s"
    stages = {name.split("/")[1].split("_s_")[0]: value for name, value in summary.items() if name.startswith("stage/")}
    if stages:
        order = ("draft", "build", "verify", "sample", "commit")
        yield (
            "a profiled round",
            "  ".join(f"{name} {1000 * stages[name]:.1f}" for name in order if name in stages) + " ms",
        )
    if has("quality/score"):
        interval = ""
        if has("quality/score_low"):
            interval = f" [{summary['quality/score_low']:.3f}, {summary['quality/score_high']:.3f}]"
        yield "score", f"{summary['quality/score']:.3f}{interval} of {summary['quality/n_scored']} samples"
    elif has("quality/n_unscored"):
        yield "score", f"unscored ({summary['quality/n_unscored']} samples)"
    rates = [f"{name} {summary[key]:.2f}" for name, key in RATES.items() if has(key)]
    if rates:
        yield "rates", "  ".join(rates)
    if has("certificate/status"):
        yield "exactness", CERTIFICATE[summary["certificate/status"]]
    if has("absent"):
        yield "not shown by it", ", ".join(name.rstrip("/") for name in summary["absent"])
    if has("memory/peak_bytes"):
        yield "peak memory", f"{summary['memory/peak_bytes'] / 1e9:.2f} GB"
