"""The official OpenAI client against a server with a policy, on the real default model."""

import contextlib
import json
import math

import jsonschema
import openai
import pytest
import requests
from server_process import ROOT, TIMEOUT, ServerProcess, need
from tiny_model import SHIPPED_POLICY, make_tiny

pytestmark = pytest.mark.server

KEY = "sk-test"
QUESTION = [{"role": "user", "content": "What color is the sky?"}]
EXACT = {"model": "default", "temperature": 0, "seed": 1}
FRESH = {"extra_body": {"cache_prompt": False}}


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    args = ("--kv-policy", str(SHIPPED_POLICY), "--jinja", "--api-key", KEY)
    with ServerProcess(model, tmp_path_factory.mktemp("openai") / "log", *args, ctx=2048) as process:
        yield process


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key=KEY, timeout=TIMEOUT, max_retries=0) as client:
        yield client


def test_the_server_has_a_policy(server):
    props = requests.get(server.url + "/props", headers={"Authorization": f"Bearer {KEY}"}, timeout=TIMEOUT).json()
    assert props["kv_policy"]["bytes_saved"] > 0


#
# chat
#


def test_chat(client):
    answer = client.chat.completions.create(messages=QUESTION, max_tokens=16, stop=["."], **EXACT, **FRESH)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert "blue" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_chat_stream_ends_with_usage(client):
    whole = client.chat.completions.create(messages=QUESTION, max_tokens=12, **EXACT, **FRESH)
    chunks = list(client.chat.completions.create(messages=QUESTION, max_tokens=12, stream=True, stream_options={"include_usage": True}, **EXACT, **FRESH))
    assert {chunk.id for chunk in chunks} == {chunks[0].id} and {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices][-1] == "length"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.prompt_tokens == whole.usage.prompt_tokens and chunks[-1].usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_chat_of_several_turns_reuses_the_cache(client):
    turns = [{"role": "user", "content": "My name is Ottilie."}]
    first = client.chat.completions.create(messages=turns, max_tokens=8, **EXACT)
    turns += [{"role": "assistant", "content": "Nice to meet you, Ottilie!"}, {"role": "user", "content": "What is my name?"}]
    second = client.chat.completions.create(messages=turns, max_tokens=16, **EXACT)
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens - 1
    assert "Ottilie" in second.choices[0].message.content


def test_logprobs_of_chat(client):
    answer = client.chat.completions.create(messages=QUESTION, max_tokens=6, logprobs=True, top_logprobs=3, **EXACT, **FRESH)
    content = answer.choices[0].logprobs.content
    assert len(content) == 6
    assert "".join(token.token for token in content) == answer.choices[0].message.content
    for token in content:
        best = token.top_logprobs
        assert len(best) == 3 and [top.logprob for top in best] == sorted((top.logprob for top in best), reverse=True)
        assert best[0].token == token.token  # greedy
        assert token.logprob <= 0 and sum(math.exp(top.logprob) for top in best) <= 1.001
        assert bytes(token.bytes).decode() == token.token


def test_answers_sampled_by_the_same_seed(client):
    ask = {"model": "default", "messages": QUESTION, "max_tokens": 12, "temperature": 1.5, **FRESH}
    texts = [client.chat.completions.create(seed=seed, **ask).choices[0].message.content for seed in (7, 7, 8)]
    assert texts[0] == texts[1] != texts[2]


def test_responses_api(client):
    answer = client.responses.create(model="default", input="What color is the sky?", max_output_tokens=16, temperature=0)
    assert answer.status == "completed" and "sky" in answer.output_text.lower()
    events = list(client.responses.create(model="default", input="What color is the sky?", max_output_tokens=16, temperature=0, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == answer.output_text
    assert events[-1].type == "response.completed"


#
# completions
#


def test_completion(client):
    answer = client.completions.create(prompt="The capital of France is", max_tokens=4, **EXACT, **FRESH)
    assert answer.object == "text_completion" and "Paris" in answer.choices[0].text
    assert answer.usage.completion_tokens == 4


def test_completion_stream(client):
    whole = client.completions.create(prompt="One, two, three,", max_tokens=10, **EXACT, **FRESH)
    chunks = list(client.completions.create(prompt="One, two, three,", max_tokens=10, stream=True, stream_options={"include_usage": True}, **EXACT, **FRESH))
    assert "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == whole.choices[0].text
    assert chunks[-1].usage.completion_tokens == 10


def test_completions_of_several_prompts(client):
    prompts = ["One, two, three,", "The capital of France is"]
    both = client.completions.create(prompt=prompts, max_tokens=4, **EXACT, **FRESH)
    alone = [client.completions.create(prompt=prompt, max_tokens=4, **EXACT, **FRESH).choices[0].text for prompt in prompts]
    assert [choice.index for choice in both.choices] == [0, 1]
    assert [choice.text for choice in both.choices] == alone


def test_logprobs_of_completions(client):
    answer = client.completions.create(prompt="The capital of France is", max_tokens=3, logprobs=2, **EXACT, **FRESH)
    # llama.cpp gives them in the form of the chat API
    content = answer.choices[0].logprobs.content
    assert len(content) == 3 and all(len(token["top_logprobs"]) == 2 for token in content)


#
# answers of a given form
#

PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "tags"],
          "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                         "tags": {"type": "array", "items": {"enum": ["red", "green"]}, "minItems": 1, "maxItems": 2}}}


def test_json_schema(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    answer = client.chat.completions.create(messages=[{"role": "user", "content": "Describe Anna, 31, who likes red."}], max_tokens=120,
                                            response_format=form, **EXACT)
    assert answer.choices[0].finish_reason == "stop"
    jsonschema.validate(json.loads(answer.choices[0].message.content), PERSON)


def test_json_schema_in_a_stream(client):
    form = {"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": PERSON}}
    with client.chat.completions.stream(messages=[{"role": "user", "content": "Describe Bob, 8."}], max_tokens=120, response_format=form, **EXACT) as stream:
        answer = stream.get_final_completion()
    jsonschema.validate(json.loads(answer.choices[0].message.content), PERSON)


def test_json_object(client):
    form = {"type": "json_object"}
    answer = client.chat.completions.create(messages=[{"role": "user", "content": "Say hello as JSON with one short field."}], max_tokens=40,
                                            response_format=form, **EXACT)
    if answer.choices[0].finish_reason == "stop":  # a small model may write on for long
        assert isinstance(json.loads(answer.choices[0].message.content), dict)
    else:
        assert answer.choices[0].message.content.lstrip().startswith("{")


#
# tools
#

WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city.",
    "parameters": {"type": "object", "additionalProperties": False, "required": ["city", "unit"],
                   "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}}}}}
ASK_WEATHER = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]


@contextlib.contextmanager
def client_with_template(name, model, folder):
    """The model's own chat template knows no tools; the package has some that do."""
    template = need(ROOT / "build" / "llama.cpp" / "models" / "templates" / f"{name}.jinja", "run make build")
    with ServerProcess(model, folder / "log", "--kv-policy", str(SHIPPED_POLICY), "--jinja", "--chat-template-file", str(template)) as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=TIMEOUT, max_retries=0) as client:
            yield client


@pytest.fixture(scope="module")
def forced(model, tmp_path_factory):
    """A required call is the only answer that the grammar of this template allows."""
    with client_with_template("meetkai-functionary-medium-v3.2", model, tmp_path_factory.mktemp("forced")) as client:
        yield client


@pytest.fixture(scope="module")
def free(model, tmp_path_factory):
    with client_with_template("NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", model, tmp_path_factory.mktemp("free")) as client:
        yield client


def check_call(call):
    assert call.type == "function" and call.function.name == "get_weather" and call.id
    arguments = json.loads(call.function.arguments)
    jsonschema.validate(arguments, WEATHER["function"]["parameters"])
    return arguments


def test_a_required_tool_is_called(forced):
    answer = forced.chat.completions.create(messages=ASK_WEATHER, tools=[WEATHER], tool_choice="required", max_tokens=120, **EXACT)
    assert answer.choices[0].finish_reason == "tool_calls"
    check_call(answer.choices[0].message.tool_calls[0])


def test_a_required_tool_is_called_in_a_stream(forced):
    with forced.chat.completions.stream(messages=ASK_WEATHER, tools=[WEATHER], tool_choice="required", max_tokens=120, **EXACT) as stream:
        answer = stream.get_final_completion()
    assert answer.choices[0].finish_reason == "tool_calls"
    check_call(answer.choices[0].message.tool_calls[0])


def conversation(*cities):
    """Questions, calls, results and answers."""
    turns = []
    for i, city in enumerate(cities):
        call = {"id": f"call_{i}", "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"city": city, "unit": "celsius"})}}
        turns += [{"role": "user", "content": f"What is the weather in {city}, in celsius?"}, {"role": "assistant", "content": None, "tool_calls": [call]},
                  {"role": "tool", "tool_call_id": f"call_{i}", "content": f"{i + 7} degrees"}, {"role": "assistant", "content": f"It is {i + 7} degrees in {city}."}]
    return turns


def test_a_tool_is_called_as_before(free):
    """Nothing forces the model here: it goes on as the conversation did."""
    turns = [*conversation("London", "Rome", "Oslo"), *ASK_WEATHER]
    answer = free.chat.completions.create(messages=turns, tools=[WEATHER], tool_choice="auto", max_tokens=60, **EXACT)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert check_call(answer.choices[0].message.tool_calls[0])["city"] == "Paris"


def test_a_tools_result_is_taken(free):
    turns = conversation("London", "Rome", "Paris")[:-1]
    answer = free.chat.completions.create(messages=turns, tools=[WEATHER], tool_choice="none", max_tokens=16, **EXACT)
    assert "9 degrees" in answer.choices[0].message.content and not answer.choices[0].message.tool_calls


#
# errors
#


def test_embeddings_are_refused(client):
    with pytest.raises(openai.InternalServerError) as error:  # 501
        client.embeddings.create(model="default", input="text")
    assert error.value.status_code == 501 and error.value.type == "not_supported_error" and "--embeddings" in error.value.message


def test_embeddings_with_a_policy(tmp_path):
    """A server that is started for them: policies change nothing of the interface."""
    model, policy = make_tiny(tmp_path)
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(policy), "--embeddings", "--pooling", "mean") as server:
        with openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=TIMEOUT, max_retries=0) as client:
            answer = client.embeddings.create(model="default", input=["a text", "another text"])
    assert [len(entry.embedding) for entry in answer.data] == [128, 128]
    assert all(abs(sum(x * x for x in entry.embedding) - 1) < 1e-3 for entry in answer.data)


def test_a_wrong_key(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="wrong", timeout=TIMEOUT, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError) as error:
            client.models.list()
    assert error.value.type == "authentication_error"


def test_an_unknown_endpoint(client):
    with pytest.raises(openai.NotFoundError):
        client.files.list()


@pytest.mark.parametrize("bad", [{"max_tokens": -5}, {"n": 0}, {"response_format": {"type": "x"}}, {"temperature": "hot"}, {"messages": "x"}], ids=str)
def test_bad_requests(client, bad):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(**{"messages": QUESTION, "model": "default", **bad})
    assert error.value.status_code == 400 and error.value.type == "invalid_request_error" and error.value.message


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_over_the_context(client, stream):
    with pytest.raises(openai.BadRequestError) as error:
        client.chat.completions.create(messages=[{"role": "user", "content": "word " * 3000}], stream=stream, **EXACT)
    assert error.value.type == "exceed_context_size_error" and error.value.body["n_ctx"] == 2048


def test_a_server_that_is_not_there():
    with openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="none", timeout=5, max_retries=0) as client:
        with pytest.raises(openai.APIConnectionError):
            client.models.list()
