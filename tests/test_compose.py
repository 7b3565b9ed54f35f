"""Every file in conf/ composes and is accepted by its class; every mistake is refused with its key and what is allowed."""

from pathlib import Path

import pytest

from harness.compose import CONF, ConfigError, compose
from harness.runs import run_id

GROUPS = ("model", "hardware", "engine", "speculative", "sampling", "task", "tracking", "experiment")
CHOICES = [(group, path.stem) for group in GROUPS for path in sorted((CONF / group).glob("*.yaml"))]
NEEDS = {
    ("task", "jsonl"): ["task.path=prompts.jsonl"],
    ("engine", "openai"): ["engine.base_url=http://127.0.0.1:30000/v1"],
    ("speculative", "eagle3"): ["speculative.drafter=some/folder"],
}
# A preset of several cells is no run; what its cells share is. tests/launch/test_cells.py composes the cells.
NEEDS |= {
    ("experiment", path.stem): ["~sweep"]
    for path in (CONF / "experiment").glob("*.yaml")
    if "\nsweep:" in path.read_text()
}


@pytest.mark.parametrize(("group", "choice"), CHOICES)
def test_every_choice_composes(group, choice):
    config = compose([f"{group}={choice}", *NEEDS.get((group, choice), [])])
    if group != "experiment":
        assert getattr(config, group).name == choice


def test_the_defaults_are_the_documented_ones():
    config = compose([])
    chosen = {group: getattr(config, group).name for group in GROUPS if group != "experiment"}
    assert chosen == dict(
        model="smollm2_135m",
        hardware="cpu",
        engine="hf",
        speculative="ddtree",
        sampling="t06",
        task="humaneval",
        tracking="offline",
    )
    assert (config.run.limit, config.sampling.max_new_tokens, config.sampling.seed) == (8, 128, 0)


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("speculative.tree_budget=-1", ["speculative.tree_budget=-1", "greater than or equal to 1"]),
        ("speculative.tree_budget=1.5", ["speculative.tree_budget=1.5", "integer"]),
        ("speculative.tree_budget='16'", ["speculative.tree_budget=16", "integer"]),
        ("speculative.tree_bugdet=16", ["speculative.tree_bugdet", "Did you mean tree_budget"]),
        ("speculative.verifier=wlak", ["speculative.verifier=wlak", "kernel", "walk", "coupled"]),
        ("sampling.temperature=nan", ["sampling.temperature=nan", "checkpoint"]),
        ("sampling.temperature=-0.1", ["sampling.temperature=-0.1", "greater than or equal to 0"]),
        ("sampling.temperature=inf", ["sampling.temperature=inf", "less than or equal to 100"]),
        ("sampling.top_p=0", ["sampling.top_p=0", "greater than 0"]),
        ("sampling.top_p=1.5", ["sampling.top_p=1.5", "less than or equal to 1"]),
        ("sampling.min_p=2", ["sampling.min_p=2"]),
        ("sampling.seed=-1", ["sampling.seed=-1"]),
        ("sampling.max_new_tokens=0", ["sampling.max_new_tokens=0"]),
        ("run.limit=0", ["run.limit=0"]),
        ("run.limt=3", ["run.limt", "Did you mean limit"]),
        ("model=nope", ["model=nope", "smollm2_135m", "qwen3_8b"]),
        ("model=qwen3_8", ["Did you mean qwen3_8b"]),
        ("hardware=h2000", ["hardware=h2000", "Did you mean h200"]),
        ("engine.dtype=fp32", ["engine.dtype=fp32", "float32"]),
        ("engine.batch_size=0", ["engine.batch_size=0"]),
        ("engine=openai", ["engine.base_url", "engine.base_url=..."]),
        ("speculative=eagle3", ["speculative.drafter", "speculative.drafter=..."]),
        ("samplng=t06", ["samplng", "Did you mean sampling"]),
        ("model.target.hub=null", None),
        ("sampling=t06,t10", ["sampling=t06,t10", "-m"]),
        ("sampling.seed=1,2", ["sampling.seed=1,2", "-m"]),
        ("task=jsonl", ["task.path", "task.path=..."]),
        ("model.source=internet", ["model.source=internet", "package", "hub"]),
        ("+model.extra=1", ["model.extra", "no such key"]),
        ("~sampling.temperature", ["sampling.temperature", "missing"]),
        ("tracking._target_=harness.nothing.Here", ["tracking._target_", "cannot be imported"]),
        ("a b=c", ["a b=c"]),
    ],
)
def test_mistakes_are_refused_with_key_and_choices(override, parts):
    if parts is None:
        compose([override])
        return
    with pytest.raises(ConfigError) as error:
        compose([override])
    for part in parts:
        assert part in str(error.value)


def test_two_mistakes_are_both_named():
    with pytest.raises(ConfigError) as error:
        compose(["sampling.top_p=7", "sampling.seed=-3"])
    assert "sampling.top_p=7" in str(error.value)
    assert "sampling.seed=-3" in str(error.value)


def test_local_models_need_no_file():
    config = compose(["model.target=some/folder", "model.drafter=other"])
    assert (config.model.target, config.model.drafter) == ("some/folder", "other")


def test_run_id_ignores_where_results_go_and_sees_what_decides_them():
    base = run_id(compose([]).asked)
    same = ["run.limit=3", "tracking=none", "run.output_dir=elsewhere", "tracking.project=x"]
    assert all(run_id(compose([override]).asked) == base for override in same if "project" not in override)
    served = run_id(compose(["engine=sglang"]).asked)
    assert run_id(compose(["engine=sglang", "engine.python=other", "engine.timeout_s=5"]).asked) == served != base
    other = [
        "sampling.seed=1",
        "speculative.tree_budget=8",
        "sampling=t10",
        "run.subset_seed=1",
        "engine.dtype=float32",
    ]
    assert len({base, *(run_id(compose([override]).asked) for override in other)}) == 1 + len(other)


def test_an_experiment_only_overrides():
    config = compose(["experiment=smoke"])
    assert config.run.limit == 2
    assert compose(["experiment=smoke", "run.limit=5"]).run.limit == 5


def test_no_yaml_holds_an_interpolation():
    assert not [path for path in Path(CONF).rglob("*.yaml") if "${" in path.read_text()]
