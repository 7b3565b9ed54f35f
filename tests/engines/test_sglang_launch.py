"""The words that start SGLang, for every profile of conf/hardware and every mode; and what is refused before it starts."""

import os
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter

from harness.compose import CONF, compose
from harness.config import HardwareConfig
from harness.engines import sglang_launch
from harness.engines.base import Sampling, Setup
from harness.engines.sglang import SGLangEngine
from harness.records import RunManifest
from harness.report.agreement import differences
from harness.speculative.autoregressive import Autoregressive
from harness.speculative.ddtree import DDTree
from harness.speculative.dflash import DFlash
from harness.speculative.eagle3 import Eagle3
from harness.speculative.ngram import Ngram

PROFILES = sorted(path.stem for path in (CONF / "hardware").glob("*.yaml"))
MODES = [Autoregressive(), DFlash(), DDTree(tree_budget=63), Eagle3(drafter="eagle"), Ngram()]


def hardware(name: str, **values) -> HardwareConfig:
    loaded = yaml.safe_load((CONF / "hardware" / f"{name}.yaml").read_text())
    return TypeAdapter(HardwareConfig).validate_python(loaded | values)


def setup(mode=None, profile="cpu", drafter=None, sampling=None, **values) -> Setup:
    asked = dict(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0, max_new_tokens=32) | (sampling or {})
    return Setup(
        target=Path("target"),
        drafter=drafter,
        mode=mode or Autoregressive(),
        hardware=hardware(profile, **values),
        sampling=Sampling(**asked),
        stop_ids=[1],
        seed=5,
    )


def words(engine: SGLangEngine, given: Setup) -> tuple[dict[str, str], dict[str, str]]:
    """Options with their values ("" for a switch), and the variables."""
    sglang_launch.refuse(engine, given)
    made = sglang_launch.launch(engine, given, "python")
    assert made.command[:3] == ["python", "-m", "sglang.launch_server"]
    options: dict[str, str] = {}
    for word in made.command[3:]:
        if word.startswith("--"):
            name = word.removeprefix("--")
            assert name not in options or name in ("dtype",), f"{word} twice"
            options[name] = ""
        else:
            options[name] = word
    return options, made.environment


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: type(mode).__name__)
def test_every_profile_and_mode(profile, mode):
    given = setup(mode, profile, sampling=dict(temperature=0.0), count=8 if profile != "cpu" else 1)
    if profile == "cpu" and isinstance(mode, DFlash):
        with pytest.raises(ValueError, match="CUDA only"):
            words(SGLangEngine(), given)
        return
    options, environment = words(SGLangEngine(concurrency=16), given)
    assert options["tp-size"] == ("1" if profile == "cpu" else "8")
    assert options["max-running-requests"] == "16"
    assert options["random-seed"] == "5"
    assert options["page-size"] == "1"
    assert "incremental-streaming-output" in options  # without it each event repeats the whole output
    assert "trust-remote-code" not in options
    algorithm = {Autoregressive: None, DFlash: "DFLASH", DDTree: "DDTREE", Eagle3: "EAGLE3", Ngram: "NGRAM"}[type(mode)]
    assert options.get("speculative-algorithm") == algorithm
    if profile == "cpu":
        assert (options["device"], options["dtype"], options["attention-backend"]) == ("cpu", "float32", "torch_native")
        assert "disable-overlap-schedule" in options
        assert environment["SGLANG_USE_CPU_ENGINE"] == "1"
    else:
        assert (options["dtype"], options["attention-backend"]) == ("auto", "triton")
        assert options["cuda-graph-max-bs-decode"] == "16"
        assert "disable-overlap-schedule" not in options
        assert "SGLANG_USE_CPU_ENGINE" not in environment
        pcie = given.hardware.interconnect == "pcie"
        assert ("disable-custom-all-reduce" in options) == pcie
        assert (environment.get("NCCL_NVLS_ENABLE") == "0") == pcie


def test_the_same_scheduler_and_attention_for_all_modes_of_a_machine():
    """sgl-project/sglang#29907: a baseline with overlap scheduling against a tree without is no comparison."""
    keys = ("attention-backend", "page-size", "max-running-requests", "cuda-graph-max-bs-decode", "stream-interval")
    seen = set()
    for mode in MODES:
        options, _ = words(SGLangEngine(), setup(mode, "h200", sampling=dict(temperature=0.0)))
        seen.add((*(options[key] for key in keys), "disable-overlap-schedule" in options))
    assert len(seen) == 1


def test_runs_of_all_modes_may_be_compared():
    """What differs between them is the mode; a longest silence or another interpreter makes no other run."""

    def manifest(mode) -> RunManifest:
        engine = SGLangEngine(python=type(mode).__name__, timeout_s=1 + mode.num_nodes(4))
        made = sglang_launch.launch(engine, setup(mode, "h200", sampling=dict(temperature=0.0)), "python")
        asked = {"engine": asdict(engine), "speculative": asdict(mode)}
        return RunManifest(id="x", name="x", command=[], asked=asked, resolved={"engine": made.resolved})

    first, *others = [manifest(mode) for mode in MODES]
    assert [str(d) for other in others for d in differences(first, other)] == []
    slower = sglang_launch.launch(SGLangEngine(overlap_schedule=False), setup(MODES[0], "h200"), "python")
    assert differences(first, replace(first, resolved={"engine": slower.resolved}))


def test_ddtree_gets_its_budget_verifier_and_spine():
    options, environment = words(SGLangEngine(), setup(DDTree(tree_budget=40, verifier="coupled", spine=True), "h200"))
    assert options["speculative-num-draft-tokens"] == "41"
    assert (environment["DDTREE_VERIFIER"], environment["DDTREE_SPINE"]) == ("coupled", "1")


def test_keys_of_the_engine_become_words_and_the_users_own_win():
    engine = SGLangEngine(
        memory_fraction=0.8,
        context_length=4096,
        max_total_tokens=9999,
        cuda_graphs=False,
        overlap_schedule=False,
        radix_cache=False,
        trust_remote_code=True,
        attention="flashinfer",
        dtype="bfloat16",
        arguments=["--ep-size", "8"],
        environment={"NCCL_P2P_LEVEL": "PIX", "NCCL_DEBUG": "INFO"},
    )
    options, environment = words(engine, setup(Autoregressive(), "rtx_pro_6000", count=8))
    for name, value in {
        "mem-fraction-static": "0.8", "context-length": "4096", "max-total-tokens": "9999", "disable-cuda-graph": "",
        "disable-overlap-schedule": "", "disable-radix-cache": "", "trust-remote-code": "",
        "attention-backend": "flashinfer", "dtype": "bfloat16", "ep-size": "8",
    }.items():  # fmt: skip
        assert options[name] == value, name
    assert (environment["NCCL_P2P_LEVEL"], environment["NCCL_DEBUG"]) == ("PIX", "INFO")


def test_top_k_and_top_p_one_after_the_other_without_speculation():
    both = dict(top_k=20, top_p=0.95)
    plain = setup(Autoregressive(), "h200", sampling=both)
    made = sglang_launch.launch(SGLangEngine(), plain, "python")
    assert sglang_launch.min_p_to_send(plain) == sglang_launch.NO_MIN_P
    assert made.command[made.command.index("--sampling-backend") + 1] == "flashinfer"
    for sampling in (dict(top_k=20), dict(top_p=0.9), both | dict(min_p=0.1)):
        given = setup(Autoregressive(), "h200", sampling=sampling)
        assert sglang_launch.min_p_to_send(given) == sampling.get("min_p", 0.0)
        assert "--sampling-backend" not in sglang_launch.launch(SGLangEngine(), given, "python").command
    assert sglang_launch.min_p_to_send(setup(DDTree(), "h200", sampling=both)) == 0.0


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        (dict(mode=Autoregressive(verifier="coupled")), ["speculative.verifier=coupled", "Allowed: kernel"]),
        (dict(mode=DFlash(verifier="walk"), profile="h200"), ["speculative.verifier=walk", "ddtree"]),
        (dict(mode=DFlash()), ["speculative=dflash", "CUDA only"]),
        (dict(mode=Ngram()), ["sampling.temperature=1", "greedily", "Allowed on hardware=cpu: 0"]),
        (dict(mode=Eagle3(drafter="e")), ["sampling.temperature=1", "greedily"]),
        (
            dict(mode=DFlash(), profile="h200", sampling=dict(min_p=0.1)),
            ["sampling.min_p=0.1", "ignores", "Allowed: 0"],
        ),
        (dict(sampling=dict(top_k=5, top_p=0.5)), ["sampling.top_p=0.5", "sampling.top_k=5"]),
        (dict(profile="h200", count=2, interconnect="none"), ["hardware.interconnect=none", "pcie, nvlink"]),
    ],
)
def test_what_sglang_would_take_and_not_honour_is_refused(given, parts):
    with pytest.raises(ValueError, match=r"Allowed|engine=hf") as error:
        sglang_launch.refuse(SGLangEngine(), setup(**given))
    for part in parts:
        assert part in str(error.value)


def test_half_precision_on_a_cpu_is_refused():
    with pytest.raises(ValueError, match=r"engine.dtype=bfloat16.*Allowed: auto, float32"):
        sglang_launch.refuse(SGLangEngine(dtype="bfloat16"), setup())


def test_a_budget_below_the_drafters_block_is_refused(tiny_pair):
    small, enough = (setup(DDTree(tree_budget=budget), drafter=tiny_pair["drafter"]) for budget in (3, 4))
    with pytest.raises(ValueError, match=r"speculative.tree_budget=3: .* at least 4"):
        sglang_launch.refuse(SGLangEngine(), small)
    sglang_launch.refuse(SGLangEngine(), enough)


def test_dtype_auto_is_what_the_checkpoint_says_on_a_gpu(tmp_path):
    for text, expected in (
        ('{"torch_dtype": "bfloat16"}', "bfloat16"),
        ('{"text_config": {"dtype": "float16"}}', "float16"),
        ("{}", "auto"),
    ):
        (tmp_path / "config.json").write_text(text)
        assert sglang_launch.resolved_dtype(SGLangEngine(), replace(setup(profile="h200"), target=tmp_path)) == expected
    assert sglang_launch.resolved_dtype(SGLangEngine(), setup()) == "float32"


def test_where_the_interpreter_is_found(monkeypatch, tmp_path):
    monkeypatch.delenv(sglang_launch.PYTHON_VARIABLE, raising=False)
    monkeypatch.setattr(sglang_launch, "INSTALLED", tmp_path / "none")
    monkeypatch.setattr(sglang_launch, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"engine.python: .*make install-sglang"):
        sglang_launch.interpreter(None)
    with pytest.raises(ValueError, match=r"engine.python=nowhere: no such file"):
        sglang_launch.interpreter("nowhere")
    link = tmp_path / "python"
    link.symlink_to(sys.executable)
    assert sglang_launch.interpreter(str(link)) == str(link)  # the link, not what it points to
    monkeypatch.setenv(sglang_launch.PYTHON_VARIABLE, str(link))
    assert sglang_launch.interpreter(None) == str(link)


def test_an_environment_that_cannot_serve_is_refused(tmp_path):
    with pytest.raises(ValueError, match="SGLang is not installed there"):
        sglang_launch.versions(fake_environment(tmp_path / "a", {"torch": "1"}))
    with pytest.raises(ValueError, match="overwrite each other"):
        sglang_launch.versions(
            fake_environment(tmp_path / "b", {"sglang": "1", "sgl-kernel": "1", "sglang-kernel": "1"})
        )
    found = sglang_launch.versions(fake_environment(tmp_path / "c", {"sglang": "9.9", "torch": "8"}))
    assert (found["sglang"], found["torch"]) == ("9.9", "8")


def fake_environment(folder: Path, packages: dict[str, str]) -> str:
    """An interpreter that sees these packages and no others."""
    for name, version in packages.items():
        info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder} exec {sys.executable} -S "$@"\n')
    os.chmod(python, 0o755)
    return str(python)


@pytest.mark.parametrize("mode", ["eagle3", "ngram"])
def test_modes_of_a_server_are_refused_elsewhere(mode, harness):
    done = harness(f"speculative={mode}", "speculative.drafter=x" if mode == "eagle3" else "run.limit=1", check=False)
    assert done.returncode == 2
    assert f"speculative={mode}: engine=hf does not have this mode" in done.stderr
    assert "engine=sglang" in done.stderr


def test_keys_of_the_configuration_are_those_of_the_class():
    config = compose(["engine=sglang", "engine.concurrency=4", "+engine.environment.NCCL_DEBUG=INFO",
                      "engine.arguments=['--ep-size','8']"])  # fmt: skip
    assert config.engine.params["environment"] == {"NCCL_DEBUG": "INFO"}
    assert config.engine.params["arguments"] == ["--ep-size", "8"]


@pytest.mark.parametrize("trusted", [False, True])
def test_a_checkpoints_code_is_fetched_only_for_a_server_that_may_run_it(trusted, monkeypatch):
    import huggingface_hub

    from harness.plan import fetch_sources

    asked = {}

    def snapshot_download(repo, allow_patterns, ignore_patterns, **options):
        asked[repo] = allow_patterns, ignore_patterns
        raise ValueError("stop here")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr("harness.hub._hub_answers", lambda: True)
    config = compose(["engine=sglang", "model=kimi_k26", f"engine.trust_remote_code={str(trusted).lower()}",
                      "speculative=autoregressive", "task=jsonl", f"task.path={__file__}"])  # fmt: skip
    with pytest.raises(ValueError, match="stop here"):
        fetch_sources(config, Autoregressive(), SGLangEngine(trust_remote_code=trusted))
    wanted, unwanted = asked["moonshotai/Kimi-K2.6"]
    assert ("*.py" in wanted) == trusted
    assert ("*.py" in unwanted) != trusted
    assert ("*.model" in wanted) == trusted  # its tokenizer's vocabulary
