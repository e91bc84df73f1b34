"""scripts/eval against llama-server and the default model: what it asks of the server is what the server gives."""

import asyncio
import json

import pytest
from server_process import ROOT, ServerProcess, need

from headwisekv.evaluate import __main__ as cli
from headwisekv.evaluate import report
from headwisekv.evaluate.client import Endpoint
from headwisekv.evaluate.run_needle import likelihood

pytestmark = pytest.mark.server
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture(scope="module")
def server(tmp_path_factory, model):
    with ServerProcess(model, tmp_path_factory.mktemp("eval") / "server.log", ctx=512) as process:
        yield process


def test_likelihood_is_of_the_forced_tokens(server):
    prompt = "The number of the house is 48. Remember: the number of the house is"

    async def measure():
        async with Endpoint(server.url) as endpoint:
            return [await likelihood(endpoint, prompt, value) for value in ("48", "73")]

    right, wrong = asyncio.run(measure())
    assert right["n_tokens"] == wrong["n_tokens"] == 3  # a blank and two digits
    assert wrong["logprob"] < right["logprob"] < 0 and not wrong["greedy"]

    # the same token by token, each from a request of its own that forces nothing
    tokens = server.post("/tokenize", {"content": f"{prompt} 73"}).json()["tokens"]
    total = 0.0
    for n in range(len(tokens) - 3, len(tokens)):
        answer = server.post("/completion", {"prompt": tokens[:n], "n_predict": 1, "n_probs": 2000, "temperature": 0}).json()
        total += next(item["logprob"] for item in answer["completion_probabilities"][0]["top_logprobs"] if item["id"] == tokens[n])
    assert wrong["logprob"] == pytest.approx(total, abs=0.5)  # Q4_1 weights: batches of other sizes round differently


def test_ruler_example(server, tmp_path, monkeypatch):
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is missing: the essays and word lists are not part of the repository")
    monkeypatch.setattr(report, "heat_maps", lambda *_: b"")
    assert cli.main(["ruler", "--base-url", server.url, "--data", str(SHARED), "--out", str(tmp_path), "--lengths", "512", "--examples", "1",
                     "--tasks", "niah_single_2,niah_multiquery"]) == 0
    records = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()[1:]]
    assert [len(record["answers"]) for record in records] == [1, 4]
    assert all(470 < record["tokens"] <= 512 and record["text"] and record["score"] in (0, 0.25, 0.5, 0.75, 1) for record in records)


def test_dialogue_with_tools(tmp_path, model, capsys):
    # the model's own template knows no tools
    template = need(ROOT / "build" / "llama.cpp" / "models" / "templates" / "meta-llama-Llama-3.1-8B-Instruct.jinja", "run make build")
    with ServerProcess(model, tmp_path / "server.log", "--jinja", "--chat-template-file", str(template), ctx=1024) as server:
        assert cli.main(["toolcall", "--base-url", server.url, "--out", str(tmp_path), "--max-tokens", "64"]) == 0
    steps = capsys.readouterr().out.splitlines()
    assert len(steps) == 2 and steps[0].startswith("ok: the model calls get_reservation(") and steps[1].startswith("ok: the model answers")
    messages = json.loads((tmp_path / "results.json").read_text())["messages"]
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert messages[3]["tool_call_id"] == messages[2]["tool_calls"][0]["id"]
