"""The one door to Weights & Biases. What it holds is a copy of the records, and can be rebuilt from them at any time.

Offline a run is a folder, `wandb/offline-run-DATE-ID`, inside the run folder; `wandb sync FOLDER` uploads it later.
The service writes its log in the background, so a kill may cut the copy short, never the records. A restart therefore
logs every earlier record again into a fresh folder and removes the cut ones: one folder holds the whole run.
"""

import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge

from harness.metrics import num_emitted, num_rounds, sample_scalars
from harness.records import RunFolder, RunManifest, SampleRecord
from harness.tracking.redact import redact

STEP = "progress/records"  # own step: W&B's is shifted when a second try of a run is uploaded
COLUMNS = ("sample_id", "repeat", "status", "finish_reason", "prompt_sha256")
TEXT_COLUMNS = ("output_text", "score_detail", "error")  # an exception or a score's detail may quote the output


@dataclass
class WandbTracker:
    """One run = one W&B run with the run's own id, so a second upload lands in the same place.

    `log_text=false` keeps outputs, score details and error texts out of everything W&B stores.
    """

    name: str
    mode: Literal["offline", "online"] = "offline"
    project: str = "ddtree-eval"
    entity: str | None = None
    group: str | None = None
    tags: list[str] = field(default_factory=list)
    log_text: bool = True
    table_rows: Annotated[int, Ge(0)] = 1000  # records in the per-sample table, the first ones

    def __post_init__(self) -> None:
        # State, set here so that it is no field and thus no key of the configuration.
        self._run: Any = None
        self._records: dict[tuple[str, int], SampleRecord] = {}
        self._logged = self._rounds = self._emitted = 0
        self._data_dir: str | None = None
        self._folder = Path()

    def start(self, run: RunFolder, manifest: RunManifest) -> None:
        """Raises ValueError when tracking is online and there is no key or no server."""
        import wandb

        folder = self._folder = run.path.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        if self.mode == "online":
            _require_key(wandb)
        earlier_tries = sorted((folder / "wandb").glob(f"offline-run-*-{manifest.id}"))
        # Tables wait in the data folder until they are uploaded: beside the run, they travel with it.
        self._data_dir = os.environ.get("WANDB_DATA_DIR")
        os.environ["WANDB_DATA_DIR"] = str(folder / "wandb")
        try:
            self._run = wandb.init(
                project=self.project,
                entity=self.entity,
                group=self.group,
                tags=[*self.tags, *_tags(manifest)],
                job_type="cell" if self.group else "run",
                id=manifest.id,
                name=manifest.name,
                dir=str(folder),
                mode=self.mode,
                resume="allow",
                reinit="create_new",
                config=_config(manifest),
                settings=_settings(wandb),
            )
        except wandb.errors.Error as error:
            self._restore_environment()
            raise ValueError(
                f"tracking={self.mode}: Weights & Biases did not start: {error}. "
                "Use tracking=offline or tracking=none to run without it"
            ) from error
        self._run.define_metric(STEP)
        # The last sample's values are no result of the run: its summary has only what the records come to.
        self._run.define_metric("sample/*", step_metric=STEP, summary="none")
        self._run.define_metric("running/*", step_metric=STEP, summary="last")
        for record in run.records():
            self.log(record)
        if earlier_tries:
            shutil.rmtree(folder / "wandb" / "artifacts", ignore_errors=True)  # tables of the tries removed here
        for cut in earlier_tries:
            shutil.rmtree(cut)

    def log(self, record: SampleRecord) -> None:
        self._records[record.key] = record
        self._logged += 1
        self._rounds += num_rounds(record) or 0
        self._emitted += num_emitted(record) if num_rounds(record) else 0
        running = {"running/acceptance_length": self._emitted / self._rounds} if self._rounds else {}
        self._run.log({STEP: self._logged, **sample_scalars(record), **running})

    def finish(self, summary: dict[str, Any], *, exit_code: int = 0) -> None:
        if self._run is None:
            return
        import wandb

        try:
            media: dict[str, Any] = {"samples": self._sample_table(wandb)}
            if histogram := summary.get("acceptance/histogram"):
                edges = np.arange(len(histogram) + 1) - 0.5
                media["acceptance/accepted_drafts"] = wandb.Histogram(np_histogram=(np.array(histogram), edges))
            if positions := summary.get("acceptance/per_position"):
                rows = [[i, share] for i, share in enumerate(positions, start=1)]
                media["acceptance/position_table"] = wandb.Table(columns=["position", "accepted_share"], data=rows)
            if lines := _certificate_lines(self._folder):
                data = [list(line.values()) for line in lines]
                media["certificate/lines"] = wandb.Table(columns=[*lines[0]], data=data)
            self._run.log({STEP: self._logged, **media})
            self._run.summary.update(redact(summary))
        finally:
            self._run.finish(exit_code=exit_code)
            self._restore_environment()

    def location(self) -> str | None:
        return None if self._run is None else str(Path(self._run.dir).parent)

    def _sample_table(self, wandb: Any) -> Any:
        rows = [self._row(record) for record in list(self._records.values())[: self.table_rows]]
        columns = list(dict.fromkeys(name for row in rows for name in row)) or list(COLUMNS)
        return wandb.Table(columns=columns, data=[[row.get(name) for name in columns] for row in rows])

    def _row(self, record: SampleRecord) -> dict[str, Any]:
        values = asdict(record)
        row = {name: values[name] for name in COLUMNS} | sample_scalars(record)
        if self.log_text:
            row |= {name: str(values[name]) if values[name] else None for name in TEXT_COLUMNS}
        return row

    def _restore_environment(self) -> None:
        if self._data_dir is None:
            os.environ.pop("WANDB_DATA_DIR", None)
        else:
            os.environ["WANDB_DATA_DIR"] = self._data_dir


def _require_key(wandb: Any) -> None:
    try:
        found = wandb.login(prompt=False, verify=False)
    except (wandb.errors.Error, ValueError) as error:
        raise ValueError(f"tracking=online: the Weights & Biases key is not usable: {error}") from error
    if not found:
        raise ValueError(
            "tracking=online needs a Weights & Biases key and none is set: run `wandb login` or set WANDB_API_KEY, "
            "or use tracking=offline and upload later with `wandb sync`"
        )


def _certificate_lines(folder: Path) -> list[dict[str, Any]]:
    """The lines of the exactness certificate that was taken in this run folder, if any."""
    path = folder / "certificate.json"
    return json.loads(path.read_text())["lines"] if path.is_file() else []


def _tags(manifest: RunManifest) -> list[str]:
    """What people filter by: `mode:ddtree`, `task:humaneval`, ... W&B takes tags of at most 64 characters."""
    words = {"speculative": "mode"}
    groups = ("speculative", "model", "task", "sampling", "hardware", "engine")
    named = ((group, (manifest.asked.get(group) or {}).get("name")) for group in groups)
    return [f"{words.get(group, group)}:{name}"[:64] for group, name in named if name]


def _config(manifest: RunManifest) -> dict[str, Any]:
    """What was asked, group by group, and beside it what it came to."""
    return redact(
        {
            **manifest.asked,
            "resolved": manifest.resolved,
            "versions": manifest.versions,
            "hardware_seen": manifest.hardware_seen,
        }
    )


def _settings(wandb: Any) -> Any:
    """Quiet; and nothing of the host goes along unasked, nor runs beside the timed decoding: run.json has the facts."""
    return wandb.Settings(
        silent=True,
        console="off",
        x_transaction_log_flush_interval=1.0,  # seconds of the copy that a kill may cost; the default is 15
        x_disable_stats=True,
        x_disable_meta=True,
        x_disable_machine_info=True,
        x_save_requirements=False,
        disable_code=True,
        disable_git=True,
    )
