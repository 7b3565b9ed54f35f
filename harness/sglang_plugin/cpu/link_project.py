"""Make this project importable in another environment, with its SGLang entry point and without its dependencies.

link_project.py PROJECT SITE_PACKAGES
"""

import sys
import tomllib
from pathlib import Path

GROUP = "sglang.srt.plugins"


def link(project: Path, site: Path) -> None:
    """Write a .pth file and a dist-info folder, as an editable install does."""
    facts = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    name, version = facts["name"], facts["version"]
    stem = name.replace("-", "_")
    (site / f"{stem}.pth").write_text(f"{project}\n")
    info = site / f"{stem}-{version}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    points = facts["entry-points"][GROUP]
    lines = [f"[{GROUP}]", *(f"{key} = {value}" for key, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    link(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
