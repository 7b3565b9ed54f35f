"""Records survive a kill at any byte, read back as written, and refuse what breaks an identity."""

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.records import SCHEMA, Round, RunFolder, RunManifest, SampleRecord, Totals, TreeTrace

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)


@st.composite
def sample_records(draw: st.DrawFn) -> SampleRecord:
    """Any record that keeps the identities: only the last round may be cut."""
    accepted = draw(st.lists(st.integers(0, 6), max_size=5))
    emitted = [count + 1 for count in accepted]
    if emitted:
        emitted[-1] = draw(st.integers(1, emitted[-1]))
    rounds = [
        Round(
            num_accepted=a,
            num_emitted=e,
            num_nodes=a + draw(st.integers(0, 9)),
            context_length=draw(st.integers(0, 9999)),
            expected_accepted=draw(st.none() | FLOATS),
        )
        for a, e in zip(accepted, emitted, strict=True)
    ]
    size = 1 + sum(emitted)
    return SampleRecord(
        task=draw(TEXT),
        sample_id=draw(TEXT),
        repeat=draw(st.integers(0, 3)),
        status="ok",
        output_ids=draw(st.lists(st.integers(0, 200_000), min_size=size, max_size=size)),
        output_text=draw(TEXT),
        finish_reason=draw(st.sampled_from(["stop", "length", None])),
        rounds=rounds,
        decode_s=draw(st.none() | FLOATS),
        score=draw(st.none() | FLOATS),
        score_detail=draw(st.dictionaries(TEXT, TEXT | FLOATS, max_size=2)),
        flags={"repetition": draw(st.booleans())},
    )


def simple(sample_id: str = "a", **values: Any) -> SampleRecord:
    rounds = [Round(num_accepted=2, num_emitted=3, num_nodes=4, context_length=7)]
    given = {"status": "ok", "output_ids": [5, 6, 7, 8], "rounds": rounds, "output_text": "höß 漢字"}
    return SampleRecord(task="t", sample_id=sample_id, repeat=0, **{**given, **values})


def one_tree(path: list[int]) -> TreeTrace:
    return TreeTrace(
        tokens=[9, 5, 6],
        texts=["a", "<b>", "\ufffd"],
        parents=[-1, 0, 1],
        scores=[0.0, -0.5, -1.5],
        probabilities=[1.0, 0.25, 0.0],
        path=path,
        bonus=7,
    )


def test_trees_read_back_and_agree_with_their_rounds(tmp_path) -> None:
    run = RunFolder(tmp_path)
    record = simple(trees=[one_tree([0, 1, 2])])
    run.append(record, file="profile.jsonl")
    assert run.records("profile.jsonl") == [record]
    with pytest.raises(ValueError, match="round 0 accepted 2, its tree a path of 1"):
        run.append(simple(trees=[one_tree([0, 1])]), file="profile.jsonl")


@settings(max_examples=40, deadline=None)
@given(st.lists(sample_records(), max_size=4, unique_by=lambda r: r.key))
def test_records_read_back_as_written(tmp_path_factory: pytest.TempPathFactory, records: list[SampleRecord]) -> None:
    run = RunFolder(tmp_path_factory.mktemp("run"))
    for record in records:
        run.append(record)
    assert run.records() == records


def test_a_kill_at_any_byte_of_the_last_line_loses_that_line_only(tmp_path) -> None:
    run = RunFolder(tmp_path)
    run.append(simple("whole"))
    whole = (tmp_path / "records.jsonl").read_bytes()
    run.append(simple("torn", score_detail={"said": "é\n\u2028"}))
    both = (tmp_path / "records.jsonl").read_bytes()
    for end in range(len(whole), len(both) + 1):
        (tmp_path / "records.jsonl").write_bytes(both[:end])
        kept = {record.sample_id for record in run.records()}
        finished = end >= len(both) - 1  # without its newline the line is whole all the same
        assert kept == ({"whole", "torn"} if finished else {"whole"}), end
        run.append(simple("next"))
        assert {record.sample_id for record in run.records()} == kept | {"next"}, end


def test_the_resume_set_holds_finished_samples_and_retries_errors(tmp_path) -> None:
    run = RunFolder(tmp_path)
    assert run.finished() == set()
    run.append(simple("good"))
    run.append(SampleRecord(task="t", sample_id="bad", repeat=0, status="error", error="out of memory"))
    assert run.finished() == {("good", 0)}
    run.append(simple("bad"))
    assert run.finished() == {("good", 0), ("bad", 0)}
    assert [(r.sample_id, r.status) for r in run.records()] == [("good", "ok"), ("bad", "ok")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_ids": [5, 6, 7]}, "1 \\+ sum of num_emitted = 4, but 3 output tokens"),
        ({"rounds": [Round(num_accepted=5, num_emitted=3, num_nodes=4, context_length=7)]}, "accepted 5 of 4"),
        # A counter that went backwards (vllm-project/speculators#1096).
        ({"rounds": [Round(num_accepted=-1, num_emitted=3, num_nodes=4, context_length=7)]}, "accepted -1 of 4"),
        ({"rounds": [Round(num_accepted=1, num_emitted=3, num_nodes=4, context_length=7)]}, "emitted 3 of 1"),
        (
            {"rounds": [Round(num_accepted=2, num_emitted=e, num_nodes=4, context_length=7) for e in (1, 2)]},
            "cut, but it is not the last",
        ),
    ],
)
def test_a_broken_identity_is_refused_and_leaves_no_line(tmp_path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RunFolder(tmp_path).append(simple(**change))
    assert not (tmp_path / "records.jsonl").exists()


def test_tokens_after_a_stop_are_not_counted() -> None:
    """vllm-project/vllm#56101: of [a, b, EOS, c, d], all accepted, three reach the output and three are counted."""
    cut = Round(num_accepted=5, num_emitted=3, num_nodes=5, context_length=7)
    simple(output_ids=[9, 1, 2, 0], rounds=[cut]).check()
    with pytest.raises(ValueError, match="output tokens"):
        simple(output_ids=[9, 1, 2, 0, 3, 4], rounds=[cut]).check()


def test_a_line_that_lacks_a_key_is_an_error_not_a_zero(tmp_path) -> None:
    """A format change must not read as 0."""
    values = asdict(simple())
    del values["rounds"][0]["num_accepted"]
    (tmp_path / "records.jsonl").write_text(json.dumps(values) + "\n")
    with pytest.raises(ValueError, match=r"records.jsonl:1 lacks \['num_accepted'\]"):
        RunFolder(tmp_path).records()


@pytest.mark.parametrize(
    ("values", "message"),
    [({"schema": SCHEMA + 1}, "update the harness"), ({"surprise": 1}, "unknown keys"), ({}, "lacks")],
)
def test_a_line_of_another_format_is_an_error(tmp_path, values: dict[str, Any], message: str) -> None:
    line = {**asdict(simple()), **values} if values else values
    (tmp_path / "records.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match=message):
        RunFolder(tmp_path).records()


def test_the_manifest_reads_back_and_a_folder_without_one_is_no_run(tmp_path) -> None:
    run = RunFolder(tmp_path)
    with pytest.raises(ValueError, match="holds no run"):
        run.manifest()
    manifest = RunManifest(id="x", name="n", command=["a"], asked={"run": {"limit": None}})
    run.write_manifest(manifest)
    assert run.manifest() == manifest
    run.write_manifest(replace(manifest, status="finished"))
    assert run.manifest().status == "finished"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(ValueError, match="is not JSON"):
        run.manifest()


def totals_of(accepted: list[int], cut: int, prefills: int) -> Totals:
    """As a server counts rounds that accepted so many drafts of 6 and were cut at the end."""
    return Totals(
        num_output=sum(accepted) + len(accepted) - cut + prefills,
        num_rounds=len(accepted),
        num_accepted=sum(accepted),
        num_nodes=6 * len(accepted),
        histogram=[accepted.count(i) for i in range(max(accepted, default=-1) + 1)],
        num_prefills=prefills,
    )


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 6), max_size=6), st.integers(0, 6), st.integers(1, 3))
def test_totals_of_real_rounds_are_accepted_and_read_back(
    tmp_path_factory: pytest.TempPathFactory, accepted: list[int], cut: int, prefills: int
) -> None:
    totals = totals_of(accepted, min(cut, accepted[-1]) if accepted else 0, prefills)
    run = RunFolder(tmp_path_factory.mktemp("run"))
    with_ids = simple(rounds=[], totals=totals, output_ids=list(range(totals.num_output)))
    without = simple("b", rounds=[], totals=totals, output_ids=[])
    for record in (with_ids, without):
        run.append(record)
    assert run.records() == [with_ids, without]
    assert without.num_output == totals.num_output == with_ids.num_output


GOOD = dict(num_output=7, num_rounds=3, num_accepted=4, num_nodes=18, histogram=[1, 1, 0, 1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(num_output=9), "so -1 were cut"),
        (dict(num_output=4, num_rounds=3, num_accepted=5, histogram=[0, 1, 2]), "so 5 were cut from the last round"),
        (dict(num_rounds=7), "7 rounds emitted 6 tokens"),
        (dict(num_rounds=0), "emitted in no round"),
        (dict(num_rounds=-1), "-1 rounds"),
        (dict(num_accepted=-1), "accepted -1"),
        (dict(num_accepted=19, histogram=None), "accepted 19 of 18"),
        (dict(histogram=[1, 1, 1]), "does not add up to 4"),
        (dict(histogram=[2, 1, 0, 1]), "not one of 3 rounds"),
        (dict(histogram=[4, -1, 0, 0]), "not one of 3 rounds"),
        (dict(num_rounds=None), "but no num_rounds"),
    ],
)
def test_totals_that_break_an_identity_are_refused(tmp_path, change: dict[str, Any], message: str) -> None:
    """sgl-project/sglang#33518: mass, mean and length of a server's counters agree, or the record is none."""
    Totals(**GOOD).check()
    with pytest.raises(ValueError, match=message):
        RunFolder(tmp_path).append(simple(rounds=[], totals=Totals(**{**GOOD, **change}), output_ids=[]))
    assert not (tmp_path / "records.jsonl").exists()


def test_a_record_has_rounds_or_totals_and_as_many_ids_as_the_server_counts(tmp_path) -> None:
    with pytest.raises(ValueError, match="rounds and totals"):
        simple(totals=Totals(num_output=4)).check()
    with pytest.raises(ValueError, match="count 5 output tokens, there are 4"):
        simple(rounds=[], totals=Totals(num_output=5)).check()
    simple(rounds=[], totals=Totals(num_output=4)).check()
