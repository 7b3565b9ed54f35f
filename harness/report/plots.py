"""Charts as inline SVG: matplotlib without pyplot, so without any display or global state.

Every chart takes plain numbers and returns an <svg> element. Labels come from run folders, so they are never read as
mathematics, and matplotlib escapes them for XML.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.report.statistics import Estimate

# Okabe and Ito's colours, told apart by every kind of sight; grey is the baseline's.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6D31", "#000000")
BASELINE = "#8a8f98"
STAGES = {"draft": "#E69F00", "build": "#CC79A7", "verify": "#0072B2", "sample": "#56B4E9", "commit": "#009E73"}
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "report",
    "text.parse_math": False,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#9aa0a8",
    "axes.labelcolor": "#3c4149",
    "xtick.color": "#3c4149",
    "ytick.color": "#3c4149",
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e4e6ea",
    "axes.axisbelow": True,
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Series:
    label: str
    x: list[float]
    y: list[Estimate]


def colour(label: str, place: int) -> str:
    return BASELINE if label.startswith("autoregressive") else COLOURS[place % len(COLOURS)]


def curve(
    title: str, x_label: str, series: Sequence[Series], levels: Sequence[tuple[str, float]] = (), log2: bool = False
) -> str:
    """Points with their intervals over a setting; `levels` are dashed lines of runs without that setting."""
    with _style():
        figure, axes = _figure(5.6, 3.1)
        for place, line in enumerate(series):
            value = [point.value for point in line.y]
            below = [0.0 if p.low is None else max(0.0, p.value - p.low) for p in line.y]
            above = [0.0 if p.high is None else max(0.0, p.high - p.value) for p in line.y]
            axes.errorbar(
                line.x,
                value,
                yerr=[below, above],
                color=colour(line.label, place),
                marker="o",
                markersize=4,
                capsize=2.5,
                elinewidth=0.9,
                label=line.label,
            )
        for place, (label, level) in enumerate(levels):
            axes.axhline(level, color=colour(label, len(series) + place), linestyle="--", linewidth=1, label=label)
        if log2:
            axes.set_xscale("log", base=2)
            ticks = sorted({x for line in series for x in line.x})
            axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.minorticks_off()
        axes.set_title(title)
        axes.set_xlabel(x_label)
        if len(series) + len(levels) > 1:
            axes.legend()
        return _svg(figure)


def histogram(title: str, series: Sequence[tuple[str, list[int]]]) -> str:
    """Share of rounds by accepted drafts, one group of bars a run."""
    with _style():
        figure, axes = _figure(5.6, 3.1)
        width = 0.8 / max(len(series), 1)
        for place, (label, counts) in enumerate(series):
            total = sum(counts) or 1
            at = [i + (place - (len(series) - 1) / 2) * width for i in range(len(counts))]
            axes.bar(at, [count / total for count in counts], width=width, color=colour(label, place), label=label)
        longest = max((len(counts) for _, counts in series), default=1)
        axes.set_xticks(range(0, longest, max(1, longest // 16)))
        axes.set_title(title)
        axes.set_xlabel("accepted drafts in a round")
        axes.yaxis.set_major_formatter(_percent)
        axes.legend()
        return _svg(figure)


def positions(title: str, series: Sequence[tuple[str, list[float]]]) -> str:
    """Share of rounds that accepted at least i drafts."""
    with _style():
        figure, axes = _figure(5.6, 3.1)
        for place, (label, shares) in enumerate(series):
            axes.plot(range(1, len(shares) + 1), shares, "o-", color=colour(label, place), markersize=3.5, label=label)
        axes.set_ylim(0, 1.02)
        axes.set_xticks(range(1, max((len(shares) for _, shares in series), default=1) + 1))
        axes.set_title(title)
        axes.set_xlabel("position i of the accepted path")
        axes.yaxis.set_major_formatter(_percent)
        axes.legend()
        return _svg(figure)


def stage_bars(title: str, rows: Sequence[tuple[str, dict[str, float]]], floor_s: float | None) -> str:
    """Milliseconds a profiled round by stage, one bar a run, and the roofline floor where it is known."""
    with _style():
        figure, axes = _figure(11.4, 0.9 + 0.42 * len(rows))
        found = {name for _, stages in rows for name in stages}
        names = [name for name in STAGES if name in found] + sorted(found - set(STAGES))
        spare = iter(COLOURS[5:])
        places = range(len(rows) - 1, -1, -1)
        left = [0.0] * len(rows)
        for name in names:
            widths = [1000 * stages.get(name, 0.0) for _, stages in rows]
            shade = STAGES.get(name) or next(spare, "#777777")
            axes.barh(list(places), widths, left=left, height=0.62, color=shade, label=name)
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for place, total in zip(places, left, strict=True):
            axes.annotate(f"{total:.1f}", (total, place), (5, 0), textcoords="offset points", va="center")
        if floor_s is not None:
            axes.axvline(1000 * floor_s, color="#c1121f", linewidth=1.4, label="floor")
        axes.set_yticks(list(places), [label for label, _ in rows])
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.set_xlim(0, 1.08 * max([*left, 1000 * (floor_s or 0.0), 1e-9]))
        axes.set_title(title)
        axes.set_xlabel("ms a round")
        axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
        return _svg(figure)


def _style() -> Any:
    import matplotlib

    return matplotlib.rc_context(STYLE)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure, figure.add_subplot()


def _svg(figure: Any) -> str:
    """The <svg> element alone, of the width that the page gives it. The ids of two charts must not meet."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :].strip()


def _percent(value: float, _: int) -> str:
    return f"{value:.0%}"
