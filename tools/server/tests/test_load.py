"""Eight clients at four slots with a policy: no error, no answer that belongs to another, no memory that stays.

At temperature 0 every answer equals that of the same request served alone, from an empty slot. How many requests share a batch
changes the order of additions and so the last bits of a logit: where some of the best are that close, any may win. How close is
measured on the plain cache: twice the largest change of a log probability between its own runs, alone and together. Such ties
are counted and printed; what follows one is another text and is not compared.
"""

import copy
import statistics
import threading
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
import requests
from kv_policy_server import EXACT, words
from server_process import ServerProcess
from tiny_model import SHIPPED_POLICY, make_tiny

pytestmark = pytest.mark.server

N_CLIENTS = 8
N_SLOTS = 4
N_REAL = 50  # requests of each client to the real model: twenty minutes on one thread
TIMEOUT = 600  # of one request that waits for others


class Load:
    """The requests of every client: most go on with the client's own text, longer or shorter than before; some are about something else.
    All begin alike, as with one system prompt: whatever a slot has had, some of it can be used again."""

    def __init__(self, n_requests, shortest, longest, n_predict, vocabulary, skew=2):
        self.n_predict = n_predict
        self.clients = []
        start = vocabulary(1, shortest // 2)
        for client in range(N_CLIENTS):
            text = (start + vocabulary(100 + client, longest))[:longest]
            lengths = words(client + 1, n_requests)
            prompts = []
            for i, number in enumerate(lengths):
                n = shortest + int((longest - shortest) * ((number - 4) / 249)**skew)  # more short ones than long ones
                prompts.append((start + vocabulary(10000 + 100 * client + i, n))[:n] if i % 3 == 2 else text[:n])
            prompts[0] = text  # buffers are touched to their end by the largest: that comes first
            self.clients.append(prompts)

    def part(self, n_requests):
        """The first requests of every client."""
        part = copy.copy(self)
        part.clients = [prompts[:n_requests] for prompts in self.clients]
        return part

    def prompts(self):
        return [prompt for prompts in self.clients for prompt in prompts]


def ask(server, prompt, n_predict, cache):
    body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "cache_prompt": cache, "return_tokens": True, "n_probs": 8, "ignore_eos": True}
    answer = requests.post(server.url + "/completion", json=body, timeout=TIMEOUT)
    assert answer.status_code == 200, answer.text[:300]
    found = answer.json()
    assert len(found["tokens"]) == n_predict
    best = [[(top["id"], top["logprob"]) for top in token["top_logprobs"]] for token in found["completion_probabilities"]]
    return found["tokens"], best, found["timings"]["cache_n"]


def alone(server, load):
    return {tuple(prompt): ask(server, prompt, load.n_predict, cache=False) for prompt in load.prompts()}


def together(server, load):
    """Answers as [(prompt, answer)] and the resident memory after every one."""
    answers, memory, lock = [], [], threading.Lock()
    process = psutil.Process(server.process.pid)

    def client(prompts):
        for prompt in prompts:
            answer = ask(server, prompt, load.n_predict, cache=True)
            with lock:
                answers.append((tuple(prompt), answer))
                memory.append(process.memory_info().rss)

    with ThreadPoolExecutor(N_CLIENTS) as pool:
        for done in [pool.submit(client, prompts) for prompts in load.clients]:
            done.result()
    return answers, memory


def compare(expected, answers):
    """(changes of log probabilities; where the tokens part, how far the one was behind the best when alone) over all answers."""
    changes, gaps = [], []
    for prompt, (tokens, best, _) in answers:
        tokens_alone, best_alone, _ = expected[prompt]
        for i, (token, token_alone) in enumerate(zip(tokens, tokens_alone)):
            if token != token_alone:
                # one of the best, or it is no tie
                assert token in dict(best_alone[i]), f"token {i} is {token}, alone the best are {best_alone[i]}"
                gaps.append(best_alone[i][0][1] - dict(best_alone[i])[token])
                break
            together_by_id = dict(best[i])
            changes += [abs(together_by_id[id] - logprob) for id, logprob in best_alone[i] if id in together_by_id]
    return changes, gaps


def check(model, policy, load, folder, capsys, *args, ctx):
    args = (*args, "--cache-ram", "0")  # that cache is meant to grow, up to its limit
    with ServerProcess(model, folder / "plain.log", *args, ctx=ctx, slots=N_SLOTS) as server:
        some = load.part(2)
        changes, plain_gaps = compare(alone(server, some), together(server, some)[0])
    tie = 2 * max(changes)
    assert all(gap <= tie for gap in plain_gaps)

    with ServerProcess(model, folder / "policy.log", *args, "--kv-policy", str(policy), ctx=ctx, slots=N_SLOTS) as server:
        expected = alone(server, load)
        assert len({tuple(tokens) for tokens, _, _ in expected.values()}) > 0.9 * len(expected), "answers too alike to be told apart"
        answers, memory = together(server, load)
        log = server.log()
    assert len(answers) == len(load.prompts())
    _, gaps = compare(expected, answers)
    early, late = memory[len(memory) // 10], memory[-1]
    n_cached = sum(answer[2] for _, answer in answers)
    assert n_cached > 0
    with capsys.disabled():
        print(f" [{len(answers)} answers, {n_cached} tokens reused, ties below {tie:.2g}: {len(gaps)}, "
              f"{len(plain_gaps)} of {len(some.prompts())} without a policy; "
              f"RSS {early / 2**20:.1f} -> {late / 2**20:.1f} MiB]", end="")
    assert all(gap <= tie for gap in gaps), f"gaps {sorted(gaps)[-3:]} behind the best, a tie is below {tie}"
    assert late <= 1.02 * early, f"resident memory grew from {early} to {late} bytes; median {statistics.median(memory)}"
    assert "error" not in log.lower().replace("error_type", ""), log[-2000:]


@pytest.mark.parametrize("unified", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["one cache", "a cache each"])
def test_eight_clients_at_four_slots(tmp_path, capsys, unified):
    model, policy = make_tiny(tmp_path, "qwen2", n_layer=2, only_text=True)
    load = Load(6, 64, 1000, 8, words)
    check(model, policy, load, tmp_path, capsys, *EXACT, "--kv-unified" if unified else "--no-kv-unified", ctx=4 * 1024)


@pytest.mark.slow
@pytest.mark.timeout(3 * 3600)
def test_eight_clients_at_four_slots_of_the_real_model(model, tmp_path, capsys):
    def text(seed, n):
        return [1000 + word for word in words(seed, n)]
    check(model, SHIPPED_POLICY, Load(N_REAL, 64, 1500, 8, text, skew=4), tmp_path, capsys, "--kv-unified", ctx=8192)
