"""A scripted conversation of an agent: turns that are appended, edited and branched, as prompts of tokens.

Answers are part of the script, so that servers with other windows see the same prompts.
"""

from kv_policy_server import ask, slot


class Script:
    """turn(i) gives the tokens of turn i, question and scripted answer; other(i) those of a turn put in its place."""

    def __init__(self, turn, other, n_turn, edits):
        self.n_turn = n_turn
        self.steps = []  # (kind, prompt)
        turns = []
        for i in range(n_turn):
            turns.append(turn(i))
            self.steps.append(("append", sum(turns, [])))
            if i + 1 in edits:
                at = edits[i + 1]
                edited = [*turns[:at], other(at)]
                self.steps.append(("edit", sum(edited, [])))
                self.steps.append(("append", sum([*edited, other(at + 1)], [])))
                self.steps.append(("branch", sum(turns, [])))  # and back to what was


def common(a, b):
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n


class Answer:
    def __init__(self, body):
        self.tokens = body["tokens"]
        self.cached = body["timings"]["cache_n"]
        # by how much the best token led
        self.leads = [entry["top_logprobs"][0]["logprob"] - entry["top_logprobs"][1]["logprob"] for entry in body.get("completion_probabilities", [])]


def play(server, steps, more, n=12, i_slot=0, watch=True):
    """All steps in one slot. With `watch`: no more is processed than what is new and what came after the nearest checkpoint."""
    out = []
    before = []
    for kind, prompt in steps:
        kept = slot(server, i_slot)["checkpoint_tokens"] if watch else []
        answer = Answer(ask(server, prompt, n, id_slot=i_slot, n_probs=2, **more))
        if watch:
            same = min(common(before, prompt), len(prompt) - 1)
            nearest = max((at for at in kept if at <= same), default=0)
            # a checkpoint is continued at its last position, so that there is something to process
            assert answer.cached >= nearest - 1, (kind, len(prompt), same, kept, answer.cached)
            assert answer.cached <= same
        before = prompt + answer.tokens[:-1]
        out.append(answer)
    return out


def play_cold(server, steps, more, n=12):
    """Every prompt from the start."""
    out = []
    for _, prompt in steps:
        answer = Answer(ask(server, prompt, n, cache=False, n_probs=2, **more))
        assert answer.cached == 0
        out.append(answer)
    return out


def flips(warm, cold):
    """The leads of the tokens at which two runs part."""
    out = []
    for a, b in zip(warm, cold, strict=True):
        n = common(a.tokens, b.tokens)
        if n < len(a.tokens) or n < len(b.tokens):
            out.append((b if n < len(b.leads) else a).leads[n])  # one may have ended there
    return out
