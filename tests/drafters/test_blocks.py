"""Blocks of training against the drafter of serving; held-out lengths against a tree read as a set of prefixes.

B conversations, A anchors, D drafted tokens, R trees, N nodes.
"""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness.decoding.tree import best_first
from harness.drafters.blocks import make_blocks, random_anchors
from harness.drafters.corpus import Corpus, Sampler, write_shard
from harness.drafters.dflash import DFlashDrafter
from harness.drafters.generate import Conversation
from harness.drafters.heldout import count_rounds, followed, measure_rounds
from harness.drafters.recipe import checked, compose
from harness.drafters.trainer import Trainer


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    torch.manual_seed(0)
    for _ in range(2):
        lengths = torch.randint(12, 60, (30,)).tolist()
        write_shard(
            tmp_path,
            [Conversation(torch.randint(2, 16, (n,)).tolist(), 5, [0.0, 0.6, 1.0][n % 3], n % 2 - 1) for n in lengths],
        )
    return Corpus(tmp_path, "cpu")


def test_training_sees_what_serving_sees(tiny_chat, corpus: Corpus, overrides: list[str]) -> None:
    torch.manual_seed(1)
    trainer = Trainer(checked(compose([*overrides, "network.init=random"])), tiny_chat.target, corpus)
    target = tiny_chat.target
    drafter = DFlashDrafter(trainer.config, target.get_input_embeddings(), target.get_output_embeddings())
    drafter.network = trainer.network
    batch = corpus.batch(torch.tensor([3, 40]), 60)
    anchor_BA = random_anchors(batch, 5)
    blocks = make_blocks(batch, anchor_BA, 4, 0)
    feature_BSF, _ = trainer.features(batch.ids_BS)
    embedding_BQH = target.get_input_embeddings()(blocks.token_BQ)
    place_BS = torch.arange(60).expand(2, -1)
    hidden = trainer.network(feature_BSF, embedding_BQH, place_BS, blocks.position_BQ, blocks.mask_B1QX)
    logits_BADV = target.get_output_embeddings()(hidden).view(2, 5, 4, -1)[:, :, 1:]
    for b in range(2):
        for a in range(5):
            anchor = int(anchor_BA[b, a])
            state = drafter.new_state(1, 80)
            drafter.extend(state, feature_BSF[b : b + 1, :anchor], torch.tensor([anchor]))
            served_DV = drafter.propose(state, batch.ids_BS[b : b + 1, anchor])[0]
            torch.testing.assert_close(logits_BADV[b, a], served_DV, rtol=1e-4, atol=1e-4)
            text = batch.ids_BS[b, anchor + 1 : anchor + 4].tolist()
            assert blocks.label_BAD[b, a, : len(text)].tolist() == text
            assert blocks.valid_BAD[b, a].sum() == min(3, int(batch.end_B[b]) - 1 - anchor)


def test_anchors_leave_room(corpus: Corpus) -> None:
    batch = corpus.batch(torch.arange(20), 60)
    anchor_BA = random_anchors(batch, 200, whole_blocks_of=4)
    assert (anchor_BA >= batch.start_B[:, None]).all()
    assert (anchor_BA + 3 < batch.end_B[:, None]).all()
    assert (anchor_BA == batch.start_B[:, None]).any()
    assert (anchor_BA + 4 == batch.end_B[:, None]).any()


def test_a_growing_corpus_moves_no_held_out_conversation(corpus: Corpus, tmp_path: Path) -> None:
    before = corpus.heldout(5)
    write_shard(tmp_path, [Conversation([2] * 40, 5, 0.0, -1)] * 7)
    grown = Corpus(tmp_path, "cpu")
    assert grown.num_conversations == 67
    assert torch.equal(grown.heldout(5)[:60], before)
    assert grown.loops(torch.tensor([3, 66])).nonzero().flatten().tolist() == [66]


def test_no_batch_holds_a_held_out_conversation(corpus: Corpus) -> None:
    held = {tuple(corpus.batch(r[None], 64).ids_BS[0].tolist()) for r in corpus.heldout(5).nonzero().flatten()}
    sampler = Sampler(corpus, ~corpus.heldout(5), batch_size=4, anchors=4, longest=64, step=16)
    seen, shapes = set(), set()
    for seed in range(200):
        batch, anchors = sampler.draw(seed)
        shapes.add((*batch.ids_BS.shape, anchors))
        rows = torch.nn.functional.pad(batch.ids_BS, (0, 64 - batch.ids_BS.shape[1]))
        seen |= {tuple(row) for row in rows.tolist()}
    assert len(seen) == 48
    assert not held & seen
    assert shapes == {(16, 16, 1), (8, 32, 2), (5, 48, 3), (4, 64, 4)}
    again, _ = sampler.draw(7)
    assert torch.equal(again.ids_BS, sampler.draw(7)[0].ids_BS)


def test_followed_against_a_set_of_prefixes() -> None:
    generator = torch.Generator().manual_seed(0)
    depths = set()
    for _ in range(60):
        logp_DK, ids_DK = torch.randn(4, 5, generator=generator).mul(2).log_softmax(-1).sort(-1, descending=True)
        tree = best_first(9, logp_DK, ids_DK, 12)
        tokens, parents = tree.token_BN[0].tolist(), tree.parent_BN[0].tolist()
        prefixes = {0: ()}
        for node in range(1, int(tree.count_B[0])):
            prefixes[node] = (*prefixes[parents[node]], tokens[node])
        label_RD = torch.randint(5, (1, 4), generator=generator)
        label_RD[0, : int(torch.randint(5, (1,), generator=generator))] = ids_DK[0, 0]
        text = label_RD[0].tolist()
        naive = max(d for d in range(5) if tuple(text[:d]) in prefixes.values())
        assert followed(tree.token_BN, tree.parent_BN, tree.valid_BN, label_RD).tolist() == [naive]
        depths.add(naive)
    assert depths >= {0, 1, 2}


def test_rounds_against_decoding_one_round_after_the_other(tiny_chat, corpus: Corpus, overrides: list[str]) -> None:
    """A decoder with the serving drafter, which knows the text as the target's greedy answer, counts the same rounds."""
    torch.manual_seed(1)
    trainer = Trainer(checked(compose([*overrides, "network.init=random"])), tiny_chat.target, corpus)
    corpus.token_T[corpus.offset[7] + 8 : corpus.offset[7] + 20] = 9  # something a drafter may hit
    rows, target = torch.tensor([2, 7]), tiny_chat.target
    drafter = DFlashDrafter(trainer.config, target.get_input_embeddings(), target.get_output_embeddings())
    drafter.network = trainer.network

    def exact(batch, blocks):  # float32, where `draft` of the trainer computes in bfloat16
        feature_BSF, _ = trainer.features(batch.ids_BS)
        logits = []
        for anchor in blocks.position_BQ[0, ::4].tolist():
            state = drafter.new_state(1, 80)
            drafter.extend(state, feature_BSF[:, :anchor], torch.tensor([anchor]))
            logits.append(drafter.propose(state, batch.ids_BS[:, anchor])[0])
        return torch.stack(logits)[None]

    num_rounds = num_emitted = 0
    for row in rows:
        text = corpus.batch(row[None], 64)
        feature_BSF, _ = trainer.features(text.ids_BS)
        ids, place, last = text.ids_BS[0].tolist(), int(text.start_B), int(text.end_B) - 1
        state = drafter.new_state(1, 80)
        drafter.extend(state, feature_BSF[:, :place], torch.tensor([place]))
        while place < last:
            draft = drafter.propose(state, torch.tensor([ids[place]])).argmax(-1)[0].tolist()
            step = 1
            while step <= 3 and place + step <= last and draft[step - 1] == ids[place + step]:
                step += 1
            drafter.extend(state, feature_BSF[:, place : place + step], torch.tensor([step]))
            num_emitted += min(step, last - place)
            num_rounds += 1
            place += step
    found = measure_rounds(
        exact, corpus, rows, block_size=4, mask_token_id=0, num_slots=64, budgets=[3], anchors_at_once=10
    )
    assert found["rounds"] == num_rounds
    assert found["chain"] == pytest.approx(num_emitted / num_rounds)
    assert found["3"] >= 1


def test_count_rounds() -> None:
    assert count_rounds([]) == 0
    assert count_rounds([1, 1, 1]) == 3
    assert count_rounds([2, 9, 1, 8]) == 3
    assert count_rounds([4, 1, 1, 1]) == 1


def test_shards_appear_whole(corpus: Corpus, tmp_path: Path) -> None:
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["shard-00000.safetensors", "shard-00001.safetensors"]
    arrays = load_file(tmp_path / names[0])
    assert int(arrays["length"].sum()) == len(arrays["token"])
