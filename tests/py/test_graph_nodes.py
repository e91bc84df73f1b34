"""How many operations window groups add to a decode step: what the layers' heads need at most, and nothing where all are full."""

import json
import subprocess

import pytest
import tiny_gguf
from server_process import need_program

from headwisekv.bench import policies

pytestmark = pytest.mark.bridge


def n_nodes(model, policy):
    command = [need_program("speed-run"), model, 8192, 1, 0, policy]
    done = subprocess.run(list(map(str, command)), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[0])["n_nodes"]


def runs_of(heads):
    """Heads in evenly spaced runs, as (number, spacing)."""
    runs = []
    for head in heads:
        if runs:
            first, count, step = runs[-1]
            step = head - first if count == 1 else step
            if head == first + count * step:
                runs[-1] = (first, count + 1, step)
                continue
        runs.append((head, 1, 1))
    return [(count, step) for _, count, step in runs]


def bound(windows):
    """Operations of one layer on top of the plain cache's two writes and one attention call."""
    groups = [[ih for ih, window in enumerate(windows) if window == w] for w in set(windows)]
    runs = [runs_of(heads) for heads in groups]
    n_write = 2 * sum(map(len, runs)) - 2
    n_attend = len(groups) - 1
    n_query = sum(len(r) - 1 + sum(step > 1 for _, step in r) for r in runs)  # brought side by side
    n_merge = sum(a != b for a, b in zip(windows, windows[1:])) if len(groups) > 1 else 0
    return n_write + n_attend + n_query + n_merge


def check(model, kind, tmp_path, seed=1):
    policy = policies.make(kind, model, tmp_path / f"{kind}.json", seed=seed, program=need_program("llama-kv-policy"))
    windows = policy["operating_points"][0]["entries"]
    added = n_nodes(model, tmp_path / f"{kind}.json") - n_nodes(model, "none")
    assert added <= sum(map(bound, windows)), windows
    return added, windows


def test_bound_of_hand_made_layers():
    assert bound(["full"] * 3) == 0
    assert bound([256] * 3) == 0
    assert bound([256, 256, "full"]) == 2 + 1 + 1
    assert bound([256, 1024, "full"]) == 4 + 2 + 2
    assert bound([256, "full", 256]) == 2 + 1 + 1 + 2  # heads 0 and 2 in one write, their queries copied together
    assert runs_of([0, 2, 4, 5]) == [(3, 2), (1, 1)]


def test_default_model(model, tmp_path):
    added, windows = check(model, "bench", tmp_path)
    assert 0 < added <= 8 * len(windows)  # 3 KV heads: at worst three groups


def test_all_full_policy_adds_nothing(model, tmp_path):
    added, _ = check(model, "full", tmp_path)
    assert added == 0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_many_heads(tmp_path, seed):
    path = tmp_path / "tiny.gguf"
    tiny_gguf.make_model(path, "llama", seed=1, n_head=16, n_head_kv=8)
    check(path, "bench", tmp_path, seed)
