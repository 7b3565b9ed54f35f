"""The whole recipe on a tiny chat model: it learns, it resumes exactly, it refuses what is wrong."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.drafters import train, trainer
from harness.drafters.corpus import Corpus
from harness.drafters.dflash import DFlashDrafter
from harness.drafters.recipe import checked, compose, plain, read_recipe


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {k: v for file in folder.glob("*.safetensors") for k, v in load_file(file).items()}


def test_the_recipe_from_text_to_checkpoint(tiny_chat, overrides: list[str], tmp_path: Path) -> None:
    train.main([*overrides, "train.steps=12", "train.eval_every=6", "train.lr=0.01"])
    result = json.loads((tmp_path / "best/result.json").read_text())
    assert result["training"]["step"] == 12
    assert result["corpus"]["answer_tokens"] >= 700
    for name in ("heldout", "heldout_without_openers", "heldout_without_loops"):
        for row in result[name].values():
            if row["conversations"]:
                assert 1 <= row["chain"] <= 4
                assert 1 <= row["3"] <= row["8"] <= 4
    target = tiny_chat.target
    drafter = DFlashDrafter.load(
        tmp_path / "best", target_config=target.config, embedding=target.get_input_embeddings(),
        lm_head=target.get_output_embeddings(), dtype=torch.float32, device="cpu",
    )  # fmt: skip
    assert (drafter.block_size, drafter.target_layer_ids) == (4, [0, 2])


def test_more_steps_lower_the_loss(overrides: list[str], shards: Path, tmp_path: Path, tiny_chat) -> None:
    recipe = checked(compose([*overrides, "train.steps=30", "train.lr=0.02", "network.init=random"]))
    learner = trainer.Trainer(recipe, tiny_chat.target, Corpus(shards, "cpu"))

    def loss() -> float:
        torch.manual_seed(0)
        batch = learner.corpus.batch(torch.arange(1, 4), 48)
        anchor_BA = batch.start_B[:, None] + torch.arange(8)
        with torch.no_grad():
            return float(learner.loss(batch, *learner.features(batch.ids_BS), anchor_BA)[0])

    before = loss()
    learner.run(tmp_path / "other.pt", tmp_path / "other")
    assert loss() < before - 0.3


def test_an_interrupted_run_ends_with_the_same_weights(
    overrides: list[str], shards: Path, tmp_path: Path, monkeypatch, tiny_chat
) -> None:
    recipe = checked(compose([*overrides, "train.call_seconds=1e6"]))
    corpus = Corpus(shards, "cpu")

    def learner() -> trainer.Trainer:
        torch.manual_seed(0)
        return trainer.Trainer(recipe, tiny_chat.target, corpus)

    whole = learner()
    assert whole.run(tmp_path / "whole.pt", tmp_path / "x")
    first = learner()
    monkeypatch.setattr(first, "keep_best", lambda _: monkeypatch.setattr(trainer, "BEGIN", -1e9))  # at step 3
    assert not first.run(tmp_path / "parts.pt", tmp_path / "x")
    assert first.state["step"] == 3
    monkeypatch.undo()
    second = learner()
    assert second.run(tmp_path / "parts.pt", tmp_path / "x")
    for name, value in whole.network.state_dict().items():
        assert torch.equal(value, second.network.state_dict()[name]), name
        assert value.dim() == 1 or not torch.equal(value, first.network.state_dict()[name]), name


def test_a_second_call_generates_nothing_again(overrides: list[str], shards: Path, tmp_path: Path) -> None:
    text = {path.name: path.read_bytes() for path in shards.iterdir()}
    train.main(overrides)
    best = weights(tmp_path / "best")
    train.main(overrides)
    assert {path.name: path.read_bytes() for path in shards.iterdir()} == text
    assert all(torch.equal(value, best[name]) for name, value in weights(tmp_path / "best").items())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("train.sconds=3", r"train\.sconds: no such key"),
        ("train.lr=-1", r"train\.lr"),
        ("network.init=zeros", r"network\.init"),
        ("generate.opener_share=2", r"generate\.opener_share"),
        ("network.target_layer_ids=[0,3]", r"network\.target_layer_ids"),
        ("network.mask_token_id=16", r"network\.mask_token_id"),
        ("network.intermediate_size=40", r"network\.init=random"),
    ],
)
def test_refusals_name_the_key(override: str, message: str, tiny_chat, overrides: list[str]) -> None:
    from harness.drafters.start import new_network

    with pytest.raises(ValueError, match=message):
        new_network(checked(compose([*overrides, override])).network, tiny_chat.target)


def test_a_resolved_file_needs_no_composing(overrides: list[str], tmp_path: Path) -> None:
    file = tmp_path / "recipe.json"
    file.write_text(json.dumps(compose(overrides)))
    assert read_recipe(["--resolved", str(file)]) == checked(compose(overrides))
    broken = plain(checked(compose(overrides)))
    del broken["train"]["lr"]
    file.write_text(json.dumps(broken))
    with pytest.raises(ValueError, match=r"train\.lr: missing key"):
        read_recipe(["--resolved", str(file)])
