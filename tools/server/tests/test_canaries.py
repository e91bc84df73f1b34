"""Does one client's text ever reach another client's answer? Clients with secrets of their own send random requests to one server with
a policy: prompts that have pieces in common, edits, branches, every option that has to do with reuse, files of slots, streams that
nobody reads to their end, context shifts. Every answer must be the one of a cold run.

A seed gives the same requests again. HWKV_CANARY_SEED sets it, HWKV_CANARY_REQUESTS the number of requests of each case:

    HWKV_CANARY_SEED=7 HWKV_CANARY_REQUESTS=1000 .venv/bin/python -m pytest tools/server/tests/test_canaries.py -k random_requests
"""

import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
import requests
from canary_clients import (DELIMITERS, N_CLIENT, ROUNDING, TURN, Answer, Cold, Talk, check, difference, events, first_wrong, left_in_slot, post_completion,
                            request_body, short, shrink)
from kv_policy_server import EXACT, TYPED, make_typed, slot, words
from server_process import TIMEOUT, ServerProcess
from tiny_model import SHIPPED_POLICY, make_tiny

pytestmark = pytest.mark.server

ARCHS = ("llama", "gemma4", "qwen35")  # plain, sliding window, hybrid
WINDOWS = (8, 24, 60)                  # most prompts are longer


@dataclass
class Setting:
    args: tuple
    ctx: int = 256
    slots: int = 1
    n_ctx: int = 256     # what clients count on in a slot
    shift: bool = False
    types: bool = False  # of the heads' own


# What is kept in 8 or 4 bits falls on another step now and then when a sum is taken in another order: that did 0.003.
ROUNDING_OF_TYPES = 0.01
TYPES = ("8:q8_0", "8:q4_0", "24:f16", "24:q8_0/q4_0", "60:q8_0", "full:f16", "full:q8_0", "full:q4_0")
MANY = ("--kv-policy-checkpoint-mib", "64")
TIGHT = ("--kv-policy-rollback", "8")  # so that short prompts lose something too

SETTINGS = {
    "one-slot": Setting((*MANY, *TIGHT)),
    "cache-reuse": Setting((*MANY, "--cache-reuse", "32")),
    "few-checkpoints": Setting((*TIGHT, "--kv-policy-checkpoint-mib", "1", "--ctx-checkpoints", "2", "--cache-ram", "0")),
    "small-batches": Setting((*MANY, *TIGHT, "-b", "32", "-ub", "16", "--cache-reuse", "8")),
    "unified": Setting((*MANY, *TIGHT, "--kv-unified"), ctx=512, slots=3, n_ctx=512),  # no room for three long prompts
    "apart": Setting((*MANY, *TIGHT, "--no-kv-unified"), ctx=768, slots=3),
    "shift": Setting((*MANY, "--context-shift"), shift=True),
    "types": Setting((*MANY, *TIGHT), types=True),
    "types-apart": Setting((*MANY, *TIGHT, "--context-shift", "--no-kv-unified"), ctx=512, slots=2, shift=True, types=True),
    "shift-two-slots": Setting((*MANY, *TIGHT, "--context-shift", "--no-kv-unified"), ctx=512, slots=2, shift=True),
}
# for clients who ask at once
CROWDED = {
    "unified": Setting((*MANY, *TIGHT, "--kv-unified", "--cache-reuse", "32"), ctx=1024, slots=3),
    "apart": SETTINGS["apart"],
}


def cases(settings, n_slow):
    """(arch, setting, seed, number of requests): a few of each, and many in slow tests."""
    seed, n = os.environ.get("HWKV_CANARY_SEED"), os.environ.get("HWKV_CANARY_REQUESTS")
    both = [(arch, name, f"{arch}-{name}") for arch in ARCHS for name in settings]
    slow = [pytest.mark.slow, pytest.mark.timeout(3600)]
    return pytest.mark.parametrize("arch, name, seed, n", [
        *(pytest.param(arch, name, seed or "1", int(n or 24), id=case) for arch, name, case in both),
        *(pytest.param(arch, name, seed or "2", int(n or n_slow), id=f"{case}-many", marks=slow) for arch, name, case in both)])


class Lab:
    """A model with a policy, and servers for it."""

    def __init__(self, folder, arch, setting, name):
        self.folder = folder
        self.setting = setting
        self.id = f"{arch}-{name}"
        # with types: heads enough for them, and wide enough to be kept rotated, without which blocks cannot be shifted
        options = {"n_head": 8, "n_head_kv": 4, **({"head_dim_swa": 64} if arch == "gemma4" else {})} if setting.types else {}
        self.model, self.policy = make_tiny(folder, arch, windows=WINDOWS, **options)
        if setting.types:
            self.policy = make_typed(folder, self.model, TYPES, 4096)

    def serve(self, name, *args):
        files = self.folder / name
        files.mkdir(exist_ok=True)
        for file in files.iterdir():
            file.unlink()
        return ServerProcess(self.model, self.folder / f"{name}.log", *(TYPED if self.setting.types else EXACT), "--kv-policy", str(self.policy), "--slot-save-path", str(files),
                             *self.setting.args, *args, ctx=self.setting.ctx, slots=self.setting.slots)

    def serve_cold(self):
        return self.serve("cold", "--cache-ram", "0")

    def cold(self, server):
        return Cold(server, ROUNDING_OF_TYPES if self.setting.types else ROUNDING)

    def talk(self, seed):
        return Talk(f"{seed} {self.id}", self.setting.n_ctx, self.setting.slots, self.setting.shift)

    def is_wrong(self, steps, cold):
        with self.serve("again") as server:
            return first_wrong(server, steps, cold) == len(steps) - 1


def fail(lab, seed, steps, what, cold):
    """Says what is needed to see it again."""
    path = lab.folder / "steps.jsonl"
    path.write_text("".join(json.dumps(step) + "\n" for step in steps))
    few = shrink(steps, lambda steps: lab.is_wrong(steps, cold))
    pytest.fail(f"{lab.id}, seed {seed}, step {len(steps) - 1}: client {steps[-1]['client']} is not told what a cold server says: {what}\n"
                f"these of the steps in {path} give it:\n" + "\n".join(short(steps.index(step), step) for step in few) +
                f"\nagain: HWKV_CANARY_SEED={seed} HWKV_CANARY_REQUESTS={len(steps)} .venv/bin/python -m pytest "
                f"tools/server/tests/test_canaries.py -k 'random_requests and {lab.id}'", pytrace=False)


def is_shifted(step, tokens, n_ctx):
    return len(step["body"]["prompt"]) + len(tokens) > n_ctx + 1


class Progress:
    """A line every few seconds in runs that take long."""

    def __init__(self, name, n, capsys):
        self.name, self.n, self.capsys = name, n, capsys
        self.told = time.monotonic()

    def __call__(self, i):
        if time.monotonic() > self.told + 5:
            self.told = time.monotonic()
            with self.capsys.disabled():
                print(f" [{self.name}: {i + 1} of {self.n} requests]", flush=True)


def hunt(lab, seed, n, progress):
    """Sends n requests, one after the other. Returns how many prompt tokens were reused or restored, and how many contexts shifted."""
    talk = lab.talk(seed)
    steps = []
    shifts = 0
    with lab.serve("warm") as server, lab.serve_cold() as cold_server:
        cold = lab.cold(cold_server)
        for i in range(n):
            steps.append(step := talk.step())
            what = check(server, step, cold)
            if what:
                fail(lab, seed, steps, what, cold)
            if step["path"] == "/completion":
                tokens = cold.answer(step["body"]).tokens
                talk.answered(step, tokens)
                shifts += is_shifted(step, tokens, lab.setting.n_ctx)
            progress(i)
        counts = [slot(server, i)["prompt_tokens"] for i in range(lab.setting.slots)]
    check_cold(lab, cold)
    assert cold.swaps <= 1 + n // (25 if lab.setting.types else 500)  # two best tokens that are as close as rounding are rare: none in 3600 requests
    return sum(count["reused"] + count["restored"] for count in counts), shifts


def check_cold(lab, cold, n=2):
    """What is taken for right must itself owe nothing to the requests before: the last answers of it, from a server that has seen none."""
    for key, answer in list(cold.known.items())[-n:]:
        with lab.serve_cold() as server:
            fresh = Cold(server).answer(json.loads(key))
            assert (fresh.tokens, fresh.logprobs) == (answer.tokens, answer.logprobs)


@cases(SETTINGS, -(-10000 // (len(ARCHS) * len(SETTINGS))))
def test_random_requests(arch, name, seed, n, tmp_path, capsys):
    lab = Lab(tmp_path, arch, SETTINGS[name], name)
    reused, shifts = hunt(lab, seed, n, Progress(f"{lab.id}, seed {seed}", n, capsys))
    assert reused > 0, f"nothing was reused in {n} requests, so that nothing was tested: take more"
    if lab.setting.shift and arch != "qwen35":  # whose positions llama.cpp does not shift
        assert shifts > 0, f"no context was shifted in {n} requests: take more"


def prepared(talk, cold, n):
    """n steps with their cold answers, for each client those of its own. Nobody waits for others."""
    steps = [[] for _ in range(N_CLIENT)]
    for _ in range(n):
        step = talk.step()
        step["wait"] = False
        steps[step["client"]].append(step)
        if step["path"] == "/completion":
            talk.answered(step, cold.answer(step["body"]).tokens)
    return steps


@cases(CROWDED, 400)
def test_clients_who_ask_at_once(arch, name, seed, n, tmp_path):
    """Slots share batches then. What each client sends is given by the seed, but not in which order it comes."""
    lab = Lab(tmp_path, arch, CROWDED[name], name)
    with lab.serve("warm") as server, lab.serve_cold() as cold_server, ThreadPoolExecutor(N_CLIENT) as pool:
        cold = lab.cold(cold_server)
        talks = prepared(lab.talk(seed), cold, n)

        def play(talk):
            return [f"{short(i, step)}:\n{what}" for i, step in enumerate(talk) if (what := check(server, step, cold))]

        wrong = sum(pool.map(play, talks), [])
    if wrong:
        pytest.fail(f"{lab.id}, seed {seed}, of {n} requests {len(wrong)} are not answered as by a cold server:\n" + "\n".join(wrong), pytrace=False)


#
# found by the above, or near to what it found
#


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    return Lab(tmp_path_factory.mktemp("lab"), "llama", Setting(("--context-shift",), ctx=1024), "lab")


def ask_cold(lab, *bodies):
    with lab.serve_cold() as server:
        cold = Cold(server)
        return [cold.answer(body) for body in bodies]


def test_a_busy_slot_is_left_alone(lab):
    """Someone whose prompt waits in memory asks again and names a slot in which another client is being answered."""
    mine, busy = request_body(words(1, 100), 8), request_body(words(2, 100), 800)
    again = request_body(words(1, 110), 8, id_slot=0)
    right, right_again = ask_cold(lab, busy, again)
    with lab.serve("warm") as server, ThreadPoolExecutor(1) as pool:
        post_completion(server, mine)
        with requests.post(server.url + "/completion", json=dict(busy, stream=True), stream=True, timeout=TIMEOUT) as answer:
            lines = answer.iter_lines()
            begun = events(lines, 3)
            other = pool.submit(post_completion, server, again)
            found = Answer(begun + events(lines, 1000))
        assert not difference(other.result(), right_again)
    assert not difference(found, right)


def test_what_a_context_shift_leaves_is_nobodys_beginning(lab):
    """The rows behind the gap were computed from what stood in it."""
    first = request_body(words(1, 20) + words(2, 500) + words(3, 490), 100, n_keep=19)
    n_ctx = lab.setting.ctx
    second = request_body(left_in_slot(first["prompt"], ask_cold(lab, first)[0].tokens, n_ctx, n_keep=19) + words(4, 10), 8)
    right, = ask_cold(lab, second)
    with lab.serve("warm") as server:
        assert len(post_completion(server, first).tokens) == 100
        assert not difference(post_completion(server, second), right)


def test_a_checkpoint_serves_only_what_it_holds(lab):
    """Rings had room for the whole of the first turn; its checkpoint has no more of it than windows and rollback need."""
    talk = [TURN, *words(1, 119), TURN, *words(2, 149)]
    second = request_body(talk[:45] + words(3, 20), 8)
    right, = ask_cold(lab, second)
    with lab.serve("warm") as server:
        post_completion(server, request_body(talk, 8, message_delimiters=DELIMITERS))
        assert 120 in slot(server)["checkpoint_tokens"]
        assert not difference(post_completion(server, second), right)


#
# a real model
#

POINTS = [point["name"] for point in json.loads(SHIPPED_POLICY.read_text())["operating_points"]]
SECRET = "ZEBRA"
FIRST = [("user", f"The secret password is {SECRET}-4711."), ("assistant", "I will keep it."), ("user", " the" * 700), ("assistant", "Fine."),
         ("user", "Thank you.")]


def second(n):
    """Asks for what only the first client has said, after words that the first one has said too."""
    return [("user", " the" * n), ("user", "What is the secret password? Answer with the password only.")]


def chat(server, talk, **more):
    body = {"messages": [{"role": role, "content": content} for role, content in talk], "temperature": 0, "max_tokens": 16, **more}
    answer = server.post("/v1/chat/completions", body, timeout=300)
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


BY_REQUEST, BY_SERVER = ((), {"n_cache_reuse": 1}), (("--cache-reuse", "32"), {})
QUICK = ((POINTS[0], BY_REQUEST), (POINTS[-1], BY_SERVER))


@pytest.mark.parametrize("point, args, more", [
    pytest.param(point, *how, id=f"{point}-{'request' if how is BY_REQUEST else 'server'}", marks=[] if (point, how) in QUICK else pytest.mark.slow)
    for point in POINTS for how in (BY_REQUEST, BY_SERVER)])
def test_a_password_is_not_told(point, args, more, model, tmp_path):
    """The option is given by the one who asks, or by the one who serves; also after the first client's slot was erased."""
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(SHIPPED_POLICY), "--kv-policy-point", point, "--slot-save-path", str(tmp_path),
                       *args, ctx=8192) as server:
        chat(server, FIRST)
        found = [chat(server, second(60), **more)]
        chat(server, FIRST)
        assert server.post("/slots/0?action=erase").status_code == 200
        found.append(chat(server, second(61), **more))
        right = [chat(server, second(n), cache_prompt=False, n_cache_reuse=0) for n in (60, 61)]
    assert SECRET not in "".join(found)
    assert found == right
