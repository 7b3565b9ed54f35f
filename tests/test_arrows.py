"""The import directions of docs/architecture.md, read from the source."""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted([*ROOT.glob("harness/**/*.py"), *ROOT.glob("tasks/**/*.py")])


def imports(path: Path) -> set[str]:
    """Every imported module, also inside functions, as a dotted name."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module in ("harness", "tasks")}
    return found


def of(folder: str) -> list[Path]:
    return [path for path in FILES if path.relative_to(ROOT).as_posix().startswith(folder)]


def roots(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def outside(names: set[str]) -> set[str]:
    """Third-party packages among them."""
    return roots(names) - set(sys.stdlib_module_names) - {"harness", "tasks"}


@pytest.mark.parametrize("path", of("tasks/"), ids=str)
def test_tasks_know_nothing_of_the_harness(path):
    assert "harness" not in roots(imports(path))


@pytest.mark.parametrize("path", of("harness/decoding/"), ids=str)
def test_decoding_imports_torch_alone(path):
    names = imports(path)
    assert outside(names) <= {"torch", "sgl_kernel", "sglang"}
    assert all(name.startswith("harness.decoding") for name in names if name.startswith("harness"))


@pytest.mark.parametrize("path", of("harness/kernels/"), ids=str)
def test_kernels_know_the_core_they_replace_alone(path):
    names = imports(path)
    assert outside(names) <= {"torch", "triton"}
    assert all(name.startswith(("harness.decoding", "harness.kernels")) for name in names if name.startswith("harness"))


@pytest.mark.parametrize("path", of("harness/sglang_plugin/"), ids=str)
def test_the_plugin_needs_the_core_alone(path):
    """SGLang's environment has no more of the harness's packages."""
    own = [name for name in imports(path) if name.startswith("harness")]
    assert all(name.startswith(("harness.decoding", "harness.kernels", "harness.sglang_plugin")) for name in own)


@pytest.mark.parametrize("path", [*of("harness/records.py"), *of("harness/metrics.py")], ids=str)
def test_records_and_metrics_know_no_engine(path):
    names = imports(path)
    assert "torch" not in roots(names)
    assert not [name for name in names if name.startswith(("harness.engines", "harness.decoding"))]


@pytest.mark.parametrize("path", of("harness/report/"), ids=str)
def test_reports_read_records_alone(path):
    above = ("harness.engines", "harness.decoding", "harness.speculative", "harness.evaluate", "harness.compose")
    assert not [name for name in imports(path) if name.startswith(above)]


DOORS = {
    "hydra": ["harness/compose.py"],
    "omegaconf": ["harness/compose.py"],
    "wandb": ["harness/tracking/wandb.py", "harness/report/"],
    "datasets": ["tasks/rows.py"],
    "sglang": ["harness/engines/sglang", "harness/sglang_plugin/", "harness/decoding/"],
    "httpx": ["harness/engines/http_stream.py"],
}


@pytest.mark.parametrize("path", FILES, ids=str)
@pytest.mark.parametrize("package", DOORS)
def test_each_of_these_has_one_door(package, path):
    name = path.relative_to(ROOT).as_posix()
    if package in roots(imports(path)):
        assert any(name.startswith(door) for door in DOORS[package])


def test_both_packages_import_from_another_folder(tmp_path):
    """The editable install, not the current folder, provides them."""
    import subprocess

    code = "import harness.records, tasks.base; print(harness.records.__file__)"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout.strip()) == ROOT / "harness/records.py"
