"""Writes the tables of docs/performance.md from the committed result files; the text around them is by hand.

    python -m benchmarks.performance_page

A table stands between `<!-- NAME -->` and `<!-- /NAME -->`. Where its result file is not there, it says so. Rounds of
`rounds --groups others`, in a second file, join the first file's in the table of batches and contexts.
"""

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
ROUNDS = "rounds/h200.json"
OTHER_ROUNDS = "rounds/h200_others.json"
DECODE = "decode/h200_bfloat16.json"
EQUAL = "decode/h200_float32.json"
STAGES = ("draft", "build", "verify", "sample", "commit")
Result = dict[str, Any]


def main() -> None:
    PAGE.write_text(render(PAGE.read_text(), RESULTS))


def render(page: str, results: Path) -> str:
    """The page with every table anew."""
    for name, (file, table) in TABLES.items():
        found = read(results, file)
        if found and table is grid and (others := read(results, OTHER_ROUNDS)):
            found = joined(found, others)
        text = table(found) if found else f"Not measured yet (`{file}`).\n"
        block = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        if not block.search(page):
            raise ValueError(f"docs/performance.md has no place for the table {name}: <!-- {name} --> <!-- /{name} -->")
        page = block.sub(lambda match, text=text: match[1] + text + match[2], page)
    return page


def read(results: Path, file: str) -> Result | None:
    path = results / file
    return json.loads(path.read_text()) if path.is_file() else None


def joined(first: Result, second: Result) -> Result:
    """The cells of both; a group that the second run took is no longer missing, and none is there twice."""

    def place(found: dict[str, Any]) -> tuple[str, int, int]:
        return found["shape"], found["batch"], found["context"]

    taken = {place(cell) for cell in first["cells"]}
    cells = [*first["cells"], *(cell for cell in second["cells"] if place(cell) not in taken)]
    measured = {place(cell) for cell in cells}
    missing = [group for group in first["not_measured"] + second["not_measured"] if place(group) not in measured]
    return {**first, "cells": cells, "not_measured": missing}


def markdown(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    cells = [list(head), *map(list, rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([lines[0], "|" + "-|" * len(cells[0]), *lines[1:]]) + "\n"


def where(result: Result) -> str:
    facts = result["machine"]
    device = facts.get("gpu") or facts["cpu"]
    software = f"torch {facts['torch']}" + (f", driver {facts['driver']}" if facts.get("driver") else "")
    return f"{device}, {software}, commit {facts['commit'][:7]}, {facts['date']}, {result['seconds']:.0f} s in all.\n"


def floors(result: Result) -> str:
    rows = (
        (
            name,
            f"{s['target_gb']:.2f}",
            f"{s['floor_ms']:.3f}",
            f"{s['round_floor_ms'] / s['floor_ms']:.2f}",
            f"{s['kv_ms_per_1k_tokens']:.4f}",
        )
        for name, s in result["shapes"].items()
    )
    head = ("shape", "weights a forward reads, GB", "floor, ms", "floor of a round / floor", "ms a 1,024-token context")
    bandwidth = f"Copy bandwidth in this run: {result['copy_bandwidth_gb_s'] / 1000:.2f} TB/s.\n\n"
    return where(result) + bandwidth + markdown(head, rows)


def rounds(result: Result) -> str:
    """Each shape's first group, where the official loop ran in the same turns."""
    parts = []
    for shape in result["shapes"]:
        cells = group(result, shape, batch=1, context=1024)
        theirs = {cell["mode"]: cell["round_ms"] for cell in cells if cell["engine"] == "official"}
        rows = (
            (
                c["mode"],
                ms(c["round_ms"]),
                f"{c['times_floor']:.2f}",
                times(c["over_autoregressive"]),
                percent(c["host_share"]),
                ms(theirs.get(c["mode"])),
                times(theirs[c["mode"]] / c["round_ms"] if c["mode"] in theirs else None, 1),
            )
            for c in cells
            if c["engine"] == "ours"
        )
        head = (
            "mode",
            "round, ms",
            "× floor",
            "× our autoregressive",
            "host between rounds",
            "official loop, ms",
            "official / ours",
        )
        parts.append(f"**{shape}**, batch 1, context 1,024\n\n" + markdown(head, rows))
    return "\n".join(parts)


def stages(result: Result) -> str:
    shape = next(iter(result["shapes"]))
    cells = [c for c in group(result, shape, 1, 1024) if c.get("stages_ms")]
    ours = [(c["mode"], *(ms(c["stages_ms"].get(s)) for s in STAGES)) for c in cells if c["engine"] == "ours"]
    names = list(dict.fromkeys(s for c in cells if c["engine"] == "official" for s in c["stages_ms"]))
    theirs = [(c["mode"], *(ms(c["stages_ms"].get(s)) for s in names)) for c in cells if c["engine"] == "official"]
    text = f"{shape}, batch 1, context 1,024, ms. Ours:\n\n" + markdown(("mode", *STAGES), ours)
    return text + ("\nThe official loop's own timers:\n\n" + markdown(("mode", *names), theirs) if theirs else "")


def kernels(result: Result) -> str:
    parts = []
    for cell in result["cells"]:
        if cell["mode"] in ("autoregressive", "ddtree-63") and cell.get("kernels"):
            seen = cell["kernels"]
            rows = ((f"`{k['name'][:60]}`", f"{k['calls']:g}", f"{k['ms']:.3f}") for k in seen["largest"][:10])
            spent = f"{seen['launches']:.0f} launches, {seen['busy_ms']:.3f} ms busy"
            parts.append(
                f"**{cell['shape']}, {cell['mode']}**: {spent}\n\n" + markdown(("kernel", "calls", "ms"), rows)
            )
    return "\n".join(parts) or "The profiler did not run.\n"


# By the start of a kernel's name. The rest is told apart in the result file.
KINDS = {
    "matrix products": ("nvjet", "_linear", "void cublasLt", "sm90_xmma", "void gemv"),
    "attention": ("_attend", "_join"),
    "norms, rotation, activation": ("_rms_norm", "_rotate_and_store", "_silu_mul"),
}


def spent(result: Result) -> str:
    """What a round's time went to. A product that stands below the 16 largest kernels counts as rest."""
    rows = []
    for cell in result["cells"]:
        if cell["mode"] not in ("autoregressive", "ddtree-63", "ddtree-255") or not cell.get("kernels"):
            continue
        seen = cell["kernels"]
        of = {
            kind: sum(k["ms"] for k in seen["largest"] if k["name"].startswith(starts))
            for kind, starts in KINDS.items()
        }
        sizes = result["shapes"][cell["shape"]]
        floor = sizes["floor_ms" if cell["mode"] == "autoregressive" else "round_floor_ms"]
        rest = seen["busy_ms"] - sum(of.values())
        idle = max(0.0, cell["round_ms"] - seen["busy_ms"])
        rows.append(
            (cell["shape"], cell["mode"], ms(cell["round_ms"]), ms(floor), *map(ms, of.values()), ms(rest), ms(idle))
        )
    return markdown(("shape", "mode", "round", "reading all weights", *KINDS, "rest", "no kernel runs"), rows)


def grid(result: Result) -> str:
    """Rounds of all shapes, batches and contexts, with the ratio to autoregressive of the same group."""
    groups: dict[tuple[str, int, int], dict[str, Any]] = {}
    for cell in result["cells"]:
        if cell["engine"] == "ours":
            groups.setdefault((cell["shape"], cell["batch"], cell["context"]), {})[cell["mode"]] = cell
    modes = ("autoregressive", "dflash", "ddtree-15", "ddtree-63", "ddtree-255")
    order = list(result["shapes"])
    places = sorted(groups, key=lambda place: (order.index(place[0]), *place[1:]))
    rows = (
        (shape, str(batch), f"{context:,}", *(in_grid(groups[shape, batch, context].get(mode)) for mode in modes))
        for shape, batch, context in places
    )
    missing = [
        f"{m['shape']} batch {m['batch']} context {m['context']} {', '.join(m['modes'])} ({m['reason']})"
        for m in result["not_measured"]
    ]
    text = markdown(("shape", "batch", "context", *modes), rows)
    return text + (f"\nNot measured: {'; '.join(missing)}.\n" if missing else "")


def decode(result: Result) -> str:
    parts = [where(result)]
    for t, found in result["temperatures"].items():
        rows = []
        for name, row in found["arms"].items():
            over = row.get("over_official", {})
            rows.append(
                (
                    name,
                    str(row["samples"]),
                    f"{row['acceptance_length']:.2f}",
                    f"{row['tokens_per_s']:.0f}",
                    ms(row["round_ms"]),
                    interval(row.get("round_over_autoregressive")),
                    interval(row.get("speed_up")),
                    interval(over.get("tokens_per_s"), 1),
                )
            )
        head = (
            "arm",
            "samples",
            "acceptance length",
            "tokens/s",
            "round, ms",
            "round / ours AR",
            "speed-up",
            "tokens/s over official",
        )
        parts.append(f"**T = {t}**, chosen budget {found['chosen_budget']}\n\n" + markdown(head, rows))
    return "\n".join(parts)


def equal(result: Result) -> str:
    rows = (
        (
            t,
            name,
            str(over["samples"]),
            f"{row['acceptance_length']:.3f}",
            interval(over["acceptance_length"], 3),
            percent(over["same_output"]),
            interval(over["tokens_per_s"], 1),
            interval(row.get("speed_up")),
        )
        for t, found in result["temperatures"].items()
        for name, row in found["arms"].items()
        if (over := row.get("over_official"))
    )
    head = (
        "T",
        "arm",
        "samples",
        "acceptance length",
        "ours / official",
        "same output",
        "tokens/s over official",
        "speed-up",
    )
    return where(result) + "\n" + markdown(head, rows)


def group(result: Result, shape: str, batch: int, context: int) -> list[dict[str, Any]]:
    return [c for c in result["cells"] if (c["shape"], c["batch"], c["context"]) == (shape, batch, context)]


def in_grid(cell: dict[str, Any] | None) -> str:
    return "–" if cell is None else f"{ms(cell['round_ms'])} ({times(cell['over_autoregressive'])})"


def interval(value: dict[str, Any] | None, digits: int = 2) -> str:
    if value is None:
        return "–"
    span = f" [{value['low']:.{digits}f}, {value['high']:.{digits}f}]" if value["low"] is not None else ""
    return f"{value['value']:.{digits}f}{span}"


def ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 100 else f"{value:.0f}"


def times(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}×"


def percent(value: float) -> str:
    return f"{100 * value:.0f}%"


TABLES: dict[str, tuple[str, Callable[[Result], str]]] = {
    "floors": (ROUNDS, floors),
    "rounds": (ROUNDS, rounds),
    "stages": (ROUNDS, stages),
    "spent": (ROUNDS, spent),
    "kernels": (ROUNDS, kernels),
    "grid": (ROUNDS, grid),
    "decode": (DECODE, decode),
    "equal": (EQUAL, equal),
}

if __name__ == "__main__":
    main()
