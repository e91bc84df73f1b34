"""Clients that go wrong: the right status with an error of OpenAI's shape, and the next request is served."""

import json
import socket
import time

import pytest
import requests
from kv_policy_server import words
from server_process import TIMEOUT, ServerProcess
from tiny_model import SHIPPED_POLICY, make_tiny

pytestmark = pytest.mark.server

CHAT = "/v1/chat/completions"
ASKED = {"prompt": words(1, 100), "n_predict": 8, "temperature": 0, "cache_prompt": False, "return_tokens": True}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("faults")
    model, policy = make_tiny(folder)
    (folder / "slots").mkdir()
    with ServerProcess(model, folder / "log", "--kv-policy", str(policy), "--slot-save-path", str(folder / "slots"), "--metrics",
                       ctx=1024, slots=2) as server:
        yield server


@pytest.fixture(scope="module")
def expected(tiny):
    return tiny.post("/completion", ASKED).json()["tokens"]


@pytest.fixture(autouse=True)
def next_request_is_served(tiny, expected):
    """After every test of this file: the same answer as ever."""
    yield
    assert tiny.process.poll() is None, f"the server ended:\n{tiny.log()[-2000:]}"
    answer = tiny.post("/completion", ASKED)
    assert answer.status_code == 200
    assert answer.json()["tokens"] == expected


def send(server, path, body):
    """body: bytes as they are, or anything JSON can say."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return requests.post(server.url + path, data=data, headers={"Content-Type": "application/json"}, timeout=TIMEOUT)


def check_error(answer, status, kind="invalid_request_error"):
    assert answer.status_code == status, answer.text[:300]
    assert answer.headers["Content-Type"].startswith("application/json")
    error = answer.json()["error"]
    assert error["code"] == status
    assert error["type"] == kind
    assert isinstance(error["message"], str) and error["message"]
    return error


#
# what is not JSON, or not the JSON that is expected
#

NOT_JSON = {"cut": b'{"messages": [', "empty": b"", "binary": bytes(range(256)), "utf-8": b'{"messages":[{"role":"user","content":"\xff\xfe"}]}',
            "overlong": b'{"messages":[{"role":"user","content":"\xc0\xaf"}]}', "surrogate": b'{"messages":[{"role":"user","content":"\\ud800"}]}',
            "nan": b'{"messages":[{"role":"user","content":"x"}],"temperature":NaN}', "two": b'{"messages":[]} {"messages":[]}',
            "open": b"[" * 100000}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_what_is_not_json_is_the_callers_error(tiny, body):
    for path in (CHAT, "/v1/completions", "/completion", "/tokenize", "/slots/0?action=save"):
        check_error(send(tiny, path, body), 400)


def test_json_nested_too_deeply(tiny):
    """A value that goes deeper than any request needs must not be the end of a stack."""
    n = 200000
    for value in (b"[" * n + b"]" * n, b'{"items":' * n + b"1" + b"}" * n):
        body = b'{"messages":[{"role":"user","content":"x"}],"max_tokens":2,"response_format":{"type":"json_object","schema":' + value + b"}}"
        check_error(send(tiny, CHAT, body), 400)


def test_brackets_in_text_are_no_nesting(tiny):
    answer = send(tiny, "/tokenize", {"content": '[{"\\"' * 5000})
    assert answer.status_code == 200 and len(answer.json()["tokens"]) > 5000


@pytest.mark.parametrize("body", [[], "text", 5, None, {"messages": "x"}, {"messages": [1]}, {"messages": [{"role": "user"}]},
                                  {"messages": [{"role": "user", "content": 5}]}, {}])
def test_other_json_is_the_callers_error(tiny, body):
    check_error(send(tiny, CHAT, body), 400)


@pytest.mark.parametrize("path, body", [("/tokenize", {"content": 5}), ("/detokenize", {"tokens": ["x"]}), ("/detokenize", {"tokens": [10**6]}),
                                        ("/detokenize", {"tokens": [-4]}), ("/slots/0?action=save", {}), ("/slots/0?action=save", {"filename": 5}),
                                        ("/slots/0?action=restore", {"filename": None})])
def test_other_types_are_the_callers_error(tiny, path, body):
    check_error(send(tiny, path, body), 400)


#
# fields that handlers pass over, or take for their own fault
#

ASKS = {"chat": (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        "messages": ("/v1/messages", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}),
        "responses": ("/v1/responses", {"input": "x", "max_output_tokens": 2}),
        "count": ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": "x"}]}),
        "template": ("/apply-template", {"messages": [{"role": "user", "content": "x"}]})}


def ask(server, api, **fields):
    path, body = ASKS[api]
    return send(server, path, {**body, **fields})


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens", CHAT, "/apply-template"])
@pytest.mark.parametrize("body", [{}, {"max_tokens": 2}, {"messages": None}, {"messages": 5}, {"messages": {"role": "user", "content": "x"}},
                                  {"messages": [None]}, {"messages": [["x"]]}, {"messages": [{"role": "user", "content": [5]}]},
                                  {"messages": [{"role": "user", "content": [{"type": 5}]}]},
                                  {"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]},
                                  {"messages": [{"role": "user", "content": [{"text": "x"}]}]}], ids=str)
def test_messages_that_are_none(tiny, path, body):
    error = check_error(send(tiny, path, body), 400)
    assert "messages" in error["message"] or "content" in error["message"]


BAD_TOOLS = [5, "x", True, {}, {"name": "f"}, [None], [5], ["x"], [[]], [{}], [{"type": 5}], [{"type": "function"}], [{"type": "custom"}],
             [{"name": 5}], [{"name": None, "input_schema": {}}], [{"name": "f", "input_schema": 5}], [{"type": "function", "function": 5}],
             [{"type": "function", "function": {}}], [{"type": "function", "function": {"name": 5}}], [{"type": "function", "function": None}],
             [{"type": "function", "function": {"name": "f", "parameters": 5}}], [{"description": "x" * 1000}], [{"description": "\u00e9" * 1000}]]


@pytest.mark.parametrize("api", ASKS)
@pytest.mark.parametrize("tools", BAD_TOOLS, ids=lambda value: str(value)[:40])
def test_tools_that_are_none(tiny, api, tools):
    error = check_error(ask(tiny, api, tools=tools), 400)
    assert "tool" in error["message"] and len(error["message"]) < 300


GOOD_TOOLS = {"chat": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}}],
              "messages": [{"name": "f", "input_schema": {"type": "object"}}, {"type": "custom", "name": "g", "input_schema": {"type": "object"}},
                           {"type": "web_search_20250305", "name": "web_search"}],
              "responses": [{"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}, {"type": "web_search"}]}


@pytest.mark.parametrize("api", GOOD_TOOLS)
def test_tools_are_taken(tiny, api):
    for tools in ([], GOOD_TOOLS[api]):
        answer = ask(tiny, api, tools=tools)
        assert answer.status_code == 200, answer.text[:300]


@pytest.mark.parametrize("api", ASKS)
@pytest.mark.parametrize("value", ["", "x", "AUTO", 5, None, True, ["auto"], {"auto": 1}], ids=str)
def test_reasoning_formats_that_are_none(tiny, api, value):
    check_error(ask(tiny, api, reasoning_format=value), 400)


@pytest.mark.parametrize("api", ASKS)
def test_reasoning_formats_are_taken(tiny, api):
    for value in ("none", "auto", "deepseek", "deepseek-legacy"):
        assert ask(tiny, api, reasoning_format=value).status_code == 200


def test_words_in_a_text_are_no_fields(tiny):
    text = '"messages": 5, "tools": 5, "reasoning_format": 5'
    assert send(tiny, "/tokenize", {"content": text}).status_code == 200
    assert send(tiny, "/completion", {"prompt": text, "n_predict": 2}).status_code == 200
    assert ask(tiny, "chat", messages=[{"role": "user", "content": text}]).status_code == 200


@pytest.mark.parametrize("args, path, bodies", [
    (("--embeddings", "--pooling", "mean"), "/v1/embeddings", [{}, {"input": None}, {"input": 5}, {"input": []}, {"input": [{}]}, {"input": {"a": 1}},
                                                               {"input": {"prompt_string": "x", "multimodal_data": ["x"]}}]),
    (("--embeddings", "--pooling", "none"), "/embedding", [{}, {"content": None}, {"content": 5}, {"content": [None]}]),
    (("--reranking",), "/v1/rerank", [{}, {"query": 5, "documents": ["x"]}, {"query": "x", "documents": 5}, {"query": "x", "documents": [5]},
                                      {"query": "x", "documents": ["x"], "top_n": -1}, {"query": "x", "documents": ["x"], "top_n": 1.5},
                                      {"query": "x", "documents": ["x"], "top_n": "x"}]),
    (("--no-jinja",), CHAT, [{"messages": [{"role": "user", "content": "x"}], "tools": GOOD_TOOLS["chat"]},
                             {"messages": [{"role": "user", "content": "x"}], "tool_choice": "required"}]),
], ids=["embeddings", "embedding", "rerank", "no jinja"])
def test_other_servers_know_their_callers_errors(tmp_path, args, path, bodies):
    model, _ = make_tiny(tmp_path)
    with ServerProcess(model, tmp_path / "log", *args, ctx=512) as server:
        for body in bodies:
            check_error(send(server, path, body), 400)


def test_what_the_server_was_started_without_is_its_own(tiny):
    """As llama.cpp has it: its tests ask for this status."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    error = check_error(ask(tiny, "chat", messages=[{"role": "user", "content": [image]}]), 500, "server_error")
    assert "image input is not supported" in error["message"]


def test_a_nul_is_text_as_any(tiny):
    answer = send(tiny, CHAT, {"messages": [{"role": "user", "content": "a\0b"}], "max_tokens": 2})
    assert answer.status_code == 200


#
# numbers and fields
#

OUT_OF_RANGE = [("max_tokens", -5), ("max_tokens", 10**30), ("max_tokens", 2**31), ("max_tokens", 1e308), ("max_tokens", "many"), ("n", 0), ("n", -1),
                ("n", 10**9), ("n_keep", -100), ("n_keep", 10**12), ("repeat_last_n", -7), ("n_discard", -3), ("temperature", "hot"),
                ("top_logprobs", -1), ("top_logprobs", 10**9), ("stream", "yes"), ("cache_prompt", "x"), ("stop", [1, 2]), ("lora", 5),
                ("grammar", "root ::= ("), ("response_format", {"type": "x"}),
                ("response_format", {"type": "json_schema", "json_schema": {"schema": {"type": "nope"}}})]


@pytest.mark.parametrize("field, value", OUT_OF_RANGE, ids=lambda value: str(value)[:20])
def test_numbers_out_of_range_are_the_callers_error(tiny, field, value):
    error = check_error(send(tiny, CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, field: value}), 400)
    assert field.split("_")[0] in error["message"] or "schema" in error["message"]


# llama.cpp's samplers have a meaning for every number
TAKEN = [("temperature", -1), ("temperature", 1e39), ("top_p", -3), ("top_p", 1e9), ("top_k", -10), ("top_k", 2**40), ("seed", -1), ("seed", 2**64),
         ("presence_penalty", 1e300), ("min_p", -1e300), ("logit_bias", [[10**9, 1]]), ("logit_bias", {"x": 1e300}), ("n_probs", -1),
         ("unknown_field", {"a": [1, 2]}), ("user", "someone"), ("store", True), ("metadata", {})]


@pytest.mark.parametrize("field, value", TAKEN, ids=lambda value: str(value)[:20])
def test_odd_numbers_and_unknown_fields_are_taken(tiny, field, value):
    answer = send(tiny, CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2, field: value})
    assert answer.status_code == 200, answer.text[:300]
    assert answer.json()["usage"]["completion_tokens"] <= 2


@pytest.mark.parametrize("prompt", [[], [-1], [10**6], [1.5], {"a": 1}, 5, None, [None], ["a", -5]], ids=str)
def test_prompts_that_are_none_are_the_callers_error(tiny, prompt):
    check_error(send(tiny, "/completion", {"prompt": prompt, "n_predict": 2}), 400)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/rerank", "/infill"])
def test_what_this_model_cannot_do_is_said(tiny, path):
    check_error(send(tiny, path, {"input": "x", "query": "x", "documents": ["x"], "input_prefix": "x"}), 501, "not_supported_error")


@pytest.mark.parametrize("path", ["/slots/x?action=save", "/slots/99999999999999?action=save", "/slots/0?action=zap", "/slots/0"])
def test_slot_requests_that_mean_nothing(tiny, path):
    check_error(send(tiny, path, {"filename": "x.bin"}), 400)


def test_unknown_paths_are_not_found(tiny):
    check_error(requests.get(tiny.url + "/v1/files", timeout=TIMEOUT), 404, "not_found_error")


#
# too much
#


@pytest.mark.parametrize("stream", [False, True])
def test_prompts_over_the_context(tiny, stream):
    error = check_error(send(tiny, "/completion", {"prompt": words(3, 513), "n_predict": 4, "stream": stream}), 400, "exceed_context_size_error")
    assert error["n_prompt_tokens"] == 513 and error["n_ctx"] == 512


def test_answers_that_fill_the_context_are_cut(tiny):
    answer = send(tiny, "/completion", {"prompt": words(3, 400), "n_predict": 10**6, "ignore_eos": True}).json()
    assert answer["stop_type"] == "limit" and answer["tokens_predicted"] in (111, 112, 113)


def test_ten_megabytes(tiny):
    error = check_error(send(tiny, "/completion", {"prompt": "x" * 10 * 2**20, "n_predict": 4}), 400, "exceed_context_size_error")
    assert error["n_prompt_tokens"] > 10**6


@pytest.mark.slow
def test_ten_megabytes_of_chat_on_the_real_model(model, tmp_path):
    text = "The quick brown fox jumps over the lazy dog. " * (10 * 2**20 // 45)
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(SHIPPED_POLICY)) as server:
        error = check_error(send(server, CHAT, {"messages": [{"role": "user", "content": text}]}), 400, "exceed_context_size_error")
        assert error["n_prompt_tokens"] > 10**6
        assert send(server, CHAT, {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}).status_code == 200


def test_a_header_of_a_megabyte_is_refused(tiny):
    with socket.create_connection(("127.0.0.1", tiny.port), timeout=TIMEOUT) as client:
        try:
            client.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nX-Long: " + b"x" * 2**20 + b"\r\n\r\n")
            reply = client.recv(100)
        except ConnectionError:  # closed while we still sent
            reply = b""
    assert reply == b"" or reply.split()[1].startswith(b"4")


#
# clients that do not stay
#


def slots_in_use(server):
    return sum(slot["is_processing"] for slot in server.get("/slots").json())


def wait_until_idle(server):
    deadline = time.monotonic() + TIMEOUT
    while slots_in_use(server):
        assert time.monotonic() < deadline, "a slot still works for a client that is gone"
        time.sleep(0.02)


@pytest.mark.parametrize("path, body", [("/completion", {"prompt": words(5, 100), "n_predict": 10**6, "ignore_eos": True}),
                                        (CHAT, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10**6, "ignore_eos": True})])
def test_clients_that_vanish_in_a_stream(tiny, path, body):
    for _ in range(6):
        with requests.post(tiny.url + path, json=dict(body, stream=True), stream=True, timeout=TIMEOUT) as answer:
            assert next(answer.iter_lines()).startswith(b"data: ")
    wait_until_idle(tiny)


def request_bytes(path, body, length=None):
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n"
            ).encode() + body


def test_clients_that_vanish_without_reading(tiny):
    body = json.dumps({"prompt": words(5, 400), "n_predict": 100, "ignore_eos": True}).encode()
    for _ in range(6):
        with socket.create_connection(("127.0.0.1", tiny.port), timeout=TIMEOUT) as client:
            client.sendall(request_bytes("/completion", body))
    wait_until_idle(tiny)


def test_half_a_body(tiny):
    body = json.dumps({"prompt": words(5, 100), "n_predict": 4}).encode()
    for cut in (0, 1, len(body) // 2, len(body) - 1):
        with socket.create_connection(("127.0.0.1", tiny.port), timeout=TIMEOUT) as client:
            client.sendall(request_bytes("/completion", body[:cut], len(body)))
    assert slots_in_use(tiny) == 0


def test_bodies_that_never_end_keep_nobody_waiting(tiny):
    # each burst is larger than the last one, so that the threads which that has left are too few
    for n in (20, 35, 50, 65):
        clients = [socket.create_connection(("127.0.0.1", tiny.port), timeout=TIMEOUT) for _ in range(n)]
        try:
            for client in clients:
                client.sendall(request_bytes("/completion", b'{"prompt": "x', 1000))
            try:
                assert requests.post(tiny.url + "/completion", json=ASKED, timeout=10).status_code == 200
            except requests.exceptions.ReadTimeout:
                pytest.fail(f"{n} clients that sent half a request keep the next one waiting", pytrace=False)
        finally:
            for client in clients:
                client.close()


@pytest.mark.parametrize("text", [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\r\n", b"GET\r\n\r\n",
                                  b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n{}",
                                  b"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n{}",
                                  b"POST /completion HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n"],
                         ids=["tls", "version", "blank", "method", "length -5", "length 1e20", "chunk"])
def test_what_is_not_http(tiny, text):
    with socket.create_connection(("127.0.0.1", tiny.port), timeout=TIMEOUT) as client:
        client.sendall(text)
        client.shutdown(socket.SHUT_WR)
        try:
            reply = client.recv(1000)
        except ConnectionError:
            reply = b""
    assert reply == b"" or reply.split()[1].startswith((b"4", b"5"))
