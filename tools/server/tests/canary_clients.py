"""Clients with secrets of their own who ask one llama-server, and a second server that says what each of them must be told.

A Talk draws what the clients send. It is drawn from the seed and from the cold answers only, so that a seed gives the same requests
again, whatever the server under test says. Each step is whole in itself: a list of steps can be played again, or a part of it.
"""

import json
import random
import socket
import time

import requests
from kv_policy_server import words
from server_process import TIMEOUT

TURN = 1  # <s>: begins a turn and nothing else
DELIMITERS = [{"role": "user", "delimiter": "<s>"}]
N_CLIENT = 5
N_COMMON = 200  # words that all clients use; 20 words for each client's secrets come after them
FIRST = 4
N_SECRET = 20
# A token that ends within a character is told with the next one, without its probability: none of those
NO_BYTES = [[token, False] for token in range(3 + 128, 3 + 256)]

# Batches of other sizes round differently: by 9e-5 at most in thousands of answers, while lost or foreign keys did 0.0014 and more
ROUNDING = 1e-3


#
# what clients say
#


def secret_words(client):
    first = FIRST + N_COMMON + N_SECRET * client
    return range(first, first + N_SECRET)


def left_in_slot(prompt, answer, n_ctx, n_keep=0, n_discard=0):
    """The tokens a slot holds after an answer: with context shifts some in the middle are gone."""
    held = list(prompt)
    keep = min(n_ctx - 4, (len(prompt) if n_keep < 0 else n_keep) + 1)
    for token in answer[:-1]:
        if len(held) + 1 >= n_ctx:
            left = len(held) - keep
            drop = max(0, min(n_discard or left // 2, left - 1))
            held = held[:keep] + held[keep + drop:]
        held.append(token)
    return held


def request_body(prompt, n, **more):
    return {"prompt": list(prompt), "n_predict": n, "temperature": 0, "return_tokens": True, "n_probs": 2, "ignore_eos": True,
            "logit_bias": NO_BYTES, **more}


class Talk:
    """Random requests of clients who have beginnings, pieces and ends in common, at other places in each one's text."""

    def __init__(self, seed, n_ctx, slots, shift):
        self.random = random.Random(seed)
        self.n_ctx = n_ctx
        self.slots = slots
        self.shift = shift
        self.longest = n_ctx - 8 if shift else n_ctx - 24
        self.pieces = [self.common(n) for n in (6, 10, 16, 20, 25, 33, 40, 50)]
        self.heads = [[TURN, *self.common(n)] for n in (3, 12, 30)]
        self.texts = [self.fresh(i) for i in range(N_CLIENT)]
        self.held = [list(text) for text in self.texts]  # what the client's last answer left in a slot
        self.files = []

    def common(self, n):
        return words(self.random.randrange(2**31), n, FIRST, N_COMMON)

    def secret(self, client):
        return words(self.random.randrange(2**31), self.random.randint(3, 12), secret_words(client)[0], N_SECRET)

    def turn(self, client):
        parts = [self.random.choice(self.pieces) for _ in range(self.random.randint(1, 3))]
        if self.random.random() < 0.6:
            parts.insert(self.random.randrange(len(parts) + 1), self.secret(client))
        if self.random.random() < 0.3:
            parts.append(self.common(self.random.randint(1, 12)))
        return [TURN, *sum(parts, [])]

    def fresh(self, client):
        text = [*self.random.choice(self.heads), *self.secret(client)]
        for _ in range(self.random.randint(1, 2)):
            text += self.turn(client)
        return text

    def other(self, client):
        return self.random.choice([i for i in range(N_CLIENT) if i != client])

    # each changes what a client has said so far

    def append(self, client):
        return self.held[client] + self.turn(client)

    def again(self, client):
        return self.texts[client]

    def edit(self, client):
        text = self.texts[client]
        at = self.random.randrange(len(text))
        n = self.random.randint(1, 20)
        new = self.random.choice([self.common(self.random.randint(0, 20)), self.secret(client), self.random.choice(self.pieces)])
        return text[:at] + new + text[at + n:]

    def branch(self, client):
        text = self.texts[client]
        at = self.random.choice([0, *(i for i, token in enumerate(text) if token == TURN)])
        return text[:at] + self.turn(client)

    def copy(self, client):
        """What another client has said, without the secrets: all else stands in the server's memory, but further back."""
        other = self.other(client)
        return [token for token in self.held[other] if token not in secret_words(other)]

    def begin_as(self, client):
        """The beginning of what another client's slot holds now, which after a context shift is not what was processed."""
        held = self.held[self.other(client)]
        return held[:self.random.randint(1, len(held))] + self.random.choice([[], self.turn(client)])

    KINDS = {"append": 5, "again": 2, "edit": 4, "branch": 3, "copy": 4, "begin_as": 2, "fresh": 1}

    def completion(self, client):
        kind = self.random.choices(list(self.KINDS), self.KINDS.values())[0]
        text = getattr(self, kind)(client)
        if not text or len(text) > self.longest:
            kind, text = "fresh", self.fresh(client)[:self.longest]
        self.texts[client] = text
        step = {"kind": kind, "client": client, "path": "/completion", "body": self.body(text)}
        how = self.random.random()
        if how < 0.08:
            step["read"] = self.random.randint(0, 6)  # events of a stream, which is closed then
        elif how < 0.11:
            step["read"] = -1                         # not even the headers
        if "read" in step:
            step["body"]["stream"] = True
            step["body"]["n_predict"] = max(step["body"]["n_predict"], 12)
            step["wait"] = self.slots == 1 or self.random.random() < 0.7  # for the slot; or the next one comes while it still works
        return step

    def body(self, text):
        draw = self.random
        body = request_body(text, draw.choice([0, 1, 2, 4, 8, 12]), cache_prompt=draw.random() < 0.9)
        if draw.random() < 0.6:
            body["n_cache_reuse"] = draw.choice([0, 1, 1, 16, 64])
        if draw.random() < 0.5:
            body["id_slot"] = draw.randrange(self.slots)
        if draw.random() < 0.7:
            body["message_delimiters"] = DELIMITERS
        if self.shift:
            body["n_keep"] = draw.choice([0, 3, 12, 40, -1])
            body["n_discard"] = draw.choice([0, 0, 10, 50])
            if draw.random() < 0.5 and len(text) > self.n_ctx // 2:  # others would take long to get there
                body["n_predict"] = max(1, self.n_ctx - len(text) + draw.randint(-5, 40))
        return body

    def slot_action(self, client):
        action = self.random.choice(["erase", "save", "save", "restore", "restore"])
        if action == "restore" and not self.files:
            action = "save"
        name = f"client-{client}.bin"
        if action == "restore":
            name = self.random.choice(self.files)  # of whatever client
        elif action == "save" and name not in self.files:
            self.files.append(name)
        return {"kind": action, "client": client, "path": f"/slots/{self.random.randrange(self.slots)}?action={action}", "body": {"filename": name}}

    def step(self):
        client = self.random.randrange(N_CLIENT)
        return self.slot_action(client) if self.random.random() < 0.12 else self.completion(client)

    def answered(self, step, tokens):
        """The cold answer to a step, which the client goes on from."""
        body = step["body"]
        self.held[step["client"]] = left_in_slot(body["prompt"], tokens, self.n_ctx, body.get("n_keep", 0), body.get("n_discard", 0))


#
# one step
#


class Answer:
    """Tokens, and for each the logarithms of its own probability and of the two best."""

    def __init__(self, bodies):
        self.cached = next((body["timings"]["cache_n"] for body in bodies if "timings" in body), None)
        self.tokens = [token for body in bodies for token in body["tokens"]]
        self.logprobs = [[entry["logprob"], *(top["logprob"] for top in entry["top_logprobs"])]
                         for body in bodies for entry in body.get("completion_probabilities", [])]


def post_completion(server, body):
    answer = server.post("/completion", body)
    assert answer.status_code == 200, answer.text
    return Answer([answer.json()])


def events(lines, n):
    """The next n of a stream, or those that are left."""
    out = []
    while len(out) < n and not (out and out[-1]["stop"]):
        line = next(lines)
        if line.startswith(b"data: {"):
            out.append(json.loads(line[6:]))
    return out


def read_some(server, body, n):
    with requests.post(server.url + "/completion", json=body, stream=True, timeout=TIMEOUT) as answer:
        assert answer.status_code == 200, answer.text
        return Answer(events(answer.iter_lines(), n))


def vanish(server, body):
    data = json.dumps(body).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as client:
        client.sendall(head.encode() + data)


def wait_until_idle(server):
    deadline = time.monotonic() + TIMEOUT
    while any(slot["is_processing"] for slot in server.get("/slots").json()):
        assert time.monotonic() < deadline, "a slot still works for a client that is gone"
        time.sleep(0.005)


def act_on_slot(server, step):
    answer = server.post(step["path"], step["body"])
    # a file may have no room beside other slots; a part of a list of steps may lack the one that saved it
    refused = step["kind"] == "restore" and answer.status_code == 400 and any(why in answer.text for why in ("no room", "no such file"))
    assert answer.status_code == 200 or refused, answer.text


def perform(server, step):
    """What came of it, or None where nobody looks."""
    if step["path"] != "/completion":
        return act_on_slot(server, step)
    if "read" not in step:
        return post_completion(server, step["body"])
    found = vanish(server, step["body"]) if step["read"] < 0 else read_some(server, step["body"], step["read"])
    if step["wait"]:
        wait_until_idle(server)
    return found


#
# what is right
#


class Cold:
    """A server of the same flags that processes every prompt from the start, in a slot that was erased before."""

    def __init__(self, server, rounding=ROUNDING):
        self.server = server
        self.rounding = rounding
        self.known = {}
        self.swaps = 0  # answers that rounding has turned to another text

    def answer(self, body):
        body = {key: value for key, value in body.items() if key not in ("n_cache_reuse", "message_delimiters", "stream", "id_slot", "cache_prompt")}
        key = json.dumps(body)
        if key not in self.known:
            assert self.server.post("/slots/0?action=erase").status_code == 200
            answer = post_completion(self.server, body | {"id_slot": 0, "cache_prompt": False, "n_cache_reuse": 0})
            assert answer.cached == 0
            self.known[key] = answer
        return self.known[key]


def difference(found, cold, is_cut=False, rounding=ROUNDING):
    """None if an answer is as it would be cold, else what is not. Of an answer that is cut the beginning is enough."""
    for i, (token, right_token, logprobs, right) in enumerate(zip(found.tokens, cold.tokens, found.logprobs, cold.logprobs, strict=False)):
        off = max(abs(a - b) for a, b in zip(logprobs, right, strict=True))
        if off > rounding:
            return f"token {i} is {token} with logprobs {logprobs}, {off:.4f} from {right} of {right_token}"
        if token != right_token:
            return None  # as likely as the other one: rounding has swapped them, and what comes after them is another text
    if len(found.tokens) != len(cold.tokens) and not is_cut:
        return f"it has {len(found.tokens)} tokens, not {len(cold.tokens)}"
    return None


UNTOLD = ("prompt", "temperature", "return_tokens", "n_probs", "ignore_eos", "logit_bias", "message_delimiters")


def short(i, step):
    options = {key: value for key, value in step["body"].items() if key not in UNTOLD}
    if "prompt" in step["body"]:
        options = {"tokens": len(step["body"]["prompt"]), **options}
    if "message_delimiters" in step["body"]:
        options["turns"] = True
    if "read" in step:
        options["read"] = step["read"]
    where = "" if step["path"] == "/completion" else step["path"].split("?")[0]
    return f"  {i:4d} client {step['client']} {step['kind']} {where} " + " ".join(f"{key}={value}" for key, value in options.items())


def secrets_in(found, cold, client):
    """Clients whose words an answer has where the cold one has none of them."""
    return [i for i in range(N_CLIENT) if i != client and set(found.tokens) & set(secret_words(i)) and not set(cold.tokens) & set(secret_words(i))]


def check(server, step, cold):
    """What is wrong about the answer to a step, or None."""
    try:
        found = perform(server, step)
    except (requests.RequestException, AssertionError) as error:
        ended = server.process.poll() is not None
        return f"the server ended:\n{server.log()[-1000:]}" if ended else f"no answer: {error}"
    if not found:
        return None
    right = cold.answer(step["body"])
    what = difference(found, right, "read" in step, cold.rounding)
    if not what:
        cold.swaps += found.tokens != right.tokens[:len(found.tokens)]
        return None
    what += f"\nexpected {right.tokens}\nfound    {found.tokens}"
    if found.cached is not None:
        what += f", {found.cached} tokens of the prompt were reused"
    for client in secrets_in(found, right, step["client"]):
        what += f"\nwords of client {client}'s secret are among them: {sorted(set(found.tokens) & set(secret_words(client)))}"
    return what


def first_wrong(server, steps, cold):
    return next((i for i, step in enumerate(steps) if check(server, step, cold)), None)


def shrink(steps, is_wrong, tries=60):
    """Fewer of the steps, after which the last one is still wrong. `is_wrong` plays a list of steps on a server that knows nothing."""
    n = 2
    while n < len(steps) and not is_wrong(steps[-n:]):
        n *= 2
    steps = steps[-n:]
    size = len(steps) // 2
    while size > 0 and tries > 0:
        for at in range(len(steps) - 1 - size, -1, -size):
            fewer = steps[:at] + steps[at + size:]
            tries -= 1
            if is_wrong(fewer):
                steps = fewer
        size //= 2
    return steps
