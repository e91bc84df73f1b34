"""Conversations with head windows: what was processed is used again wherever that is exact, and the answers are those of a cold run.

Small versions run always; those of 20 turns and 7000 tokens are slow.
"""

import os
import platform
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import tiny_gguf
from agent_talk import Script, flips, play, play_cold
from kv_policy_server import EXACT, ask, complete, make_policy, metrics, slot, words
from server_process import ROOT, ServerProcess, need_program
from tiny_model import SHIPPED_POLICY

pytestmark = pytest.mark.server

SMALL = (6, 150, {5: 2})
LARGE = (20, 350, {6: 2, 12: 8, 20: 14})  # 7000 tokens


def cases(*quick):
    """Small conversations of the models named, and large ones of all."""
    slow = [pytest.mark.slow, pytest.mark.timeout(3000)]
    return pytest.mark.parametrize("arch, size", [*(pytest.param(arch, SMALL, id=arch) for arch in quick),
                                                  *(pytest.param(arch, LARGE, id=f"{arch}-7000-tokens", marks=slow) for arch in ("llama", "qwen35", "gemma4"))])


TURN = 1  # the token <s> begins a turn and nothing else
MORE = {"message_delimiters": [{"role": "user", "delimiter": "<s>"}]}


def tiny(folder, arch, **options):
    model = folder / f"{arch}.gguf"
    tiny_gguf.make_model(model, arch, seed=2, n_ctx_train=8192, **options)
    return model, make_policy(folder, model, (48, 300, 900), 8192)


def script(size, seed=0):
    n_turn, length, edits = size
    return Script(lambda i: [TURN, *words(100 * seed + i, length - 1)], lambda i: [TURN, *words(100 * seed + 5000 + i, length - 1)], n_turn, edits).steps


def check_appended(steps, got, plain):
    """Turns that are appended reuse what the full cache does; one token more or less is always processed."""
    assert sum(kind == "append" for kind, _ in steps) > 4
    for (kind, prompt), a, b in zip(steps, got, plain, strict=True):
        if kind == "append":
            assert a.cached >= 0.95 * b.cached - 1, (len(prompt), a.cached, b.cached)


@cases("llama", "qwen35", "gemma4")
def test_a_conversation_with_edits_and_branches(arch, size, tmp_path):
    model, policy = tiny(tmp_path, arch)
    steps = script(size)
    args = (*EXACT, "--cache-ram", "0")  # prompts that wait in memory would hide what checkpoints do
    with ServerProcess(model, tmp_path / "warm.log", *args, "--kv-policy", str(policy), ctx=8192) as server:
        warm = play(server, steps, MORE)
        seen = slot(server)
    with ServerProcess(model, tmp_path / "cold.log", *args, "--kv-policy", str(policy), ctx=8192) as server:
        cold = play_cold(server, steps, MORE)
    with ServerProcess(model, tmp_path / "plain.log", *args, ctx=8192) as server:
        plain = play(server, steps, MORE, watch=False)
    assert [a.tokens for a in warm] == [a.tokens for a in cold]
    check_appended(steps, warm, plain)
    assert seen["prompt_tokens"]["restored"] > 0  # checkpoints did serve


@cases("qwen35")
def test_two_conversations_in_one_slot(arch, size, tmp_path):
    model, policy = tiny(tmp_path, arch)
    n_turn, length, _ = size
    first, second = (script((n_turn, length, {}), seed) for seed in (1, 2))
    steps = [step for pair in zip(first, second, strict=True) for step in pair]
    with ServerProcess(model, tmp_path / "warm.log", *EXACT, "--kv-policy", str(policy), ctx=8192) as server:
        warm = play(server, steps, MORE, watch=False)
        cold = play_cold(server, steps, MORE)
    with ServerProcess(model, tmp_path / "plain.log", *EXACT, ctx=8192) as server:
        plain = play(server, steps, MORE, watch=False)
    assert [a.tokens for a in warm] == [a.tokens for a in cold]
    check_appended(steps, warm, plain)


@cases("llama")
def test_four_slots_in_parallel(arch, size, tmp_path):
    model, policy = tiny(tmp_path, arch)
    talks = [script(size, seed) for seed in range(4)]

    def run(*args, watch):
        with ServerProcess(model, tmp_path / "log", *EXACT, "--no-kv-unified", "--cache-ram", "0", *args, ctx=4 * 8192, slots=4) as server, \
                ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda i: play(server, talks[i], MORE, i_slot=i, watch=watch), range(4)))

    warm = run("--kv-policy", str(policy), watch=True)
    plain = run(watch=False)
    with ServerProcess(model, tmp_path / "cold.log", *EXACT, "--no-kv-unified", "--kv-policy", str(policy), ctx=4 * 8192, slots=4) as server:
        cold = [play_cold(server, talk, MORE) for talk in talks]
    for i in range(4):
        assert [a.tokens for a in warm[i]] == [a.tokens for a in cold[i]]
        check_appended(talks[i], warm[i], plain[i])


def test_four_slots_that_share_a_cache(tmp_path):
    """As many ask at once as there are slots, and the server chooses."""
    model, policy = tiny(tmp_path, "llama")
    talks = [script((4, 120, {}), seed) for seed in range(4)]
    args = (*EXACT, "--kv-policy", str(policy), "--kv-unified")
    with ServerProcess(model, tmp_path / "log", *args, ctx=8192, slots=4) as server, ThreadPoolExecutor(4) as pool:
        warm = list(pool.map(lambda talk: [complete(server, prompt, **MORE)[0] for _, prompt in talk], talks))
    with ServerProcess(model, tmp_path / "log", *args, ctx=8192, slots=4) as server:
        assert warm == [[complete(server, prompt, cache=False)[0] for _, prompt in talk] for talk in talks]


#
# checkpoints
#


def wide(folder):
    """Little to compute, but 16 KiB of rows for each token."""
    model = folder / "wide.gguf"
    tiny_gguf.make_model(model, "llama", seed=2, n_ctx_train=8192, n_head=8, n_head_kv=8)
    policy = folder / "policy.json"
    subprocess.run([need_program("llama-kv-policy"), "make", "uniform", "--window", "1500", "--sinks", "4", "-c", "8192", "-m", model, "-o", policy],
                   check=True, timeout=60)
    return model, policy


def test_rows_that_checkpoints_share_are_kept_once(tmp_path):
    model, policy = wide(tmp_path)
    steps = script((8, 150, {}))

    def run(*args):
        with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", str(policy), "--cache-ram", "0", "--metrics", *args, ctx=8192) as server:
            for _, prompt in steps:
                complete(server, prompt, **MORE)
            return slot(server), metrics(server), psutil.Process(server.process.pid).memory_info().rss

    seen, counted, rss = run("--kv-policy-checkpoint-mib", "1000")
    none, _, rss_none = run("--kv-policy-checkpoint-mib", "0")
    assert none["checkpoints"] == 0 and none["checkpoint_bytes"] == 0

    # every turn has one; each holds the rows of all tokens before it, as the window is longer than that
    at = seen["checkpoint_tokens"]
    assert set(range(150, 8 * 150, 150)) <= set(at)
    row = 4 * 8 * (64 + 64) * 4
    assert sum(at) * row > 4 * max(at) * row          # without sharing
    assert seen["checkpoint_bytes"] < 1.3 * max(at) * row
    assert seen["checkpoint_bytes_shared"] > 0.7 * seen["checkpoint_bytes"]
    assert counted["checkpoint_bytes"] == seen["checkpoint_bytes"]
    assert counted["checkpoints"] == seen["checkpoints"] == len(at)
    # and memory says the same
    assert abs(rss - rss_none - seen["checkpoint_bytes"]) < 0.15 * seen["checkpoint_bytes"] + 2**20


def test_checkpoints_keep_within_their_limit(tmp_path):
    model, policy = wide(tmp_path)
    steps = script((8, 150, {}))
    limit = 8
    with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", str(policy), "--cache-ram", "0", "--metrics",
                       "--kv-policy-checkpoint-mib", str(limit), ctx=8192) as server:
        for _, prompt in steps:
            complete(server, prompt, **MORE)
            assert metrics(server)["checkpoint_bytes"] <= limit * 2**20
        seen = slot(server)
        # what is left is spread over the conversation, and serves
        assert len(seen["checkpoint_tokens"]) >= 2
        at = max(seen["checkpoint_tokens"])
        edited = steps[-1][1][:at + 10] + words(9, 100)
        tokens, cached = complete(server, edited, **MORE)
        assert cached >= at - 1
        assert complete(server, edited, cache=False)[0] == tokens


def test_no_second_copy_of_a_checkpoint_is_made(tmp_path):
    """The peak of memory, not only what is left: with rings of 23 MiB, while checkpoints are made, dropped and restored."""
    model, policy = wide(tmp_path)
    prompt = words(1, 3000)
    limit = 34

    def peak(mib):
        with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", str(policy), "--cache-ram", "0", "--metrics", "--kv-policy-checkpoint-mib",
                           str(mib), ctx=8192) as server:
            complete(server, prompt)
            complete(server, prompt + words(2, 300))
            _, cached = complete(server, prompt + words(3, 100))
            status = Path(f"/proc/{server.process.pid}/status").read_text()
            return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024, cached

    with_checkpoints, cached = peak(limit)
    without, _ = peak(0)
    assert cached >= len(prompt) - 4  # one was restored
    assert with_checkpoints - without < (limit + 4) * 2**20


@pytest.mark.parametrize("at", [0, 100, 5000])
@pytest.mark.parametrize("arch", ["llama", "qwen35", "gemma4"])
def test_a_checkpoint_that_cannot_be_restored(arch, at, tmp_path, monkeypatch):
    """It breaks off in the middle: the slot is emptied, the prompt processed from the start, and everything goes on."""
    model, policy = tiny(tmp_path, arch)
    steps = [prompt for _, prompt in script((6, 150, {}))]
    edited = [steps[2] + [TURN, *words(99, 300)], steps[3] + [TURN, *words(98, 300)]]
    args = (*EXACT, "--kv-policy", str(policy), "--cache-ram", "0")

    monkeypatch.setenv("LD_PRELOAD", str(need_program("libfail-state.so")))
    monkeypatch.setenv("ASAN_OPTIONS", ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0"])))
    monkeypatch.setenv("HWKV_TEST_BREAK_AT", str(at))
    with ServerProcess(model, tmp_path / "log", *args, ctx=8192) as server:
        complete(server, steps[-1], **MORE)
        broken, cached = complete(server, edited[0], **MORE)
        assert cached == 0
        assert "cannot be restored" in server.log()
        assert slot(server)["full_reprocessing"] == 1
        # checkpoints serve again
        complete(server, steps[-1], **MORE)
        whole, cached = complete(server, edited[1], **MORE)
        assert cached > 0 and slot(server)["full_reprocessing"] == 1
        assert [broken, whole] == [complete(server, prompt, cache=False)[0] for prompt in edited]


def test_a_slot_keeps_at_most_so_many(tmp_path):
    model, policy = tiny(tmp_path, "llama")
    with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", str(policy), "--ctx-checkpoints", "4", ctx=8192) as server:
        for _, prompt in script((12, 100, {})):
            complete(server, prompt, **MORE)
            assert slot(server)["checkpoints"] <= 4
        assert min(slot(server)["checkpoint_tokens"]) <= 600  # not just the newest
        # a cold prompt of many turns makes no more of them than that
        complete(server, script((40, 100, {}), 7)[-1][1], **MORE)
        assert slot(server)["checkpoints"] <= 4


def test_the_default_limit_is_half_of_what_is_saved(model, tmp_path):
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(SHIPPED_POLICY), ctx=8192) as server:
        saved = server.get("/props").json()["kv_policy"]["bytes_saved"]
        assert f"{saved / 2 / 2**20:.1f} MiB for all" in server.log()


def test_saved_prompts_share_what_is_saved_with_the_checkpoints(tmp_path):
    """24 prompts of 8 MiB each, one after the other: the server's memory stays below that of the plain cache with none saved."""
    model, policy = wide(tmp_path)

    def run(*args):
        with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", str(policy), "--metrics", *args, ctx=8192) as server:
            shown = server.get("/props").json()["kv_policy"]
            start = psutil.Process(server.process.pid).memory_info().rss
            most = 0
            for i in range(24):
                complete(server, words(i, 500), 2)
                seen = metrics(server)
                assert seen["saved_prompt_bytes"] <= seen["saved_prompt_bytes_max"] == shown["saved_prompt_bytes_max"]
                assert seen["checkpoint_bytes"] <= seen["checkpoint_bytes_max"] == shown["checkpoint_bytes_max"]
                most = max(most, seen["saved_prompts"])
            # what was saved last is found again
            assert complete(server, words(22, 500), 2)[1] >= 495
            return shown, most, psutil.Process(server.process.pid).memory_info().rss - start

    shown, most, grown = run()
    half = shown["bytes_saved"] // 2
    assert shown["checkpoint_bytes_max"] == half
    assert half - 2**20 < shown["saved_prompt_bytes_max"] <= half
    assert 2 <= most < 20
    assert grown < shown["bytes_saved"] + 16 * 2**20

    shown, most, _ = run("--cache-ram", "300")
    assert shown["saved_prompt_bytes_max"] == 300 * 2**20
    assert most >= 23


def test_moved_pieces_are_refused_with_a_policy(tmp_path):
    """Their rows were computed after other words. The server says so once, and goes by the common beginning."""
    model, policy = tiny(tmp_path, "llama")
    first = words(1, 60) + words(2, 400)
    second = words(3, 30) + words(2, 400)  # a piece of the first one, elsewhere
    with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", str(policy), "--cache-reuse", "16", "--cache-ram", "0", ctx=8192) as server:
        complete(server, first)
        tokens, cached = complete(server, second, n_cache_reuse=16)
        assert cached == 0
        assert complete(server, second, cache=False)[0] == tokens
        assert server.log().count("--cache-reuse 16 is ignored with a KV policy") == 1


def test_a_question_is_asked_again(tmp_path):
    """After a long answer, as it was or with another end: what is left of the prompt's end is its checkpoint."""
    model, policy = tiny(tmp_path, "llama")
    prompt = words(1, 700)
    with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", str(policy), "--cache-ram", "0", ctx=8192) as server:
        for again, n_same in ((prompt, 699), (prompt[:680] + words(2, 30), 680)):
            complete(server, prompt, 200, cache=False)
            tokens, cached = complete(server, again)
            assert cached == n_same
            assert tokens == complete(server, again, cache=False)[0]


def test_a_chat_has_a_checkpoint_at_every_turn(model, tmp_path):
    """The template of this model puts a system prompt before a first message."""
    text = "Tell me about rings, windows and the sea. " * 5
    messages = []
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(SHIPPED_POLICY), ctx=8192) as server:
        def turns(messages):
            prompt = server.post("/apply-template", {"messages": messages}).json()["prompt"]
            parts = prompt.split("<|im_start|>user")
            return [len(server.post("/tokenize", {"content": "<|im_start|>user".join(parts[:i]), "parse_special": True}).json()["tokens"])
                    for i in range(1, len(parts))]

        for i in range(4):
            messages.append({"role": "user", "content": f"{i} {text}"})
            starts = turns(messages)
            answer = server.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 8}).json()
            messages.append({"role": "assistant", "content": answer["choices"][0]["message"]["content"]})
        assert len(starts) == 4 and set(starts) <= set(slot(server)["checkpoint_tokens"])

        # the second question changes: only it is processed again, though the smallest rings have lost it
        edited = [*messages[:2], {"role": "user", "content": "Another question. " * 10}]
        timings = server.post("/v1/chat/completions", {"messages": edited, "temperature": 0, "max_tokens": 8}).json()["timings"]
        assert timings["cache_n"] >= starts[1] - 1


#
# a real model
#


def agent_script(server, n_turn, length, edits):
    """An agent reads the files of this repository; one turn for each piece."""
    text = "\n".join((ROOT / name).read_text() for name in ("README.md", "docs/how-it-works.md", "src/README.md", "tools/kv-policy/README.md",
                                                            "tools/seqcalib/README.md", "policies/README.md", "docs/building.md"))

    def tokenize(text):
        return server.post("/tokenize", {"content": text, "add_special": False, "parse_special": True}).json()["tokens"]

    tokens = tokenize(text.replace("<|", "< |"))
    head, middle, end = tokenize("<|im_start|>user\n"), tokenize("<|im_end|>\n<|im_start|>assistant\nI have read it.<|im_end|>\n"), length - 16

    def turn(start):
        return lambda i: [*head, *tokens[(start + i * end) % (len(tokens) - end):][:end], *middle]

    return Script(turn(0), turn(3001), n_turn, edits).steps


CHAT = {"message_delimiters": [{"role": "user", "delimiter": "<|im_start|>user"}]}


def pristine_server():
    """llama-server of the unpatched package, built if it is not there."""
    program = need_program("llama-server").parents[1] / "pristine" / "bin" / "llama-server"
    if not program.exists():
        subprocess.run(["cmake", "--build", program.parents[2], "--target", "pristine-tools"], check=True, capture_output=True, timeout=3600)
    return program


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_real_model_answers_as_in_a_cold_run(model, tmp_path):
    """Q4_1: batches of other sizes add in another order, and where two tokens are close another one wins. How close, the unpatched
    server tells: it is asked for many more tokens, as the largest of a few flips would be chance."""
    def run(*args, pick, n, watch, program=None):
        slots = tmp_path / "slots"
        slots.mkdir(exist_ok=True)
        args = (*args, "--cache-ram", "0", "--slot-save-path", str(slots))
        with ServerProcess(model, tmp_path / "log", *args, ctx=8192, program=program) as server:
            steps = agent_script(server, 20, 345, {6: 2, 12: 8, 20: 14})
            warm = play(server, steps[:-3], CHAT, n, watch=watch)
            assert server.post("/slots/0?action=save", {"filename": "talk.bin"}).status_code == 200
        with ServerProcess(model, tmp_path / "log", *args, ctx=8192, program=program) as server:
            assert server.post("/slots/0?action=restore", {"filename": "talk.bin"}).status_code == 200
            # the first prompt after the restart is the next of the script, so what was processed is used again
            warm += play(server, steps[-3:], CHAT, n, watch=False)
            picked = [i for i, (kind, _) in enumerate(steps) if pick(i, kind)]
            cold = play_cold(server, [steps[i] for i in picked], CHAT, n)
        found = flips([warm[i] for i in picked], cold)
        print(f"{len(found)} flips in {len(picked)} answers of {n} tokens", sorted(found))
        return steps, warm, found

    steps, plain, plain_flips = run(pick=lambda i, kind: kind != "append" or i % 2 == 0, n=48, watch=False, program=pristine_server())
    _, warm, warm_flips = run("--kv-policy", str(SHIPPED_POLICY), pick=lambda i, kind: kind != "append" or i % 8 == 0, n=12, watch=True)
    assert max(warm_flips, default=0.0) <= max(plain_flips, default=0.0)
    check_appended(steps[:-3], warm[:-3], plain[:-3])
    assert len(steps[-1][1]) > 6800


@pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere llama.cpp has another product of Q4_1 weights for several tokens")
@pytest.mark.parametrize("args", [(), ("--kv-policy", str(SHIPPED_POLICY))], ids=["full", "policy"])
def test_a_short_prompt_has_the_same_probabilities_when_it_is_reused(args, model, tmp_path):
    """Also on quantized weights: a token's bits don't depend on how many are in its batch."""
    def probabilities(server, prompt, cache):
        answer = ask(server, prompt, 4, cache, n_probs=10)
        return answer["completion_probabilities"], answer["timings"]["cache_n"]

    with ServerProcess(model, tmp_path / "log", *args, ctx=8192) as server:
        for i in range(12):
            prompt = words(i, 63 - 4 * i, first=1000, count=30000)
            cold, _ = probabilities(server, prompt, False)
            assert probabilities(server, prompt, True) == (cold, len(prompt) - 1)


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_real_model_in_f32_answers_exactly_as_in_a_cold_run(model, tmp_path):
    exact = tmp_path / "f32.gguf"
    subprocess.run([need_program("llama-quantize"), "--allow-requantize", model, exact, "f32", "1"], check=True, capture_output=True, timeout=300)
    policy = make_policy(tmp_path, exact, (256, 700), 8192)
    args = (*EXACT, "--kv-policy", str(policy), "--cache-ram", "0")
    with ServerProcess(exact, tmp_path / "warm.log", *args, ctx=8192) as server:
        steps = agent_script(server, 8, 250, {6: 2})
        warm = play(server, steps, CHAT)
        assert slot(server)["prompt_tokens"]["restored"] > 0
        assert [a.tokens for a in play_cold(server, steps, CHAT)] == [a.tokens for a in warm]
