"""The page in a real browser: no console message, something to see at 1200 px, a viewer that works, paper."""

import re
import shutil
import subprocess
import urllib.parse
from pathlib import Path

import pytest

from tests import apt

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--host-resolver-rules=MAP * ~NOTFOUND",
]
# Shows the second round of the first run, as a reader would, and says what can be seen then.
CLICK = """
const shown = () => Array.from(document.querySelectorAll('.tree-round')).filter((f) => !f.hidden)
  .map((f) => f.dataset.run + '/' + f.dataset.round).join();
const run = document.getElementById('tree-run');
run.value = '0';
run.dispatchEvent(new Event('change'));
const round = document.getElementById('tree-round');
round.value = '0';
round.dispatchEvent(new Event('input'));
document.getElementById('tree-on').click();
document.documentElement.dataset.after = shown();
"""


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's path; on a machine that has none the package is installed, which needs root."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    apt.install("chromium", "fonts-dejavu-core")
    found = shutil.which("chromium")
    assert found
    return found


@pytest.fixture
def browse(chromium: str, tmp_path: Path):
    """Run the browser on a file with more flags; returns what it printed and the console messages of the page."""

    def run(file: Path, *flags: str) -> tuple[str, list[str]]:
        command = [chromium, *FLAGS, f"--user-data-dir={tmp_path / 'profile'}", *flags]
        address = "file://" + urllib.parse.quote(str(file))
        done = subprocess.run([*command, address], capture_output=True, text=True, timeout=120, check=True)
        return done.stdout, re.findall(r"CONSOLE.*?\] (.*)", done.stderr)

    return run


def pixels(file: Path):
    from matplotlib.image import imread

    return imread(file)[..., :3]


def test_the_page_opens_and_fills_1200_pixels(browse, page_file: Path, tmp_path: Path) -> None:
    picture = tmp_path / "page.png"
    _, messages = browse(page_file, "--window-size=1200,3000", f"--screenshot={picture}")
    assert messages == []
    seen = pixels(picture)
    assert seen.shape == (3000, 1200, 3)
    ink = seen.min(axis=2) < 0.6
    assert 0.01 < ink.mean() < 0.5
    for part in range(6):  # each 500 rows show something
        assert ink[500 * part : 500 * (part + 1)].any()
    assert not ink[:, :8].any()  # margins: nothing is cut at the sides
    assert not ink[:, -8:].any()


def test_nothing_is_wider_than_the_window(browse, page_file: Path, tmp_path: Path) -> None:
    probe = "document.documentElement.dataset.wide = document.documentElement.scrollWidth;"
    out, _ = browse(with_script(page_file, tmp_path, probe), "--window-size=1200,900", "--dump-dom")
    assert re.search(r'data-wide="(\d+)"', out).group(1) == "1200"


def test_the_viewer_shows_one_round_and_steps(browse, page_file: Path, tmp_path: Path) -> None:
    out, messages = browse(with_script(page_file, tmp_path, CLICK), "--dump-dom")
    assert messages == []
    assert 'data-ready="yes"' in out
    assert 'data-after="0/1"' in out


def test_the_page_prints(browse, page_file: Path, tmp_path: Path) -> None:
    paper = tmp_path / "page.pdf"
    browse(page_file, "--no-pdf-header-footer", f"--print-to-pdf={paper}")
    content = paper.read_bytes()
    assert content.startswith(b"%PDF")
    pages = len(re.findall(rb"/Type\s*/Page\b", content))
    assert 3 <= pages <= 20
    boxes = set(re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", content))
    assert {(round(float(w)), round(float(h))) for w, h in boxes} == {(595, 842)}  # A4 in points


def test_markup_from_a_model_runs_nothing(browse, nasty_outputs: Path, tmp_path: Path) -> None:
    from harness.report.__main__ import main

    runs = sorted(str(path.parent) for path in nasty_outputs.rglob("run.json"))
    assert main([*runs, "--html", str(tmp_path / "nasty.html")]) == 0
    _, messages = browse(tmp_path / "nasty.html", f"--screenshot={tmp_path / 'nasty.png'}")
    assert messages == []


def test_a_page_with_an_error_and_a_request_would_be_caught(browse, page_file: Path, tmp_path: Path) -> None:
    """The control: a script error, a foreign script and an outside image are seen by the same means, and refused."""
    text = page_file.read_text()
    broken = tmp_path / "broken.html"
    code = "<script>undefined_name();</script><img src='https://example.invalid/x.png'>"
    broken.write_text(text.replace("</main>", f"</main>{code}"))
    _, messages = browse(broken, f"--screenshot={tmp_path / 'x.png'}")
    assert any("Content Security Policy" in message and "inline script" in message for message in messages)
    assert any("Content Security Policy" in message and "example.invalid" in message for message in messages)
    _, messages = browse(with_script(page_file, tmp_path, "undefined_name();"), "--dump-dom")
    assert any("undefined_name is not defined" in message for message in messages)


def with_script(page: Path, folder: Path, code: str) -> Path:
    """A copy whose policy also allows this one script, to look at the page from inside."""
    import base64
    import hashlib

    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    text = page.read_text().replace("script-src ", f"script-src 'sha256-{digest}' ", 1)
    copy = folder / "probed.html"
    copy.write_text(text.replace("</body>", f"<script>{code}</script></body>"))
    return copy
