"""scripts/server-suite: its options, its table and its plugin. llama.cpp's tests themselves are not run here."""

import json
import os
import subprocess
import sys

import pytest
from server_process import ROOT

from headwisekv import markdown
from headwisekv.suite import run, table

SCRIPT = ROOT / "scripts" / "server-suite"
pytestmark = pytest.mark.unit


#
# options
#


def test_help():
    done = subprocess.run([SCRIPT, "--help"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    for option in ("--models", "--build", "--again", "--timeout", "--fresh", "--table"):
        assert option in done.stdout


def test_defaults_are_everything():
    options = run.parse([])
    assert options.models == ["tiny", "smollm2"] and options.build == list(table.BUILDS) and options.pytest == []


def test_parts():
    options = run.parse(["--models", "tiny", "--build", "plain,policy", "--again", "0", "--", "-k", "slot"])
    assert (options.models, options.build, options.again, options.pytest) == (["tiny"], ["plain", "policy"], 0, ["-k", "slot"])


@pytest.mark.parametrize("arguments, found", [(["--models", "big"], "found models 'big'"), (["--build", "plain,x"], "found build 'x'"), (["--again", "-1"], "'-1'"),
                                              (["--again", "many"], "'many'"), (["--timeout", "5"], "'5'"), (["--what"], "--what")])
def test_bad_options(capsys, arguments, found):
    with pytest.raises(SystemExit) as end:
        run.parse(arguments)
    assert end.value.code == 2
    assert found in capsys.readouterr().err


#
# the table
#

ABOUT = {"commit": "abc", "package": "p 1", "hardware": "a machine", "command": "scripts/server-suite"}


def phases(**outcomes):
    """name -> outcomes in the order of table.BUILDS; of one run each, or of several in a tuple"""
    found = {f"tiny-{build}": {} for build in table.BUILDS}
    for name, of_builds in outcomes.items():
        for build, runs in zip(table.BUILDS, of_builds, strict=True):
            runs = (runs,) if isinstance(runs, str) else runs
            found[f"tiny-{build}"][f"unit/t.py::{name}"] = [(run, "" if run == "passed" else "assert 5 == 4") for run in runs]
    return found


def test_no_difference():
    found = phases(a=("passed",) * 6, b=("failed",) * 6, c=("skipped",) * 6)
    assert table.differences(found, "tiny") == [] == table.lost(found, "tiny")
    text = table.report(found, ["tiny"], ABOUT)
    assert text.count("| 1 | 1 | 0 | 1 |") == 6
    assert "No test differs." in text and text.count("every test that passes on the pristine build passes on ours") == 2
    assert "Commit abc, package p 1; a machine; made with `scripts/server-suite`." in text


def test_a_test_that_is_lost_is_named():
    found = phases(good=("passed",) * 6, bad=("passed", "passed", "passed", "failed", "passed", "passed"))
    assert table.lost(found, "tiny") == ["unit/t.py::bad"] and table.lost(found, "tiny", table.EXACT) == [] == table.lost_by_rounding(found, "tiny")
    text = table.report(found, ["tiny"], ABOUT)
    assert "as by default: 1 that pass on the pristine build do not pass on ours." in text
    assert "arithmetic: every test that passes on the pristine build passes on ours" in text
    assert "| tiny | `t.py::bad` | passed | passed | passed | failed | passed | passed | assert 5 == 4 |" in text
    worse = phases(bad=("passed", "passed", "passed", "passed", "failed", "passed"))
    assert "arithmetic: 1 that pass on the pristine build do not pass on ours." in table.report(worse, ["tiny"], ABOUT)


def test_a_test_that_hangs_on_rounding_is_told_apart():
    found = phases(bad=("passed", "passed", "passed", "failed", "passed", "passed"), rounding=("passed", "failed", "failed", "failed", "passed", "passed"))
    assert table.lost_by_rounding(found, "tiny") == ["unit/t.py::rounding"] and len(table.lost(found, "tiny")) == 2
    assert "as by default: 2 that pass on the pristine build do not pass on ours; 1 of them fail on the pristine build too" in \
        table.report(found, ["tiny"], ABOUT)


def test_a_test_that_is_won_is_a_difference_but_not_lost():
    found = phases(won=("failed",) * 2 + ("passed",) * 4)
    assert table.differences(found, "tiny") == ["unit/t.py::won"] and table.lost(found, "tiny") == []


def test_a_test_that_depends_on_luck():
    found = phases(luck=(("passed", "failed", "passed"), "passed", ("failed", "passed", "passed"), ("passed", "passed", "passed"), "passed", "passed"))
    assert table.lost(found, "tiny") == []
    assert "passed 2 of 3" in table.report(found, ["tiny"], ABOUT)


def test_a_phase_that_did_not_run_is_said():
    found = phases(a=("passed",) * 6)
    found["tiny-policy"] = {}
    assert table.differences(found, "tiny") == []
    text = table.report(found, ["tiny"], ABOUT)
    assert "| not run |" in text and "as by default: not all has run." in text


def test_a_bar_does_not_break_the_table():
    assert markdown.table(["a"], [["x|y"]]).splitlines()[-1] == "| x\\|y |"


def test_the_table_goes_between_its_marks():
    begin, end = table.MARKS
    assert markdown.put_between(table.MARKS, f"head\n{begin}\nold\n{end}\ntail\n", "new") == f"head\n{begin}\nnew\n{end}\ntail\n"
    for text in ("", begin, f"{end}\n{begin}", f"{begin}{begin}{end}"):
        with pytest.raises(ValueError):
            markdown.put_between(table.MARKS, text, "new")


def test_the_document_has_the_marks():
    markdown.put_between(table.MARKS, (ROOT / "docs" / "server-tests.md").read_text(), "x")


#
# the plugin, in a suite of three tests that looks like theirs
#

UTILS = """
import os
class ServerProcess:
    model_hf_repo = None
    server_embeddings = False
    def start(self):
        self.policy = os.environ.get("LLAMA_ARG_KV_POLICY")
class ServerPreset:
    @staticmethod
    def load_all():
        raise RuntimeError("asks the hub")
"""
TESTS = """
import utils
def test_policy():
    server = utils.ServerProcess()
    server.model_hf_repo = "org/name:Q8_0"
    server.start()
    assert server.policy == "a.json" and server.offline
    utils.ServerPreset.load_all()
def test_router():
    server = utils.ServerProcess()
    server.start()
    assert server.policy == "r.json"
def test_fails():
    assert 5 == 4
"""


def test_the_plugin_notes_outcomes_and_leaves_out_what_is_noted(tmp_path):
    (tmp_path / "utils.py").write_text(UTILS)
    (tmp_path / "conftest.py").write_text("import utils\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    noted = tmp_path / "noted.jsonl"
    noted.write_text(json.dumps({"test": "test_it.py::test_router", "outcome": "failed", "why": "", "seconds": 0}) + "\n")
    env = dict(os.environ, PYTHONPATH=str(ROOT / "scripts"), SUITE_OUTCOMES=str(noted),
               SUITE_POLICIES=json.dumps({"org/name": "a.json", "router": "r.json"}))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "headwisekv.suite.plugin", "-p", "no:cacheprovider", "--rootdir", ".", "-c", os.devnull, "."]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
    assert "1 noted, 2 to run" in done.stdout
    found = table.read_outcomes(noted)
    assert {name: runs[0] for name, runs in found.items()} == {
        "test_it.py::test_router": ("failed", ""), "test_it.py::test_policy": ("passed", ""),
        "test_it.py::test_fails": ("failed", "assert 5 == 4")}
