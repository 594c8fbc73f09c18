"""The documentation as a site: built strictly, readable on a phone and with a keyboard."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.rows import each_row
from tests.viewer.chromium import PROGRAM, Chromium

pytest.importorskip("myst_parser", reason="needs the extra site")

pytestmark = pytest.mark.release  # in CI: links and the order of pages, in test_reference

ROOT = Path(__file__).parents[2]
AXE = os.environ.get("ASTUNE_AXE")
"""The file axe.min.js of axe-core, which `make test-site` has."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = ["-q", "-E", "-W", "--keep-going", "-c", "docs/site", ".", str(folder), "-d", str(folder / ".trees")]
    done = subprocess.run([sys.executable, "-m", "sphinx", *build], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_the_sidebar_has_each_page_of_the_readme_in_its_order(site: Path) -> None:
    path = re.findall(r"^\d+\. \[[^]]+\]\((docs/\w+)\.md\)", (ROOT / "README.md").read_text("utf-8"), re.MULTILINE)
    sidebar = (site / "README.html").read_text("utf-8").split('class="sidebar-tree"')[1].split("</aside>")[0]
    shown = re.findall(r'href="(docs/\w+)\.html"', sidebar)
    assert len(path) > 30 and shown[: len(path)] == path


def test_the_reference_has_every_public_name(site: Path) -> None:
    import astune

    reference = (site / "docs" / "site" / "api.html").read_text("utf-8")
    assert [name for name in astune.__all__ if f'id="astune.{name}"' not in reference] == []


@pytest.mark.skipif(PROGRAM is None, reason="needs the program chromium (Debian: apt install chromium)")
@each_row("dark", [False, True], ids=["light", "dark"])
def test_pages_are_readable_on_a_phone(site: Path, dark: bool) -> None:
    """A page is not wider than the screen; axe finds no fault of contrast, names or keyboard where it is there."""
    pages = [page for page in sorted(site.rglob("*.html")) if "_static" not in page.parts and page.name != "index.html"]
    chosen = pages if AXE else [site / "README.html", site / "docs" / "configuration.html"]
    faults = {}
    with Chromium(375, 800, dark) as browser:
        for page in chosen:
            browser.open(page.as_uri(), until="document.readyState === 'complete'")
            found = ["wide"] if browser.eval("document.documentElement.scrollWidth") > 375 else []
            if AXE:
                browser.eval(Path(AXE).read_text("utf-8") + "; 0")
                rules = "{runOnly: ['wcag2a', 'wcag2aa']}"
                found += browser.eval(f"axe.run(document, {rules}).then(all => all.violations.map(rule => rule.id))")
            if found:
                faults[page.name] = found
    assert faults == {}
