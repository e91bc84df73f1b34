"""scripts/head-map"""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
import report_policy
from server_process import ROOT

pytestmark = pytest.mark.unit


@pytest.fixture
def head_map(tmp_path):
    def call(policy, *args, code=0):
        (tmp_path / "policy.json").write_text(policy if isinstance(policy, str) else json.dumps(policy))
        result = subprocess.run([sys.executable, ROOT / "scripts" / "head-map", "policy.json", *args], cwd=tmp_path,
                                capture_output=True, text=True, timeout=120)
        assert result.returncode == code, result.stderr
        return result

    return call


@pytest.mark.parametrize("text", ["{", "[]", "{\"format\": \"other\"}"])
def test_what_is_no_policy_is_refused(head_map, text):
    assert head_map(text, code=1).stderr.startswith("error: policy.json: ")


def test_unknown_point_is_exit_code_3(head_map):
    assert "expected one of: tau-0.98, tau-0.99, tau-0.995" in head_map(report_policy.policy([2]), "--point", "9", code=3).stderr


def test_unwritable_output(head_map, tmp_path):
    pytest.importorskip("matplotlib")
    assert "missing/map.png: cannot write: " in head_map(report_policy.policy([2]), "-o", "missing/map", code=1).stderr


def test_both_formats_with_one_panel_for_each_point(head_map, tmp_path):
    pytest.importorskip("matplotlib")
    policy = report_policy.policy([1, 3], name="a $ & <name>")
    assert head_map(policy, "--all", "-o", "map").stdout == "map.png\nmap.svg\n"
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    first = (tmp_path / "map.svg").read_bytes()
    texts = [node.text for node in ElementTree.fromstring(first).iter("{http://www.w3.org/2000/svg}text")]
    assert "a $ & <name>" in texts
    assert texts.count("KV head") == 3
    for point in policy["operating_points"]:
        assert f"{100 * point['retention']:.1f}% kept" in texts
    n_full = sum(row.count("full") for point in policy["operating_points"] for row in point["entries"])
    assert texts.count("full") == n_full + 1  # and the legend

    head_map(policy, "--all", "-o", "map")
    assert (tmp_path / "map.svg").read_bytes() == first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["map.png", "map.svg", "policy.json"]


def test_large_model_and_one_format(head_map, tmp_path):
    pytest.importorskip("matplotlib")
    head_map(report_policy.policy([128] * 8 + [64]), "--point", "0", "-o", "map.svg")
    root = ElementTree.parse(tmp_path / "map.svg").getroot()
    assert len(list(root.iter("{http://www.w3.org/2000/svg}image"))) == 1
    assert not (tmp_path / "map.png").exists()


def test_entries_with_types_are_named(head_map, tmp_path):
    pytest.importorskip("matplotlib")
    head_map((ROOT / "tests" / "data" / "policy-ok" / "typed.json").read_text(), "-o", "map.svg")
    texts = [node.text for node in ElementTree.fromstring((tmp_path / "map.svg").read_bytes()).iter("{http://www.w3.org/2000/svg}text")]
    assert texts.count("256:q4_0") == 1 + 1 and texts.count("1024:q8_0/q4_0") == 1 + 1  # a head has it, and the legend
