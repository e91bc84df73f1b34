"""docs/results.md is made from docs/results/results.json, whole, and can be made again without measuring."""

import json
import shutil

import pytest
from server_process import ROOT

from headwisekv.evaluate import __main__ as cli
from headwisekv.evaluate import results_page

pytestmark = pytest.mark.unit


@pytest.fixture
def page(tmp_path):
    """A copy of the committed figures; the page is not there yet."""
    (tmp_path / "results").mkdir()
    shutil.copy(ROOT / "docs" / "results" / "results.json", tmp_path / "results")
    return tmp_path / "results.md"


def test_the_committed_page_is_what_its_figures_say(page):
    assert cli.main(["page", "--page", str(page)]) == 0
    assert page.read_text() == (ROOT / "docs" / "results.md").read_text(), "scripts/eval page writes docs/results.md again"


def test_pictures_of_the_page_are_there():
    data = json.loads((ROOT / "docs" / "results" / "results.json").read_text())
    named = {name for found in data["sections"].values() for name in found.get("pictures", {})}
    assert named == {path.name for path in (ROOT / "docs" / "results").glob("*.png")}


def test_what_is_missing_is_named(page):
    data = json.loads((page.with_suffix("") / "results.json").read_text())
    del data["sections"]["capacity"], data["sections"]["ruler"]
    data["plan"]["skipped"] = ["ruler"]
    data["failed"] = {"systems": "no server"}
    data["done"].remove("needle")
    text = results_page.page_of(data, "results")
    assert "## Capacity\n\nNot measured yet.\n" in text and "## RULER-style tasks\n\nLeft out.\n" in text
    assert "## Speed and memory\n\n**Failed:** no server\n" in text and "## Needle likelihood\n\nNot finished.\n" in text


@pytest.mark.parametrize("text", ["{", "[]", '{"plan": {}}', None])
def test_figures_that_cannot_be_used_are_one_line(page, text, capsys):
    figures = page.with_suffix("") / "results.json"
    figures.unlink() if text is None else figures.write_text(text)
    assert cli.main(["page", "--page", str(page)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not page.exists()
