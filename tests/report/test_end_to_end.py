"""Real runs of the tiny pair through the command line, then their report: figures, trees and specification."""

import json
from pathlib import Path

from harness.report.__main__ import main


def test_a_report_on_real_runs_has_their_summaries_and_trees(harness, tmp_path: Path) -> None:
    for words in (["speculative=autoregressive"], ["speculative=dflash"], ["speculative.tree_budget=8"]):
        harness(*words, "run.limit=3", "sampling.temperature=0.6")
    page = tmp_path / "report/index.html"
    assert main(["--outputs", str(harness.outputs), "--html", str(page)]) == 0
    text = page.read_text()
    runs = json.loads(text.split('id="data">')[1].split("</script>")[0])["runs"]
    assert [run["label"] for run in runs] == ["autoregressive", "dflash", "ddtree 8"]
    for run in runs:
        assert run["summary"] == json.loads((Path(run["folder"]) / "summary.json").read_text())
        [profiled] = [json.loads(line) for line in (Path(run["folder"]) / "profile.jsonl").read_text().splitlines()]
        # The trees of the profile pass tell the output: the first token is the first root, then paths and bonus tokens.
        said = [profiled["trees"][0]["tokens"][0]]
        for tree, one in zip(profiled["trees"], profiled["rounds"], strict=True):
            assert tree["tokens"][0] == said[-1]
            said += [*(tree["tokens"][node] for node in tree["path"][1:]), tree["bonus"]][: one["num_emitted"]]
        assert said == profiled["output_ids"]
    assert runs[2]["estimates"]["speed_up"] is not None
    assert text.count('class="tree-round"') == sum(
        len(json.loads((Path(run["folder"]) / "profile.jsonl").read_text())["trees"]) for run in runs[1:]
    )
