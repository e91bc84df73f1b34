"""headwisekv.policy: what a file spells out as entries of its codebook and back, and what they keep."""

import json

import pytest
import report_policy
from server_process import ROOT

from headwisekv import policy as policies
from headwisekv.core import Failure

pytestmark = pytest.mark.unit


def test_entries_are_what_was_written():
    policy = report_policy.policy([1, 3, 2])
    for point in policy["operating_points"]:
        rows = policies.entries(policy, point)
        assert [len(row) for row in rows] == policies.heads(policy) == [1, 3, 2]
        assert policies.spelled(policy["codebook"], rows) == point["entries"] == policies.matrix(point)
        assert policies.kv_bytes(policy, policy["codebook"], rows, policy["context"]) == point["bytes"]


def test_a_point_of_entries():
    policy = report_policy.policy([2, 1])
    made = policies.with_point(policy, [100, "full"], [[0, 1], [0]], "mine", "by hand", 2)
    point = made["operating_points"][0]
    assert (made["codebook"], made["sinks"], made["selected"]) == ([100, "full"], 2, "mine")
    assert point["entries"] == [[100, "full"], [100]] and policies.entries(made, point) == [[0, 1], [0]]
    assert point["bytes"] == 256 * (100 + 8192 + 100) and point["retention"] == point["bytes"] / (3 * 256 * 8192)
    assert point["retention_tokens"] == pytest.approx(point["retention"]) == point["retention_query"]
    assert policy["selected"] == "tau-0.995"  # the old one stays as it was


def test_entries_with_types():
    types = {"k": "f16", "v": "q8_0"}
    assert policies.parts(256, types) == (256, "f16", "q8_0") and policies.parts("full", types) == ("full", "f16", "q8_0")
    assert policies.parts("256:q8_0", types) == (256, "q8_0", "q8_0") and policies.parts("full:q8_0/q4_0", types) == ("full", "q8_0", "q4_0")
    policy = report_policy.policy([2, 1])
    made = policies.with_point(policy, ["100:q4_0", "100:q8_0/q4_0", "full:f16"], [[0, 1], [2]], "mine", "by hand", 2)
    point = made["operating_points"][0]
    assert point["entries"] == [["100:q4_0", "100:q8_0/q4_0"], ["full:f16"]] and policies.entries(made, point) == [[0, 1], [2]]
    assert point["bytes"] == 100 * (36 + 36) + 100 * (68 + 36) + 8192 * 256  # of 64 elements each
    assert point["retention_tokens"] == pytest.approx((100 + 100 + 8192) / (3 * 8192)) and point["retention"] < point["retention_tokens"]


def test_query_heads_weigh_a_share():
    policy = report_policy.policy([1, 1])
    policy["model"]["layers"][1]["n_head"] = 6
    tokens, queries = policies.shares(policy, [64, "full"], [[0], [1]], 128)
    assert tokens == 0.75 and queries == (2 * 0.5 + 6 * 1) / 8


def test_scores_of_either_version():
    table = [[[0.5, 1]]]
    policy = {"context": 512}
    assert policies.scores(policy, {}) is None
    assert policies.scores(policy, {"scores": table}) == table
    assert policies.scores(policy, {"scores": {"cosine": table}}) == table
    assert policies.scores(policy, {"scores": {"cosine": {"256": [], "512": table}, "loss": []}}) == table
    assert policies.scores(policy, {"scores": {"cosine": {"256": table}}}) is None
    assert policies.scores(policy, {"scores": {"loss": table}}) is None and policies.scores(policy, {"scores": {"loss": table}}, "loss") == table


def test_a_deck_is_dealt_whole():
    policy = report_policy.policy([3, 5])
    rows = policies.deal(policy, range(8), seed=1)
    assert sorted(rows[0] + rows[1]) == list(range(8)) and rows == policies.deal(policy, range(8), seed=1) != policies.deal(policy, range(8), seed=2)


def test_what_is_not_there_is_said(tmp_path):
    policy = report_policy.policy([1])
    with pytest.raises(Failure, match="p.json has no operating point 'x', expected one of: tau-0.98, tau-0.99, tau-0.995") as failure:
        policies.find_point(policy, "x", "p.json")
    assert failure.value.code == 3
    policy["operating_points"][0]["entries"] = [[77]]
    with pytest.raises(Failure, match="'tau-0.98': found 77"):
        policies.entries(policy, policy["operating_points"][0])
    (tmp_path / "p.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(Failure, match="expected a policy"):
        policies.read(tmp_path / "p.json")


def test_entries_in_the_order_of_a_codebook():
    policy = {**policies.read(ROOT / "policies" / "smollm2-135m-instruct-8k.json"), "context": 1024}
    assert not policies.is_typed(policy) and policies.reference(policy) == "full"
    mixed = ["full:f16", "256:q8_0", "full:q4_0", "512:q4_0/q8_0", "512:q8_0/q4_0", "256:f16", "128:f16", "512:q4_0"]
    ordered = policies.in_order(policy, mixed)
    # 128 positions in F16 take less than 256 in q8_0, and 512 in q4_0 more; what takes as many bytes goes by the type of K
    assert ordered == ["128:f16", "256:q8_0", "512:q4_0", "512:q4_0/q8_0", "512:q8_0/q4_0", "256:f16", "full:q4_0", "full:f16"]
    assert policies.is_typed({**policy, "codebook": ordered}) and policies.reference({**policy, "codebook": ordered}) == "full:f16"
