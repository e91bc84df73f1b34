"""llama-server with head windows: what it tells, and answers that never depend on what a ring has lost.

Answers are compared with those of a fresh server, token by token, on models with F32 weights and an F32 cache, where
the order of additions cannot change a choice.
"""

import subprocess

import psutil
import pytest
import tiny_gguf
from kv_policy_server import EXACT, ask, complete, make_policy, words
from server_process import ServerProcess, need_program

pytestmark = pytest.mark.server

#
# what it tells
#


def test_props_show_the_plan(model, tmp_path):
    policy = make_policy(tmp_path, model, (256, 1024), 8192)
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(policy), ctx=8192) as server:
        shown = server.get("/props").json()["kv_policy"]
        log = server.log()
    check = subprocess.run([need_program("llama-kv-policy"), "check", policy, "-m", model, "-c", "8192"], capture_output=True, text=True,
                           check=True, timeout=60)
    assert f' {shown["bytes"]}\n' in check.stdout
    assert shown["bytes"] + shown["bytes_saved"] == shown["bytes_plain"] == 180 * 2**20
    assert [g["window"] for g in shown["groups"]] == ["full", 256, 1024]
    assert sum(g["n_head"] for g in shown["groups"]) == 90
    assert shown["point"] == "mixed" and shown["sinks"] == 4 and len(shown["sha256"]) == 64
    assert "saved" in log and "plain cache 180.00 MiB" in log


def test_slots_that_share_the_cache_are_in_the_log(tmp_path):
    model = tmp_path / "llama.gguf"
    tiny_gguf.make_model(model, "llama", seed=2)
    policy = make_policy(tmp_path, model, (16, 48, 130), 2048)

    def log_of(slots):
        with ServerProcess(model, tmp_path / "log", "--kv-policy", str(policy), "--kv-unified", ctx=2048, slots=slots) as server:
            return server.log(), server.get("/props").json()["kv_policy"]["bytes"] / 2**20

    (alone, one), (shared, four) = log_of(1), log_of(4)
    assert "share the cache" not in alone
    assert f" I KV: 4 slots share the cache: {four:.2f} MiB instead of {one:.2f} MiB with one (-np 1)\n" in shared


def test_props_without_a_policy(server):
    assert server.get("/props").json()["kv_policy"] is None


def test_memory_falls_by_what_is_saved(model, tmp_path):
    # 40% of the cache at 8K
    base = tmp_path / "policy.json"
    subprocess.run([need_program("llama-kv-policy"), "make", "uniform", "--window", "3276", "--sinks", "4", "-c", "8192", "-m", model, "-o", base],
                   check=True, timeout=60)

    def resident(*args):
        with ServerProcess(model, tmp_path / "log", "-fa", "on", *args, ctx=8192) as server:
            return psutil.Process(server.process.pid).memory_info().rss, server.get("/props").json()["kv_policy"]

    plain, _ = resident()
    windowed, shown = resident("--kv-policy", str(base))
    assert plain - windowed >= 0.95 * shown["bytes_saved"]


#
# reuse that is right
#


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35"])
def test_edited_turns_equal_a_cold_run(arch, tmp_path):
    model = tmp_path / f"{arch}.gguf"
    tiny_gguf.make_model(model, arch, seed=2)
    policy = make_policy(tmp_path, model, (16, 48, 130), 2048)
    args = (*EXACT, "--kv-policy", str(policy))

    turns = [words(i, 150) for i in range(6)]
    prompts = [sum(turns[:i + 1], []) for i in range(6)]            # a growing conversation
    edited = turns[0] + words(77, 40) + turns[1] + turns[2]          # an early turn changes
    branch = prompts[3] + words(88, 60)                              # and a branch of an old state
    asked = [*prompts, edited, branch, prompts[5], prompts[2], prompts[5] + words(99, 30)]

    with ServerProcess(model, tmp_path / "warm.log", *args, ctx=2048) as server:
        warm = [complete(server, prompt) for prompt in asked]
    cold = []
    with ServerProcess(model, tmp_path / "cold.log", *args, ctx=2048) as server:
        for prompt in asked:
            tokens, n_cached = complete(server, prompt, cache=False)
            assert n_cached == 0
            cold.append(tokens)
    assert [tokens for tokens, _ in warm] == cold
    # appended turns are not processed again
    for i in range(1, 6):
        assert warm[i][1] >= 0.9 * len(prompts[i - 1])


def test_several_answers_to_one_prompt(tmp_path):
    model = tmp_path / "llama.gguf"
    tiny_gguf.make_model(model, "llama", seed=2)
    policy = make_policy(tmp_path, model, (16, 48, 130), 2048)
    with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", str(policy), "--kv-unified", ctx=4096, slots=4) as server:
        answer = server.post("/v1/completions", json={"prompt": words(5, 300), "n": 4, "max_tokens": 400, "temperature": 1, "seed": 7})
        assert answer.status_code == 200
        assert len(answer.json()["choices"]) == 4
        assert server.get("/health").status_code == 200


@pytest.mark.parametrize("n_prompt, n, ctx, n_shifts", [(300, 80, 2048, 0), (400, 400, 512, 2)], ids=["no-shift", "context-shift"])
def test_drafts_change_no_token(n_prompt, n, ctx, n_shifts, tmp_path):
    model = tmp_path / "llama.gguf"
    draft = tmp_path / "draft.gguf"
    tiny_gguf.make_model(model, "llama", seed=2)
    tiny_gguf.make_model(draft, "llama", seed=2, n_layer=2)
    policy = make_policy(tmp_path, model, (16, 48, 130), 2048)

    def answer(*args):
        with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", str(policy), "--context-shift", *args, ctx=ctx) as server:
            found = ask(server, words(3, n_prompt), n, ignore_eos=True)
            assert server.log().count("slot context shift") == n_shifts
        return found

    found = answer("-md", str(draft), "--spec-type", "draft-simple", "--spec-draft-n-max", "8")
    assert found["tokens"] == answer()["tokens"]
    assert found["timings"]["draft_n"] > 0  # there were drafts to take back


def test_mtp_changes_no_token(tmp_path):
    model = tmp_path / "qwen35.gguf"
    tiny_gguf.make_model(model, "qwen35", seed=2, n_nextn=1)
    policy = make_policy(tmp_path, model, (16, 48, 130), 2048)
    args = (*EXACT, "--kv-policy", str(policy))
    prompt = words(3, 300)
    with ServerProcess(model, tmp_path / "plain.log", *args, ctx=2048) as server:
        expected, _ = complete(server, prompt, 60)
    with ServerProcess(model, tmp_path / "mtp.log", *args, "--spec-type", "draft-mtp", "--spec-draft-n-max", "3", ctx=2048) as server:
        answer = ask(server, prompt, 60)
    assert answer["tokens"] == expected
    assert answer["timings"]["draft_n"] > 0


def test_overridden_tensors(tmp_path):
    model = tmp_path / "llama.gguf"
    tiny_gguf.make_model(model, "llama", seed=2)
    policy = make_policy(tmp_path, model, (16, 48, 130), 2048)
    args = (*EXACT, "--kv-policy", str(policy))
    with ServerProcess(model, tmp_path / "plain.log", *args, ctx=2048) as server:
        expected, _ = complete(server, words(3, 300))
    with ServerProcess(model, tmp_path / "ot.log", *args, "-ot", "ffn=CPU", "-ngl", "99", ctx=2048) as server:
        assert complete(server, words(3, 300))[0] == expected


def test_context_shift_goes_on(tmp_path):
    model = tmp_path / "llama.gguf"
    tiny_gguf.make_model(model, "llama", seed=2)
    policy = make_policy(tmp_path, model, (16, 48, 130), 2048)
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(policy), "--context-shift", ctx=512) as server:
        answer = server.post("/completion", json={"prompt": words(3, 400), "n_predict": 500, "temperature": 0, "ignore_eos": True})
        assert answer.status_code == 200
        assert answer.json()["tokens_predicted"] == 500
        assert server.get("/health").status_code == 200
