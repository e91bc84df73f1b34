"""docs/results.md is made from docs/results/results.json, whole, and can be made again without measuring."""

import json
import shutil

import pytest
from server_process import ROOT

from headwisekv.evaluate import __main__ as cli
from headwisekv.evaluate import plan as planning
from headwisekv.evaluate import results_data, results_page

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


def test_pictures_of_the_pages_are_there():
    data, rivals = (json.loads((ROOT / "docs" / "results" / name).read_text()) for name in ("results.json", "rivals.json"))
    named = {name for found in [*data["sections"].values(), *rivals["scenes"]] for name in found.get("pictures", {})}
    assert named == {path.name for path in (ROOT / "docs" / "results").glob("*.png")}


def test_stages_become_sections(page, tmp_path):
    data = json.loads((page.with_suffix("") / "results.json").read_text())
    sections = data["sections"]
    left = {"systems": {**sections["systems"], "records": [{"prompt_ms": 1}, {"error": "gone", "context": 1}], "machine": {}},
            "capacity-resident": {**sections["capacity"]["probes"][0], "seconds": 1}, "capacity-limit": {**sections["capacity"]["probes"][1], "seconds": 1},
            **{f"ruler-{name}": {"cells": cells, "examples": []} for name, cells in sections["ruler"]["caches"].items()}}
    for name, content in left.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "results.json").write_text(json.dumps(content))
        for picture in ("systems.png", "heatmap.png"):
            (tmp_path / name / picture).write_bytes(b"a picture")
    found = results_data.collect(tmp_path, data, planning.from_json(data["plan"]), tmp_path / "pictures")
    assert found["sections"] == {"ruler": sections["ruler"], "systems": {**sections["systems"], "records": [{"error": "gone"}]},
                                 "capacity": sections["capacity"]}
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {*sections["ruler"]["pictures"], "systems.png"}
    text = results_page.page_of(found, "results")
    assert "- 1 failed: gone\n" in text and "## Needle likelihood\n\nNot measured yet.\n" in text


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
