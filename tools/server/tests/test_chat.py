"""Chat through the official OpenAI client, and the endpoints beside it, with the real default model."""

import json

import openai
import pytest

pytestmark = pytest.mark.server

QUESTION = [{"role": "user", "content": "What color is the sky?"}]

# greedy, and the prompt processed anew each time: the same request gives the same text
EXACT = {"model": "default", "temperature": 0, "max_tokens": 24, "stop": ["."], "extra_body": {"cache_prompt": False}}


def test_health(server):
    answer = server.get("/health")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok"}


def test_props_describe_the_server(server, model):
    props = server.get("/props").json()
    assert props["model_path"] == str(model)
    assert props["total_slots"] == 1
    assert props["default_generation_settings"]["n_ctx"] == 2048
    assert "assistant" in props["chat_template"]


def test_models_list_has_the_model(client, model):
    assert [entry.id for entry in client.models.list().data] == [str(model)]


def test_chat_answers(client):
    answer = client.chat.completions.create(messages=QUESTION, **EXACT)
    choice = answer.choices[0]
    assert choice.message.role == "assistant"
    assert "blue" in choice.message.content
    assert choice.finish_reason == "stop"
    assert 0 < answer.usage.completion_tokens < 24
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_chat_stops_at_max_tokens(client):
    answer = client.chat.completions.create(messages=QUESTION, **dict(EXACT, max_tokens=2))
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 2


def test_stream_gives_the_same_text_in_pieces(client):
    whole = client.chat.completions.create(messages=QUESTION, **EXACT).choices[0].message.content
    chunks = list(client.chat.completions.create(messages=QUESTION, stream=True, **EXACT))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert len(pieces) > 1
    assert "".join(pieces) == whole
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "stop"


def test_chat_remembers_the_turns(client):
    turns = [{"role": "user", "content": "My name is Ottilie."},
             {"role": "assistant", "content": "Nice to meet you, Ottilie!"},
             {"role": "user", "content": "What is my name?"}]
    answer = client.chat.completions.create(messages=turns, **EXACT)
    assert "Ottilie" in answer.choices[0].message.content


def test_cached_prompt_is_used_again(server):
    request = {"messages": QUESTION, "temperature": 0, "max_tokens": 4}
    server.post("/v1/chat/completions", request)
    timings = server.post("/v1/chat/completions", request).json()["timings"]
    assert timings["cache_n"] > timings["prompt_n"]


@pytest.mark.parametrize("text", ["Hello world", "Gr\u00fc\u00dfe, \u4e16\u754c \U0001f600", "a\n\n\tb  c"])
def test_tokens_turn_back_into_text(server, text):
    tokens = server.post("/tokenize", {"content": text}).json()["tokens"]
    assert tokens and all(isinstance(token, int) for token in tokens)
    assert server.post("/detokenize", {"tokens": tokens}).json()["content"] == text


@pytest.mark.parametrize("body", ['{"messages": [', "", "\xff\xfe"])
def test_bad_json_is_an_error(server, body):
    answer = server.post("/v1/chat/completions", data=body.encode("latin-1"))
    assert answer.status_code == answer.json()["error"]["code"] == 400
    assert "parse error" in answer.json()["error"]["message"]


def test_missing_messages_is_the_callers_error(server):
    answer = server.post("/v1/chat/completions", {"max_tokens": 4})
    assert answer.status_code == 400
    assert "messages" in answer.json()["error"]["message"]


def test_prompt_over_the_context_is_the_callers_error(client):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(messages=[{"role": "user", "content": "word " * 3000}], **EXACT)
    assert "context" in json.dumps(error.value.body)


def test_server_goes_on_after_errors(server, client):
    server.post("/v1/chat/completions", data=b"{")
    assert client.chat.completions.create(messages=QUESTION, **EXACT).choices[0].message.content


def test_unknown_path_is_not_found(server):
    assert server.get("/no-such-path").status_code == 404
