"""`make drafter`: text from the target, a DFlash drafter trained on it, its acceptance length on held-out text.

Resumable: text lies in shards, weights and optimizer in `work_dir/state.pt`; the same command goes on. The drafter that
was best on held-out conversations is what `output_dir` holds. See docs/drafters.md.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from harness.drafters.corpus import Corpus, write_shard
from harness.drafters.generate import Conversation, Generator, stop_after
from harness.drafters.recipe import Recipe, compose, plain, read_recipe
from harness.drafters.trainer import Trainer, log


def fill(recipe: Recipe, target: PreTrainedModel, tokenizer: Any, folder: Path) -> None:
    """Generate until the shards hold generate.tokens answer tokens, or generate.seconds have passed."""
    num_shards = len(list(folder.glob("shard-*.safetensors")))
    have = Corpus(folder, "cpu").num_response_tokens() if num_shards else 0
    late = stop_after(recipe.generate.seconds)
    shard: list[Conversation] = []
    generator = Generator(target, tokenizer, recipe.generate, recipe.seed + num_shards)
    finished = generator.conversations()
    while have < recipe.generate.tokens and not late():
        some = next(finished)
        shard += some
        have += sum(len(c.tokens) - c.response_start for c in some)
        if sum(len(c.tokens) for c in shard) >= recipe.generate.shard_tokens:
            write_shard(folder, shard)
            log("answer tokens", have)
            shard = []
    finished.close()
    if shard:
        write_shard(folder, shard)
    log("answer tokens", have, "lost user turns", generator.num_lost, "of", generator.num_rows)


def load_target(recipe: Recipe) -> tuple[PreTrainedModel, Any, str]:
    """(frozen target in bfloat16, tokenizer, folder)."""
    folder = recipe.target
    if folder is None:
        from harness.compose import compose as compose_run
        from harness.sources import fetch

        model = compose_run(["model=smollm2_135m"]).model
        folder = str(fetch(model.target, model.source, key="model.target").path)
    device = recipe.device if recipe.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    target: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    target = target.to(device).eval().requires_grad_(False)
    return target, AutoTokenizer.from_pretrained(folder), folder


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--print"]:  # the resolved recipe, for a machine without Hydra
        print(json.dumps(compose(arguments[1:]), indent=1))
        return
    recipe = read_recipe(arguments)
    target, tokenizer, folder = load_target(recipe)
    log("target", folder, "on", target.device)
    work, output = Path(recipe.work_dir), Path(recipe.output_dir)
    fill(recipe, target, tokenizer, work / "shards")
    corpus = Corpus(work / "shards", target.device)
    log("conversations", corpus.num_conversations, "answer tokens", corpus.num_response_tokens())
    trainer = Trainer(recipe, target, corpus)
    if not trainer.run(work / "state.pt", output):
        log("stopped by train.call_seconds; the same command goes on")
        return
    best = {k: v for file in output.glob("model-*.safetensors") for k, v in load_file(file).items()}
    trainer.network.load_state_dict(best)
    budgets, held = recipe.heldout.budgets, corpus.heldout(recipe.heldout.every).nonzero().flatten()
    result: dict[str, Any] = {
        "recipe": plain(recipe),
        "corpus": {"conversations": corpus.num_conversations, "answer_tokens": corpus.num_response_tokens()},
        "parameters": sum(p.numel() for p in trainer.network.parameters()),
        "heldout_rounds": trainer.measure_rounds(budgets),
        "heldout": trainer.measure(budgets),
        "heldout_without_openers": trainer.measure(budgets, corpus.opener < 0),
        "heldout_without_loops": trainer.measure(budgets, ~corpus.loops(held)),
        "training": trainer.state,
    }
    for name in (key for key in result if key.startswith("heldout")):
        for heat, row in result[name].items():
            log(name, "T", heat, {k: round(v, 3) for k, v in row.items()})
    (output / "result.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ValueError as error:
        sys.exit(f"error: {error}")
