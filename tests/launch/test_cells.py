"""From words and presets to cells: what they are, what is refused, and that text survives Hydra's grammar."""

import functools
from collections import Counter

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.compose import CONF, ConfigError, compose, compose_launcher, expand, preset_sweep
from harness.launch.cells import plan_cells, word
from harness.runs import run_id

SWEEPS = [p.stem for p in sorted((CONF / "experiment").glob("*.yaml")) if "sweep:" in p.read_text()]
PROMISED = {
    "paper_table": 2 * 10 * 2 * 3,
    "budget_sweep": 7,
    "temperature_ladder": 6 * 3,
    "hardware_compare": 5 * 2 * 3,
}


@functools.cache
def of_preset(preset: str):
    return plan_cells([f"experiment={preset}"])


def modes(planned) -> Counter:
    return Counter(config.speculative.name for config in planned.configs.values())


def test_the_promised_presets_are_there():
    assert set(SWEEPS) == set(PROMISED)


@pytest.mark.parametrize("preset", SWEEPS)
def test_every_cell_of_every_preset_is_a_run_of_its_own(preset):
    planned = of_preset(preset)
    assert len(planned.cells) == len({cell.id for cell in planned.cells}) == PROMISED[preset]
    assert len({cell.label for cell in planned.cells}) == PROMISED[preset]
    assert planned.repeated == 0
    budgets = {
        c.speculative.params.get("tree_budget") for c in planned.configs.values() if c.speculative.name != "ddtree"
    }
    assert budgets == {None}
    first = planned.cells[0]
    composed = compose(first.overrides)
    assert run_id(composed.asked) == first.id
    assert "sweep" not in composed.asked
    assert composed.tracking.params["group"] == planned.name
    with pytest.raises(ConfigError, match=f"make sweep experiment={preset}"):
        compose([f"experiment={preset}"])


def test_a_cell_is_the_same_run_as_the_same_words_alone():
    """So `make eval` and every sweep that holds the cell share one folder."""
    planned = of_preset("budget_sweep")
    alone = run_id(compose(["speculative=ddtree", "speculative.tree_budget=64"]).asked)
    assert alone in planned.configs
    ladder = plan_cells(["experiment=temperature_ladder", "speculative=ddtree"])
    assert run_id(compose(["sampling=t06"]).asked) in ladder.configs
    assert [c.sampling.temperature for c in ladder.configs.values()] == [0.0, 0.3, 0.6, 0.8, 1.0, 1.3]


def test_the_command_lines_axes_multiply_and_replace():
    planned = plan_cells(["sampling=t06,t10", "speculative=dflash,ddtree"])
    assert [cell.label for cell in planned.cells] == [
        f"sampling={s} speculative={m}" for s in ("t06", "t10") for m in ("dflash", "ddtree")
    ]
    more = plan_cells(["experiment=temperature_ladder", "speculative=ddtree", "sampling.seed=1,2"])
    assert len(more.cells) == 2 * 6
    table = plan_cells(["experiment=paper_table", "model=smollm2_135m", "task=humaneval", "sampling=t06"])
    assert modes(table) == {"autoregressive": 1, "dflash": 1, "ddtree": 1}
    assert {config.model.name for config in table.configs.values()} == {"smollm2_135m"}


def test_the_name_is_the_same_for_the_same_cells_only():
    base = plan_cells(["sampling=t06,t10"]).name
    assert plan_cells(["sampling=t10,t06", "run.limit=3"]).name == base
    assert plan_cells(["sampling=t06,greedy"]).name != base
    assert plan_cells(["sampling=t06,t10", "sweep.name=mine"]).name == "mine"


def test_a_group_that_was_asked_for_stays_and_no_tracker_needs_none():
    planned = plan_cells(["sampling=t06,t10", "tracking.group=ours"])
    assert [cell.overrides.count("tracking.group=ours") for cell in planned.cells] == [1, 1]
    assert not [w for cell in planned.cells for w in cell.overrides if w.startswith(f"tracking.group={planned.name}")]
    planned = plan_cells(["sampling=t06,t10", "tracking=none"])
    assert not [w for cell in planned.cells for w in cell.overrides if w.startswith("tracking.group")]


def test_the_same_cell_twice_runs_once():
    planned = plan_cells(["sampling=t06,t06,t10"])
    assert (len(planned.cells), planned.repeated) == (2, 1)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["sampling=t06,t1", "speculative=dflash,ddtree"], ["sampling=t1", "Did you mean t10", "=t1 speculative=dflash"]),
        (["speculative=dflash,ddtree", "speculative.tree_budget=8"], ["tree_budget: no such", "cell speculative=dflash"]),
        (["sampling.top_p=0.5,7", "sampling.seed=-1,1"], ["top_p=7", "seed=-1", "cell sampling.top_p=0.5 sampling.seed=-1"]),
        (["experiment=budget_sweep", "run.limt=2"], ["run.limt", "Did you mean limit", "(in every cell)"]),
        (["experiment=budget_sweep", "speculative.tree_budget=8"], ["what the cells of experiment=budget_sweep set"]),
        (["experiment=budget_sweep,smoke"], ["one preset"]),
        (["experiment=nope"], ["experiment=nope", "budget_sweep"]),
        (["run.limit=2,3"], ["one run in two cells", "run.limit=2", "run.limit=3"]),
        (["tracking=none,offline"], ["one run in two cells"]),
        (["sampling=t06,t10", "run.output_dir=a,b"], ["one run in two cells"]),
        (["sampling=glob(*)"], ["sampling=glob(*)", "sampling=A,B"]),
        (["sampling=t06,t10", "sweep.name=../x"], ["sweep.name=../x"]),
        (["task=jsonl,humaneval"], ["task.path", "cell task=jsonl"]),
    ],
)  # fmt: skip
def test_bad_cells_are_all_named_before_anything_starts(words, parts):
    with pytest.raises(ConfigError) as error:
        plan_cells(words)
    for part in parts:
        assert part in str(error.value)


def test_good_cells_are_not_named_among_the_bad():
    with pytest.raises(ConfigError) as error:
        plan_cells(["sampling=t06,t1", "speculative=ddtree"])
    assert "t06" not in str(error.value).replace("Allowed: checkpoint, greedy, t06, t10", "")


def test_launchers_are_checked_like_everything_else():
    assert compose_launcher([]).jobs == 1
    assert compose_launcher(["hydra.launcher.jobs=3"]).jobs == 3
    slurm = compose_launcher(["hydra/launcher=slurm", "hydra.launcher.profiles={h200: {gpus: 'h200:2'}}"])
    assert slurm.profiles["h200"].gpus == "h200:2"
    for words, parts in [
        (["hydra/launcher=slrm"], ["Did you mean slurm", "local"]),
        (["hydra.launcher.job=3"], ["hydra.launcher.job: no such key", "Did you mean jobs"]),
        (["hydra.launcher.jobs=0"], ["hydra.launcher.jobs=0", "greater than or equal to 1"]),
        (["hydra/launcher=slurm", "hydra.launcher.time_min=x"], ["hydra.launcher.time_min=x", "integer"]),
        (["hydra/launcher=slurm", "hydra.launcher.profiles={h200: {gpu: 1}}"], ["hydra.launcher.profiles"]),
    ]:
        with pytest.raises(ConfigError) as error:
            compose_launcher(words)
        for part in parts:
            assert part in str(error.value)


def test_expand_is_the_product_in_order():
    assert [" ".join(words) for words in expand(["a=1,2", "b=x", "c=range(0,2)"])] == [
        "a=1 b=x c=0",
        "a=1 b=x c=1",
        "a=2 b=x c=0",
        "a=2 b=x c=1",
    ]
    assert expand(["a=[1,2]"]) == [["a=[1,2]"]]
    assert preset_sweep(["experiment=smoke"]) == {}


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(st.characters(blacklist_categories=["Cc", "Cs"]), max_size=20).filter(lambda text: "${" not in text),
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
@example("\\0")  # a backslash before what needs no escape
@example("\\'")
@example("end\\")
@example("NaN")
@example("inf")
def test_a_value_of_a_preset_reaches_the_configuration_unchanged(value):
    """Read back by Hydra's own parser: same value and type, and never a sweep."""
    [override] = OverridesParser.create().parse_overrides([word("task.path", value)])
    assert not override.is_sweep_override()
    read = override.value()
    assert type(read) is type(value)
    assert read == value
