"""Prompts for the SGLang benchmark as a file that travels: distinct questions, as token ids of one target.

python -m benchmarks.sglang_prompts --target TARGET --count 512 --out prompts.json
"""

import argparse
import json
from pathlib import Path

MORE = "Explain your answer to a beginner, in detail."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, required=True, help="folder with the tokenizer")
    parser.add_argument("--count", type=int, default=512)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()

    from harness.compose import build, compose
    from harness.prompts import Prompter
    from harness.sources import fetch

    prompter = Prompter(asked.target, {})
    samples = []
    for name in ("humaneval", "math500"):
        data = compose([f"task={name}"])
        task = build(data.task, "task")
        samples += task.load(fetch(data.data.sources, data.data.source, key="task").path)
    prompts = [{"id": sample.id, "ids": prompter.ids(sample.messages)} for sample in samples]
    # The packages hold 475 questions; the rest are the last ones, asked for in another way.
    for sample in reversed(samples):
        last = sample.messages[-1]
        messages = [*sample.messages[:-1], {**last, "content": f"{last['content']}\n{MORE}"}]
        prompts.append({"id": f"{sample.id}+explain", "ids": prompter.ids(messages)})
    asked.out.write_text(json.dumps(prompts[: asked.count]) + "\n")


if __name__ == "__main__":
    main()
