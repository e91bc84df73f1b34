"""scripts/eval: what a dialogue with tools asks of an endpoint. The whole dialogue is in test_eval_server.py."""

import json

import pytest
from eval_stub import Stub

from headwisekv.evaluate import __main__ as cli
from headwisekv.evaluate import run_toolcall
from headwisekv.evaluate.jobs import ExampleError

pytestmark = pytest.mark.unit


def call(name="get_reservation", arguments='{"reservation_id": "EHGLP3"}', key="a"):
    return {"tool_calls": [{"id": key, "type": "function", "function": {"name": name, "arguments": arguments}}]}


def test_a_call_is_read():
    assert run_toolcall.read_call(call()) == ("a", "get_reservation", {"reservation_id": "EHGLP3"})


@pytest.mark.parametrize("message, text", [
    ({"content": "Hello"}, "no tool call: 'Hello'"),
    (call(name="fly"), "found a call of 'fly', expected one of: get_reservation, cancel_reservation"),
    (call(arguments="{"), "not JSON"),
    (call(arguments="[]"), "lack all"),
    (call(arguments='{"reservation_id": 3}'), "lack reservation_id"),
    (call(name="cancel_reservation"), "lack reason"),
    (call(key=""), "has no id"),
])
def test_a_wrong_call_is_said(message, text):
    with pytest.raises(ExampleError, match=text):
        run_toolcall.read_call(message)


def test_tools_answer():
    assert run_toolcall.use_tool("get_reservation", {"reservation_id": " ehglp3"})["status"] == "confirmed"
    assert run_toolcall.use_tool("cancel_reservation", {"reservation_id": "EHGLP3", "reason": "x"})["status"] == "cancelled"
    assert "error" in run_toolcall.use_tool("get_reservation", {"reservation_id": "?"})


def test_an_endpoint_without_tools_fails_in_one_line(tmp_path, capsys):
    with Stub(lambda prompt: "I cannot call tools") as stub:
        assert cli.main(["toolcall", "--base-url", stub.url, "--out", str(tmp_path)]) == 1
        assert stub.bodies[0]["tool_choice"] == "required" and len(stub.bodies[0]["tools"]) == 2
    assert capsys.readouterr().err == "error: the dialogue ended early: the answer has no tool call: 'I cannot call tools'\n"
    assert json.loads((tmp_path / "results.json").read_text())["failure"]
