"""The page says what the result files say, no more."""

import json

import pytest

from benchmarks import performance_page as page


def test_the_page_is_up_to_date():
    text = page.PAGE.read_text()
    assert page.render(text, page.RESULTS) == text, "run python -m benchmarks.performance_page"


MACHINE = {"gpu": "GPU X", "cpu": "C", "torch": "2.0", "driver": "1", "commit": "abcdef0123", "date": "2026-01-01"}


def cell(mode, engine, round_ms, **more):
    known = {"shape": "s", "batch": 1, "context": 1024, "mode": mode, "engine": engine, "round_ms": round_ms}
    return known | {"times_floor": round_ms / 4, "over_autoregressive": round_ms / 5} | more


ROUNDS = {
    "machine": MACHINE,
    "seconds": 99.5,
    "copy_bandwidth_gb_s": 4290.0,
    "shapes": {"s": {"target_gb": 15.1, "floor_ms": 4.0, "round_floor_ms": 4.88, "kv_ms_per_1k_tokens": 0.035}},
    "not_measured": [{"shape": "s", "batch": 16, "context": 8192, "modes": ["dflash"], "reason": "time"}],
    "cells": [
        cell("autoregressive", "ours", 5.0, host_share=0.01, stages_ms={"verify": 4.5, "sample": 0.4}),
        cell("ddtree-63", "ours", 8.0, host_share=0.05, stages_ms={"draft": 1.25, "verify": 6.0},
             kernels={"launches": 300.0, "busy_ms": 7.9, "largest": [{"name": "gemm", "ms": 5.0, "calls": 180.0}]}),
        cell("ddtree-63", "official", 44.0, stages_ms={"draft": 6.0, "tree_build": 0.7}),
    ],
}  # fmt: skip
ESTIMATE = {"value": 2.5, "low": 2.25, "high": 2.75}
OVER = {"samples": 20, "acceptance_length": ESTIMATE, "tokens_per_s": ESTIMATE, "same_output": 0.95}
DECODE = {
    "machine": MACHINE,
    "seconds": 10,
    "temperatures": {
        "0.0": {
            "chosen_budget": 31,
            "arms": {
                "ddtree-31": {
                    "samples": 24, "acceptance_length": 2.6, "tokens_per_s": 1234.5, "round_ms": 2.1,
                    "speed_up": ESTIMATE, "round_over_autoregressive": ESTIMATE,
                    "over_official": OVER,
                },
                "official ddtree-31": {"samples": 20, "acceptance_length": 2.6, "tokens_per_s": 60.0, "round_ms": 43.0},
            },
        }
    },
}  # fmt: skip


def test_tables_of_known_results(tmp_path):
    for file, result in ((page.ROUNDS, ROUNDS), (page.DECODE, DECODE), (page.EQUAL, DECODE)):
        path = tmp_path / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(result))
    text = page.render(page.PAGE.read_text(), tmp_path)
    for expected in (
        "GPU X, torch 2.0, driver 1, commit abcdef0, 2026-01-01, 100 s in all.",
        "| s | 15.10 | 4.000 | 1.22 | 0.0350 |",
        "| autoregressive | 5 | 1.25 | 1.00× | 1% | – | – |",
        "| ddtree-63 | 8 | 2.00 | 1.60× | 5% | 44 | 5.5× |",
        "| ddtree-63 | 1.25 | – | 6 | – | – |",
        "| ddtree-63 | 6 | 0.7 |",
        "**s, ddtree-63**: 300 launches, 7.900 ms busy",
        "| s | 1 | 1,024 | 5 (1.00×) | – | – | 8 (1.60×) | – |",
        "Not measured: s batch 16 context 8192 dflash (time).",
        "| ddtree-31 | 24 | 2.60 | 1234 | 2.1 | 2.50 [2.25, 2.75] | 2.50 [2.25, 2.75] | 2.5 [2.2, 2.8] |",
        "| official ddtree-31 | 20 | 2.60 | 60 | 43 | – | – | – |",
        "| 0.0 | ddtree-31 | 20 | 2.600 | 2.500 [2.250, 2.750] | 95% |",
    ):
        assert expected in text, expected
    assert "Not measured yet" not in text
    assert page.render(text, tmp_path) == text


def test_a_table_without_a_place_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no place for the table floors"):
        page.render("# Performance\n", tmp_path)


def test_a_second_run_fills_in_what_the_first_left_out():
    late = {**cell("dflash", "ours", 9.0), "batch": 16, "context": 8192}
    again = cell("ddtree-63", "ours", 1.0)  # of a group that the first run has: its ratios are of that run
    still = {"shape": "s", "batch": 4, "context": 512, "modes": ["dflash"], "reason": "time"}
    found = page.joined(ROUNDS, {"cells": [late, again], "not_measured": [still]})
    assert found["cells"] == [*ROUNDS["cells"], late]
    assert found["not_measured"] == [still]


def test_where_a_rounds_time_went():
    largest = [{"name": "nvjet_a", "ms": 3.0, "calls": 9}, {"name": "_attend", "ms": 1.5, "calls": 9}]
    seen = cell("ddtree-63", "ours", 8.0, kernels={"launches": 20.0, "busy_ms": 7.5, "largest": largest})
    lines = page.spent({**ROUNDS, "cells": [seen]}).splitlines()
    assert lines[2] == "| s | ddtree-63 | 8 | 4.88 | 3 | 1.5 | 0 | 3 | 0.5 |"
