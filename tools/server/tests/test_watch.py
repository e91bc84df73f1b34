"""What a server with a policy shows of itself: /props, /slots and /metrics."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
import tiny_gguf
from kv_policy_server import EXACT, complete, make_policy, metrics, slot, words
from server_process import ServerProcess
from tiny_model import SHIPPED_POLICY

from headwisekv import policy as policies

pytestmark = pytest.mark.server

WINDOWS = (16, 48, 130)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watch")
    model = folder / "llama.gguf"
    tiny_gguf.make_model(model, "llama", seed=2)
    return model, make_policy(folder, model, WINDOWS, 2048)


def serve(tiny, log, *args, **kwargs):
    model, policy = tiny
    return ServerProcess(model, log, *EXACT, "--kv-policy", str(policy), "--metrics", *args, ctx=2048, **kwargs)


def test_props_show_every_head(model, tmp_path):
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(SHIPPED_POLICY), ctx=8192) as server:
        shown = server.get("/props").json()["kv_policy"]
    policy = json.loads(SHIPPED_POLICY.read_text())
    point = next(p for p in policy["operating_points"] if p["name"] == shown["point"])
    assert shown["codebook"] == policy["codebook"]
    assert [layer["layer"] for layer in shown["layers"]] == [layer["layer"] for layer in policy["model"]["layers"]]
    assert [[shown["codebook"][entry] for entry in layer["entries"]] for layer in shown["layers"]] == policies.matrix(point)
    assert [layer["scores"] for layer in shown["layers"]] == policies.scores(policy, point)
    assert sum(sum(layer["bytes"]) for layer in shown["layers"]) == shown["bytes"]
    # a head's bytes are those of its window's cells
    assert shown["n_stream"] == 1 and all((group["type_k"], group["type_v"]) == ("f16", "f16") for group in shown["groups"])
    assert all(shown["codebook"][group["entry"]] == group["window"] for group in shown["groups"])
    cells = {group["entry"]: group["n_cells"] for group in shown["groups"]}
    for layer in shown["layers"]:
        assert layer["bytes"] == [cells[entry] * 2 * 64 * 2 for entry in layer["entries"]]


def test_props_without_scores(tiny, tmp_path):
    with serve(tiny, tmp_path / "log") as server:
        shown = server.get("/props").json()["kv_policy"]
    assert shown["codebook"] == [*WINDOWS, "full"]
    assert all(layer["scores"] is None for layer in shown["layers"])


def test_types_of_their_own_may_take_more_than_the_plain_cache(tiny, tmp_path):
    """Heads in F32 beside an F16 cache: what is saved is below zero, everywhere it is told, and no limit grows out of it."""
    model, base = tiny
    policy = policies.read(base)
    made = policies.with_point(policy, ["256:f16", "full:f16", "full:f32"], policies.uniform(policy, 2), "wide", "in f32", 4)
    made["operating_points"][0]["entries"][0][0] = "256:f16"
    rows = policies.entries(made, made["operating_points"][0])
    made = policies.with_point(policy, made["codebook"], rows, "wide", "one head less in f32", 4)
    (tmp_path / "wide.json").write_text(json.dumps(made))
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(tmp_path / "wide.json"), ctx=2048) as server:
        shown = server.get("/props").json()["kv_policy"]
        complete(server, words(1, 300), 8)
    assert shown["bytes"] > shown["bytes_plain"] and shown["bytes_saved"] == shown["bytes_plain"] - shown["bytes"] < 0
    assert {group["type_k"] for group in shown["groups"]} == {"f16", "f32"}
    assert shown["saved_prompt_bytes_max"] < 2**40 and shown["checkpoint_bytes_max"] < 2**40
    total = next(line for line in (tmp_path / "log").read_text().splitlines() if "KV total" in line)
    assert f"saved -{-shown['bytes_saved'] / 2**20:.2f} MiB (-" in total


def test_slots_show_the_cells_of_each_window(tiny, tmp_path):
    with serve(tiny, tmp_path / "log", "--kv-unified", "--cache-ram", "0", slots=2) as server:
        complete(server, words(1, 300), 8, id_slot=0)
        complete(server, words(2, 20), 8, id_slot=1)
        first, second = (entry["kv_policy"] for entry in server.get("/slots").json())
        groups = server.get("/props").json()["kv_policy"]["groups"]
        seen = metrics(server)
    used = {group["window"]: group["n_cells_used"] for group in first["groups"]}
    assert [group["window"] for group in first["groups"]] == [group["window"] for group in groups]
    assert [group["n_cells"] for group in first["groups"]] == [group["n_cells"] for group in groups]
    # the prompt and the answer but for its last token; a ring keeps its window and what can be taken back
    assert used["full"] == 300 + 7
    for window in WINDOWS:
        assert window <= used[window] <= window + 64
    assert all(group["n_cells_used"] == 20 + 7 for group in second["groups"])
    for a, b in zip(first["groups"], second["groups"], strict=True):
        label = f'{{window="{a["window"]}",type_k="f32",type_v="f32"}}'
        assert seen["cells_used" + label] == a["n_cells_used"] + b["n_cells_used"]
        assert seen["cells" + label] == a["n_cells"]


def test_metrics_are_in_prometheus_form(tiny, tmp_path):
    with serve(tiny, tmp_path / "log") as server:
        text = server.get("/metrics").text
        shown = server.get("/props").json()["kv_policy"]
        seen = metrics(server)
    names = {"bytes", "cells", "cells_used", "bytes_plain", "checkpoints", "checkpoint_bytes", "checkpoint_bytes_max", "saved_prompts",
             "saved_prompt_bytes", "saved_prompt_bytes_max", "prompt_tokens_reused_total", "prompt_tokens_restored_total",
             "prompt_tokens_reprocessed_total", "full_reprocessing_total"}
    assert {name.split("{")[0] for name in seen} == names
    for name in names:
        kind = "counter" if name.endswith("_total") else "gauge"
        assert text.count(f"# HELP llamacpp:kv_policy_{name} ") == text.count(f"# TYPE llamacpp:kv_policy_{name} {kind}\n") == 1
    assert sum(value for name, value in seen.items() if name.startswith("bytes{")) == shown["bytes"]
    assert seen["bytes_plain"] == shown["bytes_plain"]


def test_without_a_policy_nothing_is_told(tiny, tmp_path):
    with ServerProcess(tiny[0], tmp_path / "log", "--metrics", ctx=512) as server:
        assert server.get("/slots").json()[0]["kv_policy"] is None
        assert metrics(server) == {}


def test_counters_tell_where_a_prompt_came_from(tiny, tmp_path):
    prompt = words(1, 900)
    with serve(tiny, tmp_path / "log", "--cache-ram", "0") as server:  # whose prompts have checkpoints too
        complete(server, prompt)
        assert slot(server)["prompt_tokens"] == {"reused": 0, "restored": 0, "reprocessed": 0}

        _, cached = complete(server, prompt + words(2, 50))           # goes on
        assert slot(server)["prompt_tokens"] == {"reused": cached, "restored": 0, "reprocessed": 900 - cached}

        before = slot(server)
        nearest = max(n for n in before["checkpoint_tokens"] if n <= 800)
        _, restored = complete(server, prompt[:800] + words(3, 80))   # a checkpoint serves
        after = slot(server)
        assert nearest - 1 <= restored <= nearest
        assert after["prompt_tokens"]["restored"] == restored
        assert after["prompt_tokens"]["reprocessed"] == before["prompt_tokens"]["reprocessed"] + 800 - restored
        assert after["full_reprocessing"] == 0 and after["full_reprocessing_reason"] is None

        _, again = complete(server, prompt[:40] + words(4, 200))      # none does
        last = slot(server)
        assert again == 0
        assert last["full_reprocessing"] == 1
        assert "window" in last["full_reprocessing_reason"] and "position 40" in last["full_reprocessing_reason"]
        assert "processed again from the start, though its first 40 tokens are as before" in server.log()

        seen = metrics(server)
        for name, value in last["prompt_tokens"].items():
            assert seen[f"prompt_tokens_{name}_total"] == value
        assert seen["full_reprocessing_total"] == 1
        assert seen["checkpoints"] == last["checkpoints"] == len(last["checkpoint_tokens"])


def test_watching_does_not_disturb(tiny, tmp_path):
    """Cells are counted while others change: the watcher sees numbers, the answer stays the same."""
    prompt = words(1, 1200)
    with serve(tiny, tmp_path / "log") as server, ThreadPoolExecutor(1) as pool:
        expected, _ = complete(server, prompt, 300, cache=False, ignore_eos=True)
        answer = pool.submit(complete, server, prompt, 300, cache=False, ignore_eos=True)
        seen = []
        while not answer.done():
            seen.append(slot(server)["groups"][0]["n_cells_used"])
            assert 'cells_used{window="full",type_k="f32",type_v="f32"}' in metrics(server)
    assert answer.result()[0] == expected
    assert len(set(seen)) > 2 and max(seen) <= 1500
