"""`scripts/eval toolcall`: one dialogue with tools, as an agent benchmark such as tau2-bench holds it: does the endpoint speak that protocol?

It checks the protocol, not the model: tool choice `required` makes any model call one.
"""

import json

from ..core import Failure, say, write_whole
from ..provenance import provenance
from .jobs import ExampleError

SYSTEM = ("You are a customer service agent of an airline. Look a reservation up before you speak about it. Use one tool at a time, and "
          "answer the customer in one sentence once you know enough.")
USER = "Hello, my reservation is EHGLP3. Which flight is it, and is it cancelled?"
TOOLS = [
    {"type": "function", "function": {
        "name": "get_reservation", "description": "Gets the details of a reservation.",
        "parameters": {"type": "object", "properties": {"reservation_id": {"type": "string", "description": "such as ZFA04Y"}},
                       "required": ["reservation_id"], "additionalProperties": False}}},
    {"type": "function", "function": {
        "name": "cancel_reservation", "description": "Cancels a reservation for good.",
        "parameters": {"type": "object", "properties": {"reservation_id": {"type": "string"}, "reason": {"type": "string"}},
                       "required": ["reservation_id", "reason"], "additionalProperties": False}}},
]
RESERVATIONS = {"EHGLP3": {"reservation_id": "EHGLP3", "flight": "HAT156", "status": "confirmed"}}


def add_options(parser):
    parser.add_argument("--tool-choice", choices=["required", "auto"], default="required", help="required (default): any model calls a tool; auto: it decides")
    parser.add_argument("--max-tokens", type=int, default=256, help="of each answer; default: 256")


def read_call(message):
    """Name and arguments of the first tool call, checked against its schema as far as a benchmark relies on it."""
    calls = message.get("tool_calls") or []
    if not calls:
        raise ExampleError(f"the answer has no tool call: {(message.get('content') or '')[:80]!r}")
    function = calls[0].get("function", {})
    known = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
    if function.get("name") not in known:
        raise ExampleError(f"found a call of {function.get('name')!r}, expected one of: {', '.join(known)}")
    try:
        arguments = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError):
        raise ExampleError(f"the arguments of {function['name']} are not JSON: {str(function.get('arguments'))[:80]!r}") from None
    schema = known[function["name"]]
    wrong = [name for name in schema["required"] if not isinstance(arguments.get(name), str)] if isinstance(arguments, dict) else ["all"]
    if wrong:
        raise ExampleError(f"the arguments of {function['name']} lack {', '.join(wrong)}: {function['arguments'][:80]!r}")
    if not calls[0].get("id"):
        raise ExampleError("the tool call has no id, so a result cannot name it")
    return calls[0]["id"], function["name"], arguments


def use_tool(name, arguments):
    """What the airline says."""
    found = RESERVATIONS.get(arguments["reservation_id"].strip().upper())
    if found is None:
        return {"error": f"no reservation {arguments['reservation_id']}"}
    return found if name == "get_reservation" else {**found, "status": "cancelled"}


async def ask(options, endpoint, messages, choice):
    answer = await endpoint.call(lambda: endpoint.client.chat.completions.create(
        model=endpoint.model, messages=messages, tools=TOOLS, tool_choice=choice, max_tokens=options.max_tokens, temperature=0, seed=options.seed,
        extra_body=endpoint.extra()), fatal=(404,))
    return answer.choices[0].message.model_dump(exclude_none=True), answer.choices[0].finish_reason


async def hold(options, endpoint, messages):
    """User, tool call, its result, answer. Returns the steps that were seen to work."""
    message, reason = await ask(options, endpoint, messages, options.tool_choice)
    key, name, arguments = read_call(message)
    steps = [f"the model calls {name}({json.dumps(arguments)}), finish reason {reason}"]
    messages += [{"role": "assistant", "content": message.get("content") or "", "tool_calls": message["tool_calls"]},
                 {"role": "tool", "tool_call_id": key, "content": json.dumps(use_tool(name, arguments))}]
    message, reason = await ask(options, endpoint, messages, "none")
    text = message.get("content") or ""
    if not text.strip():
        raise ExampleError(f"no answer after the tool's result, finish reason {reason}")
    messages.append({"role": "assistant", "content": text})
    return steps + [f"the model answers {' '.join(text.split())[:160]!r}, finish reason {reason}"]


async def run(options, endpoint):
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]
    failure = None
    steps = []
    try:
        steps = await hold(options, endpoint, messages)
    except ExampleError as error:
        failure = str(error)
    options.out.mkdir(parents=True, exist_ok=True)
    data = {"benchmark": "toolcall", "name": options.name, "tool_choice": options.tool_choice, "steps": steps, "failure": failure, "messages": messages,
            "endpoints": [endpoint.describe()], "provenance": provenance("scripts/eval")}
    write_whole(options.out / "results.json", json.dumps(data, indent=1) + "\n")
    for step in steps:
        print(f"ok: {step}", flush=True)
    if failure:
        raise Failure(f"the dialogue ended early: {failure}")
    say(f"written: {options.out / 'results.json'}")
    return 0
