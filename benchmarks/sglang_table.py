"""Tables of a result file of `benchmarks.sglang_gpu`: acceptance, tokens/s, and paired intervals over prompts.

python -m benchmarks.sglang_table benchmarks/results/sglang/h200_smollm2.json
"""

import json
import sys
from pathlib import Path

from harness.report.statistics import Estimate, ratio


def main() -> None:
    result = json.loads(Path(sys.argv[1]).read_text())
    cells = {(c["stage"], c["temperature"], c["concurrency"]): c for c in result["cells"]}
    print("| stage | T | concurrency | prompts | acceptance length | tokens/s |\n|-|-|-|-|-|-|")
    for (stage, temperature, concurrency), cell in cells.items():
        length = cell.get("acceptance_length")
        print(
            f"| {stage} | {temperature} | {concurrency} | {cell['generations']} "
            f"| {'' if length is None else f'{length:.2f}'} | {cell['tokens_per_s']:,.0f} |"
        )
    print("\n| T | concurrency | ddtree / dflash, acceptance length (95 %) | ddtree / dflash, tokens/s |\n|-|-|-|-|")
    for (stage, temperature, concurrency), cell in cells.items():
        other = cells.get(("dflash", temperature, concurrency))
        if stage == "ddtree" and other:
            speed = cell["tokens_per_s"] / other["tokens_per_s"]
            print(f"| {temperature} | {concurrency} | {show(lengths(cell, other))} | {speed:.2f} |")
    print("\n| T | ddtree at concurrency 16 / 1, acceptance length, the same prompts (95 %) |\n|-|-|")
    for temperature in sorted({key[1] for key in cells}):
        low, high = cells.get(("ddtree", temperature, 1)), cells.get(("ddtree", temperature, 16))
        if low and high:
            print(f"| {temperature} | {show(lengths(high, low))} |")


def lengths(top: dict, bottom: dict) -> Estimate:
    """Ratio of pooled acceptance lengths over the prompts that both cells hold. All requests give equally many tokens,
    so it is the inverse ratio of rounds."""
    rounds = [{row[0]: row[2] for row in cell["rows"]} for cell in (bottom, top)]
    shared = [prompt for prompt in rounds[0] if prompt in rounds[1]]
    return ratio(*([held[prompt] for prompt in shared] for held in rounds))


def show(estimate: Estimate) -> str:
    return f"{estimate.value:.3f} ({estimate.low:.3f} to {estimate.high:.3f})"


if __name__ == "__main__":
    main()
