"""The page: its numbers are those of summary.json, it needs nothing else, and text in it stays text."""

import base64
import hashlib
import json
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest

from harness.report.__main__ import main
from harness.report.advice import advise
from harness.report.compare import Run
from harness.report.groups import report
from harness.report.page import html
from harness.report.recommend import Limits


def html_of(folders: list, left_out: list[str] | None = None) -> str:
    found = report([Run.read(str(getattr(f, "path", f))) for f in folders], left_out or [])
    return html(found, advise(found, Limits()))


class Page(HTMLParser):
    """Elements with their attributes, the cells of every table, and the scripts: a reader that knows no template."""

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.cell: list[str] | None = None
        self.script: dict[str, str | None] | None = None
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "table":
            self.tables.append([])
        elif tag == "tr" and self.tables:
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.cell = []
        elif tag == "script":
            self.script = dict(attributes)

    def handle_endtag(self, tag):
        if tag in ("td", "th") and self.cell is not None:
            self.tables[-1][-1].append(" ".join(self.cell))
            self.cell = None
        elif tag == "script":
            self.script = None

    def handle_data(self, data):
        if self.script is not None:
            self.scripts.append((self.script, data))
        elif self.cell is not None and data.strip():
            self.cell.append(data.strip())
        else:
            self.text.append(data)

    def table(self, column: str) -> list[dict[str, str]]:
        """Rows by column name of the one table that has this column."""
        [found] = [table for table in self.tables if column in table[0]]
        return [dict(zip(found[0], row, strict=True)) for row in found[1:]]

    @property
    def data(self) -> dict:
        [text] = [text for attributes, text in self.scripts if attributes.get("id") == "data"]
        return json.loads(text)


@pytest.fixture(scope="module")
def page(page_file: Path) -> Page:
    return Page(page_file.read_text())


def test_the_data_block_holds_every_summary_to_the_last_digit(page: Page) -> None:
    runs = page.data["runs"]
    assert len(runs) == 8
    for run in runs:
        assert run["summary"] == json.loads((Path(run["folder"]) / "summary.json").read_text())


def test_the_tables_show_the_summaries_numbers(page: Page) -> None:
    """Every number of the acceptance and latency columns, rounded here on its own, run by run in the data's order."""
    runs = page.data["runs"]
    acceptance, speed = page.table("pooled length"), page.table("decode tokens/s")
    by_run = {row["run"]: row for row in acceptance}
    assert len(by_run) == 8
    for run in runs:
        summary, row = run["summary"], by_run[f"{run['label']} {run['group']}"]
        assert row["pooled length"] == f"{summary['acceptance_length/pooled']:.3f}"
        assert row["mean of samples"] == f"{summary['acceptance_length/sample_mean']:.3f}"
        assert row["rounds"] == str(summary["rounds/total"])
        assert row["expected drafts (profiled)"] == f"{summary['acceptance/expected_accepted']:.3f}"
        [fast] = [row for row in speed if row["run"] == f"{run['label']} {run['group']}"]
        assert fast["decode tokens/s"] == f"{summary['throughput/decode_tokens_per_s']:.1f}"
        waits = [f"{1000 * summary[f'latency/tpot_s_p{q}']:.1f}" for q in (50, 90, 99)]
        assert fast["TPOT p50 / p90 / p99 ms"] == " / ".join(waits)


def test_the_papers_layout(page: Page) -> None:
    """A row a mode, a column a task and temperature, speed-up / acceptance, from totals summed here."""
    [table] = [t for t in page.tables if t[0][0] == "mode"]
    assert table[0] == ["mode", "humaneval T=0", "humaneval T=1"]
    assert [row[0] for row in table[1:]] == ["autoregressive", "dflash", "ddtree 4", "ddtree 16"]
    runs = {(run["label"], run["group"]): Path(run["folder"]) for run in page.data["runs"]}

    def totals(folder: Path) -> tuple[float, int, int]:
        lines = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
        rounds = [r for line in lines for r in line["rounds"]]
        return sum(line["decode_s"] for line in lines), sum(r["num_emitted"] for r in rounds), len(rounds)

    for column, heat in ((1, "humaneval at T=0"), (2, "humaneval at T=1")):
        base_s, base_tokens, _ = totals(runs["autoregressive", heat])
        for row in table[2:]:
            seconds, tokens, rounds = totals(runs[row[0], heat])
            speed = (base_s / base_tokens) / (seconds / tokens)
            assert row[column].startswith(f"({speed:.2f}×) / {tokens / rounds:.2f} [")


def test_the_page_needs_nothing_else(page: Page, page_file: Path) -> None:
    for tag, attributes in page.tags:
        for name in ("src", "href", "xlink:href", "action", "data", "poster"):
            value = attributes.get(name) or ""
            assert value.startswith(("#", "data:")) or not value, (tag, name, value)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
    text = page_file.read_text()
    assert "@import" not in text
    assert not re.findall(r"url\((?!#|&quot;#)", text)
    policy = next(a["content"] for t, a in page.tags if t == "meta" and a.get("http-equiv"))
    assert policy.startswith("default-src 'none'")
    [code] = [text for attributes, text in page.scripts if "type" not in attributes]
    assert f"'sha256-{base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()}'" in policy


def test_ids_are_distinct_and_drawings_are_well_formed(page: Page, page_file: Path) -> None:
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    doubled = {i for i in ids if ids.count(i) > 1}
    assert not doubled
    drawings = re.findall(r"<svg.*?</svg>", page_file.read_text(), flags=re.S)
    assert len(drawings) > 8
    for drawing in drawings:
        ET.fromstring(drawing)


def test_what_a_model_wrote_stays_text(nasty_outputs: Path, tmp_path: Path) -> None:
    runs = sorted(str(path.parent) for path in nasty_outputs.rglob("run.json"))
    assert main([*runs, "--html", str(tmp_path / "i.html"), "--markdown", str(tmp_path / "r.md")]) == 0
    page = Page((tmp_path / "i.html").read_text())
    assert len(page.scripts) == 2
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert "alert('x')" in "".join(page.text)  # shown, as text
    assert "<script" not in (tmp_path / "r.md").read_text()


def test_names_and_errors_are_untrusted_too(run, sample, tmp_path: Path) -> None:
    nasty = "</script><img src=x>$x_$"
    asked = {"model": {"name": nasty}, "task": {"name": nasty}}
    base = run("base", [sample(c, [0] * 6, nodes=0, seconds=6.0) for c in "abc"], "autoregressive", asked=asked)
    trees = [sample(c, [2, 2], seconds=3.0) for c in "abc"]
    tree = run("tree", trees, asked=asked, command=["python", nasty], speculative={"drafter": nasty})
    failed = run("gone", [sample("a", [], status="error", error=nasty, output_ids=[])], "dflash", asked=asked)
    other = run("other", trees, asked={**asked, "sampling": {"name": nasty, "temperature": 1.0}})
    page = Page(html_of([base, tree, failed, other], [nasty]))
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert len(page.scripts) == 2
    assert nasty in "".join(page.text)
    assert any("gone" in line and "first error" in line for line in page.data["left_out"])


def test_runs_that_differ_in_more_are_listed_on_top(run, sample) -> None:
    samples = [sample(c, [1, 1]) for c in "ab"]
    cold = {"sampling": {"name": "t06", "temperature": 0.6, "max_new_tokens": 64}}
    hot = {"sampling": {"name": "t10", "temperature": 1.0, "max_new_tokens": 128}}
    folders = [run("a", samples, asked=cold), run("b", samples, "dflash", asked=cold), run("c", samples, asked=hot)]
    page = Page(html_of(folders))
    notices = page.data["notices"]
    assert notices[0].startswith("These runs differ in more than")
    assert [line for line in notices if "asked.sampling.max_new_tokens: 64 against 128" in line]
    assert not [line for line in notices if "temperature:" in line]
    assert "These runs differ in more than" in "".join(page.text)


def test_a_page_is_repeatable(outputs: Path) -> None:
    runs = sorted(path.parent for path in outputs.glob("*-1.0/run.json"))
    assert html_of(runs) == html_of(runs)


def test_floor_and_stages(page: Page, page_file: Path, run, sample, profile) -> None:
    """8 GB over 2 × 1000 GB/s are 4 ms; without a bandwidth the page says so. Prefill is no part of a round."""
    assert "8.00 GB / (2 × 1000 GB/s) = 4.00 ms" in "".join(page.text)
    bars = re.findall(r'aria-label="A profiled round by stage.*?</figure>', page_file.read_text(), flags=re.S)
    assert len(bars) == 2
    assert all("verify" in bar and "floor" in bar and "prefill" not in bar for bar in bars)
    folder = run("alone", [sample("a", [1, 1])])
    folder.append(profile(sample("a", [1, 1])), file="profile.jsonl")
    alone = html_of([folder])
    assert "unknown: run.json has no size of the target" in alone
    assert 'aria-label="A profiled round by stage' in alone


def test_stage_times_against_the_floor_and_the_baseline(page: Page) -> None:
    """From profile.jsonl alone: seconds of the five stages over rounds; 0.8 s a sample whatever the mode."""
    found = {row["run"]: row for row in page.table("floor / round")}
    runs = {f"{run['label']} {run['group']}": Path(run["folder"]) for run in page.data["runs"]}
    assert set(found) == set(runs)

    def round_ms(folder: Path) -> float:
        one = json.loads((folder / "profile.jsonl").read_text())
        return 1000 * sum(v for name, v in one["stage_s"].items() if name != "prefill") / len(one["rounds"])

    base = round_ms(runs["autoregressive humaneval at T=1"])
    for name, row in found.items():
        own = round_ms(runs[name])
        assert row["round, ms"] == f"{own:.2f}"
        assert row["floor / round"] == f"{4 / own:.0%}"
        if name.endswith("T=1"):
            assert row["ρ"] == f"{own / base:.2f}"
    verify = 1000 * 0.6 / 20
    assert found["autoregressive humaneval at T=1"]["verify"] == f"{verify:.2f}"


def test_markdown_has_the_same_tables(page: Page, page_file: Path) -> None:
    text = (page_file.parent / "report.md").read_text()
    [table] = [t for t in page.tables if t[0][0] == "mode"]
    for row in table:
        assert f"| {' | '.join(row)} |" in text


def test_the_sample_of_the_trees_can_be_chosen(outputs: Path, tmp_path: Path, capsys) -> None:
    runs = sorted(str(path.parent) for path in outputs.glob("*-1.0/run.json"))
    assert main([*runs, "--html", str(tmp_path / "x.html"), "--tree-sample", "nope"]) == 2
    assert "no tree of it was traced. Traced: p/0" in capsys.readouterr().err
    assert not (tmp_path / "x.html").exists()
