"""Heads with cache types of their own: what a server with windows alone does, it does with these, and it tells which they are."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny_gguf
from agent_talk import Script, flips, play, play_cold
from kv_policy_server import TYPED, complete, make_typed, metrics, slot, words
from server_process import ServerProcess

from headwisekv import policy as policies

pytestmark = pytest.mark.server

ENTRIES = ("48:f16", "48:q8_0", "300:q8_0/q4_0", "300:q4_0", "full:f16", "full:q8_0")  # of 8 heads
TURN = 1  # the token <s> begins a turn and nothing else
MORE = {"message_delimiters": [{"role": "user", "delimiter": "<s>"}]}

# Batches of other sizes add in another order. What is rounded to 8 or 4 bits then falls on another step now and then, and where two tokens are
# close another one wins: it may lead by this much (nats), which a row that is wrong is far beyond.
CLOSE = 0.05


def heads_for(arch):
    return {} if arch == "llama" else {"n_head": 8, "n_head_kv": 4}  # full attention in two layers only


def make(folder, arch, codebook=ENTRIES, seed=1):
    model = folder / f"{arch}.gguf"
    if not model.exists():
        tiny_gguf.make_model(model, arch, seed=2, n_ctx_train=8192, **heads_for(arch))
    return model, make_typed(folder, model, codebook, 8192, seed=seed)


def script(n_turn, length, edits, seed=0):
    return Script(lambda i: [TURN, *words(100 * seed + i, length - 1)], lambda i: [TURN, *words(100 * seed + 5000 + i, length - 1)], n_turn, edits).steps


def serve(folder, model, policy, *args, name="log", ctx=8192, **kwargs):
    return ServerProcess(model, folder / name, *TYPED, "--kv-policy", str(policy), *args, ctx=ctx, **kwargs)


def check_same(warm, cold):
    assert max(flips(warm, cold), default=0.0) < CLOSE


#
# reuse
#


@pytest.mark.parametrize("arch", ["llama", "qwen35", "gemma4"])
def test_a_conversation_with_edits_and_branches(arch, tmp_path):
    model, policy = make(tmp_path, arch)
    steps = script(6, 150, {5: 2})
    with serve(tmp_path, model, policy, "--cache-ram", "0") as server:
        warm = play(server, steps, MORE)  # which checks that no more is processed than has to be
        assert slot(server)["prompt_tokens"]["restored"] > 0
    with serve(tmp_path, model, policy, "--cache-ram", "0") as server:
        check_same(warm, play_cold(server, steps, MORE))


@pytest.mark.parametrize("unified", [True, False])
def test_four_slots(unified, tmp_path):
    model, policy = make(tmp_path, "llama")
    talks = [script(3, 120, {}, seed) for seed in range(4)]
    args = ("--kv-unified",) if unified else ("--no-kv-unified", "--cache-ram", "0")
    with serve(tmp_path, model, policy, *args, ctx=8192 if unified else 4 * 2048, slots=4) as server:
        with ThreadPoolExecutor(4) as pool:
            warm = list(pool.map(lambda i: play(server, talks[i], MORE, i_slot=i, watch=not unified), range(4)))
        for answers, talk in zip(warm, talks, strict=True):
            check_same(answers, play_cold(server, talk, MORE))


def test_a_shift_of_the_context(tmp_path):
    """Keys of every type are moved: the server goes on past the end of its context."""
    model, policy = make(tmp_path, "llama")
    with serve(tmp_path, model, policy, "--context-shift", ctx=512) as server:
        tokens, _ = complete(server, words(1, 400), 300, ignore_eos=True)
    assert len(tokens) == 300


def test_types_that_cannot_be_shifted_are_not(tmp_path):
    """ggml has no RoPE for bf16 and would abort."""
    model, policy = make(tmp_path, "llama", ("48:f16", "full:bf16"))
    with serve(tmp_path, model, policy, "--context-shift", ctx=512) as server:
        assert "disabling context shift" in server.log().lower() or "not supported" in server.log()
        tokens, _ = complete(server, words(1, 400), 300, ignore_eos=True)
        assert len(tokens) < 300
        assert complete(server, words(2, 20))[0]


#
# slot files
#


def save(server, name):
    return server.post("/slots/0?action=save", {"filename": name})


def restore(server, name):
    return server.post("/slots/0?action=restore", {"filename": name})


@pytest.mark.parametrize("arch", ["llama", "qwen35", "gemma4"])
def test_a_slot_file_goes_on_as_before(arch, tmp_path):
    model, policy = make(tmp_path, arch)
    args = ("--slot-save-path", str(tmp_path), "--kv-policy-checkpoint-mib", "64")
    steps = script(5, 150, {5: 2})
    with serve(tmp_path, model, policy, *args) as server:
        play(server, steps[:4], MORE)
        assert save(server, "talk.bin").status_code == 200
        before = slot(server)
        expected = play(server, steps[4:], MORE, watch=False)
    with serve(tmp_path, model, policy, *args) as server:
        got = restore(server, "talk.bin")
        assert got.status_code == 200, got.text
        assert [slot(server)[key] for key in ("groups", "checkpoint_tokens", "checkpoint_bytes")] == \
            [before[key] for key in ("groups", "checkpoint_tokens", "checkpoint_bytes")]
        again = play(server, steps[4:], MORE, watch=False)
    assert [a.tokens for a in again] == [a.tokens for a in expected]  # the same rows, in the same batches
    assert again[0].cached > 0


def test_a_slot_file_of_other_types_is_refused(tmp_path):
    model, policy = make(tmp_path, "llama")
    args = ("--slot-save-path", str(tmp_path))
    with serve(tmp_path, model, policy, *args) as server:
        complete(server, words(1, 500))
        assert save(server, "talk.bin").status_code == 200

    # the same windows: a type that there was not, and two heads that change places
    table = json.loads(policy.read_text())
    rows = table["operating_points"][0]["entries"]
    finer = [["300:q5_0" if entry == "300:q4_0" else entry for entry in row] for row in rows]
    swap = {"48:f16": "48:q8_0", "48:q8_0": "48:f16"}
    moved = [[swap.get(entry, entry) for entry in row] for row in rows]
    for entries, reason in [(finer, ("another kind of cache", "K q4_0, V q4_0", "K q5_0, V q5_0")), (moved, ("another KV policy",))]:
        codebook = policies.in_order(table, {*table["codebook"], "300:q5_0"})
        other = policies.with_point(table, codebook, [[codebook.index(entry) for entry in row] for row in entries], "other", "by hand", table["sinks"])
        file = tmp_path / "other.json"
        file.write_text(json.dumps(other))
        with serve(tmp_path, model, file, *args) as server:
            tokens, _ = complete(server, words(2, 60))
            answer = restore(server, "talk.bin")
            assert answer.status_code == 400
            for part in reason:
                assert part in answer.json()["error"]["message"]
            assert complete(server, words(2, 60)) == (tokens, 59)  # the slot is as it was


#
# what it tells
#


def test_props_slots_and_metrics_have_the_types(tmp_path):
    model, policy = make(tmp_path, "llama")
    table = json.loads(policy.read_text())
    with serve(tmp_path, model, policy, "--metrics", ctx=2048) as server:
        complete(server, words(1, 400))
        shown, seen, counted = server.get("/props").json()["kv_policy"], slot(server), metrics(server)
    assert (shown["codebook"], shown["cache_types"]) == (table["codebook"], {"k": "f16", "v": "f16"})
    spelled = [[shown["codebook"][entry] for entry in layer["entries"]] for layer in shown["layers"]]
    assert spelled == table["operating_points"][0]["entries"]
    for group, in_slot in zip(shown["groups"], seen["groups"], strict=True):
        window, type_k, type_v = policies.parts(shown["codebook"][group["entry"]], table["cache_types"])
        assert (group["window"], group["type_k"], group["type_v"]) == (window, type_k, type_v) == tuple(in_slot[key] for key in ("window", "type_k", "type_v"))
        label = f'{{window="{window}",type_k="{type_k}",type_v="{type_v}"}}'
        assert counted["bytes" + label] == group["k_bytes"] + group["v_bytes"] > 0
        assert counted["cells_used" + label] == in_slot["n_cells_used"] > 0
    assert len(shown["groups"]) == len(ENTRIES)
    assert sum(group["k_bytes"] + group["v_bytes"] for group in shown["groups"]) == shown["bytes"] == sum(sum(layer["bytes"]) for layer in shown["layers"])
