"""headwisekv.policy: windows of a file as entries of its codebook and back, and what they keep."""

import json

import pytest
import report_policy

from headwisekv import policy as policies
from headwisekv.core import Failure

pytestmark = pytest.mark.unit


def test_entries_are_what_was_written():
    policy = report_policy.policy([1, 3, 2])
    for point in policy["operating_points"]:
        rows = policies.entries(policy, point)
        assert [len(row) for row in rows] == policies.heads(policy) == [1, 3, 2]
        assert policies.windows(policy["codebook"], rows) == point["windows"]
        assert policies.kv_bytes(policy, policy["codebook"], rows, policy["context"]) == point["bytes"]


def test_a_point_of_entries():
    policy = report_policy.policy([2, 1])
    made = policies.with_point(policy, [100, "full"], [[0, 1], [0]], "mine", "by hand", 2)
    point = made["operating_points"][0]
    assert (made["codebook"], made["sinks"], made["selected"]) == ([100, "full"], 2, "mine")
    assert point["windows"] == [[100, "full"], [100]] and policies.entries(made, point) == [[0, 1], [0]]
    assert point["bytes"] == 256 * (100 + 8192 + 100) and point["retention"] == point["bytes"] / (3 * 256 * 8192)
    assert policy["selected"] == "tau-0.995"  # the old one stays as it was


def test_a_deck_is_dealt_whole():
    policy = report_policy.policy([3, 5])
    rows = policies.deal(policy, range(8), seed=1)
    assert sorted(rows[0] + rows[1]) == list(range(8)) and rows == policies.deal(policy, range(8), seed=1) != policies.deal(policy, range(8), seed=2)


def test_what_is_not_there_is_said(tmp_path):
    policy = report_policy.policy([1])
    with pytest.raises(Failure, match="p.json has no operating point 'x', expected one of: tau-0.98, tau-0.99, tau-0.995") as failure:
        policies.find_point(policy, "x", "p.json")
    assert failure.value.code == 3
    policy["operating_points"][0]["windows"] = [[77]]
    with pytest.raises(Failure, match="'tau-0.98': found window 77"):
        policies.entries(policy, policy["operating_points"][0])
    (tmp_path / "p.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(Failure, match="expected a policy"):
        policies.read(tmp_path / "p.json")
