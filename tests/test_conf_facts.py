"""Every file of conf/model, conf/hardware and conf/sampling fits its type and says what documents promise."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import TypeAdapter

from harness.config import HardwareConfig, ModelConfig, SamplingConfig, Sources

ROOT = Path(__file__).parents[1]
TYPES = {"model": ModelConfig, "hardware": HardwareConfig, "sampling": SamplingConfig}
FILES = sorted(file for group in TYPES for file in (ROOT / "conf" / group).glob("*.yaml"))
NAMES = {group: {file.stem for file in FILES if file.parent.name == group} for group in TYPES}


def load(file: Path) -> dict[str, Any]:
    return yaml.safe_load(file.read_text(encoding="utf-8"))


def checked(group: str, name: str) -> Any:
    return TypeAdapter(TYPES[group]).validate_python(load(ROOT / "conf" / group / f"{name}.yaml"))


def each(group: str) -> Any:
    return pytest.mark.parametrize("name", sorted(NAMES[group]))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_file_has_its_types_and_every_key(file: Path) -> None:
    """Every key is present, so that each can be overridden without a `+`."""
    values = load(file)
    cls = TYPES[file.parent.name]
    TypeAdapter(cls).validate_python(values)
    assert next(iter(values)) == "name"
    assert values["name"] == file.stem
    assert values.keys() == {field.name for field in fields(cls)}


def test_promised_names() -> None:
    assert NAMES["sampling"] == {"greedy", "t06", "t10", "checkpoint"}
    assert NAMES["hardware"] == {"cpu", "h100", "h200", "b200", "b300_sxm6", "rtx_pro_6000"}
    wanted = {"smollm2_135m", "qwen3_4b", "qwen3_8b", "qwen3_coder_30b_a3b", "llama31_8b"}
    wanted |= {"gpt_oss_20b", "gpt_oss_120b", "kimi_k26", "qwen35_9b", "qwen36_27b"}
    assert wanted <= NAMES["model"]


@each("model")
def test_model_sources_and_pins(name: str) -> None:
    """A target and a drafter, the chosen source offered, and each revision main or a whole commit."""
    model = checked("model", name)
    for source in (model.target, model.drafter):
        assert isinstance(source, Sources)
        assert source.path or getattr(source, model.source)
        if source.hub:
            assert source.hub.file is None
            assert re.fullmatch(r"main|[0-9a-f]{40}", source.hub.revision)
        if source.package:
            assert re.fullmatch(r"[0-9a-f]{64}", source.package.sha256)
    assert model.target.hub  # every model states its hub id


@each("hardware")
def test_hardware_peaks_have_sources(name: str) -> None:
    hardware = checked("hardware", name)
    peaks = (hardware.memory_gb, hardware.bandwidth_gb_s, hardware.bf16_tflops)
    if hardware.device == "cpu":
        assert peaks == (None, None, None)
        assert hardware.device_name is None
    else:
        assert None not in peaks
        assert any("nvidia.com" in line for line in hardware.references)


# As torch.cuda.get_device_name() gives them; the two superchips are other products and fit no profile.
DEVICE_NAMES = {
    "NVIDIA H100 80GB HBM3": "h100",
    "NVIDIA H200": "h200",
    "NVIDIA B200": "b200",
    "NVIDIA B300 SXM6 AC": "b300_sxm6",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000",
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx_pro_6000",
    "NVIDIA GH200 480GB": None,
    "NVIDIA GB200": None,
    "NVIDIA GB300": None,
    "NVIDIA RTX 6000 Ada Generation": None,
}


@pytest.mark.parametrize(("device_name", "expected"), DEVICE_NAMES.items())
def test_a_device_fits_its_own_profile_only(device_name: str, expected: str | None) -> None:
    profiles = [checked("hardware", name) for name in sorted(NAMES["hardware"] - {"cpu"})]
    assert [profile.name for profile in profiles if profile.device_name in device_name] == [expected] * bool(expected)


def test_sampling_values() -> None:
    assert [checked("sampling", name).temperature for name in ("greedy", "t06", "t10")] == [0.0, 0.6, 1.0]
    for name in ("greedy", "t06", "t10"):
        sampling = checked("sampling", name)
        assert (sampling.top_k, sampling.top_p, sampling.min_p) == (0, 1.0, 0.0)
    checkpoint = checked("sampling", "checkpoint")
    filters = (checkpoint.temperature, checkpoint.top_k, checkpoint.top_p, checkpoint.min_p)
    assert filters == ("checkpoint",) * 4


@pytest.mark.parametrize("page", ["models", "hardware"])
def test_documents_list_every_file(page: str) -> None:
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for name in NAMES[page.removesuffix("s") if page == "models" else page]:
        assert f"`{name}`" in text
