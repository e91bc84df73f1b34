"""scripts/eval rivals: caches of equal bytes, what is left out of a long run, bars, the page, and a short version of all of it."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import tiny_gguf
from eval_data import make_data, make_tiny
from server_process import ROOT, need_program

from headwisekv import policy as policies
from headwisekv.core import Failure
from headwisekv.evaluate import __main__ as cli
from headwisekv.evaluate import matching, rivals, rivals_data, rivals_page, rivals_plan, run_rivals
from headwisekv.plots import frontier

N_CTX, PAD, ROLLBACK = 4096, 64, 64
LAYERS = [{"layer": il, "n_head": 6, "n_head_kv": 3, "head_dim_k": 64, "head_dim_v": 64} for il in range(4)]
SOURCE = {"format": "headwisekv-policy", "version": 2, "model": {"n_layer": 4, "layers": LAYERS}, "context": N_CTX, "cache_types": {"k": "f16", "v": "f16"},
          "codebook": [256, 1024, 2048, "full"], "sinks": 4, "operating_points": [], "selected": ""}


#
# equal bytes
#

def cells(window):
    return N_CTX if window == "full" or window >= N_CTX else min(N_CTX, -(-(window + ROLLBACK) // PAD) * PAD)


def allocated(policy, cache):
    """What the runtime takes, written down a second time."""
    total = 0
    for layer, row in zip(policy["model"]["layers"], policy["operating_points"][0]["entries"]):
        for entry in row:
            window, type_k, type_v = policies.parts(entry, {"k": cache, "v": cache})
            total += cells(window) * (policies.row_bytes(type_k, layer["head_dim_k"]) + policies.row_bytes(type_v, layer["head_dim_v"]))
    return total


@pytest.fixture
def matcher(tmp_path, monkeypatch):
    """A matcher with the program replaced."""
    def check(tool, path, model, n_ctx, point, cache, n_pad, n_rollback):
        assert (model, n_ctx, n_pad, n_rollback) == (None, N_CTX, PAD, ROLLBACK)
        return {"bytes": allocated(json.loads(path.read_text()), cache)}

    monkeypatch.setattr(matching.programs, "check_policy", check)
    return matching.Matcher("tool", SOURCE, N_CTX, PAD, ROLLBACK, tmp_path)


WHOLE = 12 * N_CTX * 2 * 128  # the full cache in F16


@pytest.mark.unit
def test_least_is_found_by_halving():
    assert [matching.least(n, lambda i: i >= 3) for n in (10, 4, 3, 0)] == [3, 3, None, None]


@pytest.mark.unit
@pytest.mark.parametrize("cache, size", [("f16", 256), ("q8_0", 136)])
@pytest.mark.parametrize("share", [0.05, 0.2, 0.31, 0.5, 0.53])
def test_a_rival_has_the_bytes_and_less_than_a_step_more(matcher, share, cache, size):
    target = int(share * WHOLE)
    found = matcher.uniform(target, cache, "u", 4)
    if share == 0.53 and cache == "q8_0":
        assert found is None  # only full windows are as large
    else:
        made, window = found
        assert target <= allocated(made, cache) < target + 12 * PAD * size and made["sinks"] == 4
        assert cells(window + 1) > cells(window)  # no longer one fits into these cells

    order = [(il, ih) for ih in (2, 0, 1) for il in range(4)]
    found = matcher.split(target, cache, "d", order, 384, 128)
    if target > (11 * N_CTX + cells(384)) * size:
        assert found is None  # all heads would be full
        return
    made, n = found
    assert target <= allocated(made, cache) < target + (N_CTX - cells(384)) * size or n == 0
    rows = made["operating_points"][0]["entries"]
    assert {(il, ih) for il in range(4) for ih in range(3) if rows[il][ih] == "full"} == set(order[:n]) and made["sinks"] == 128


def layer_policy(codebook, choices):
    points = [{"name": f"p{i}", "method": "m", "entries": [[entry] * 3 for entry in choice]} for i, choice in enumerate(choices)]
    return {**SOURCE, "codebook": codebook, "operating_points": points}


TYPED = ["256:q4_0", "256:q8_0", "1024:q4_0", "1024:q8_0", "full:q4_0", "full:q8_0", "full:f16"]


@pytest.mark.unit
@pytest.mark.parametrize("share", [0.03, 0.08, 0.2, 0.4, 0.6, 0.9, 1.0])
@pytest.mark.parametrize("codebook, choices", [
    (TYPED, [["256:q4_0", "256:q8_0", "256:q4_0", "1024:q4_0"], ["1024:q8_0", "256:q8_0", "1024:q4_0", "full:q8_0"]]),
    (SOURCE["codebook"], [[256, 256, 1024, 256], [256, 1024, 2048, "full"]]),
])
def test_one_entry_a_layer_is_widened_to_the_bytes(matcher, share, codebook, choices):
    cache = None if codebook is TYPED else "f16"
    target = int(share * WHOLE)
    made = matching.LayerMatcher(matcher, layer_policy(codebook, choices), cache).match(target, "layers")
    rows = made["operating_points"][0]["entries"]
    assert all(len(set(row)) == 1 for row in rows)
    sizes = [allocated({**made, "operating_points": [{"entries": [[entry] * 3 for entry in choice]}]}, cache) for choice in choices]
    # a step is a cell of a layer, or its types
    assert target <= allocated(made, cache) < target + max(3 * PAD * 256, 3 * 320 * 64) or allocated(made, cache) == sizes[0]
    assert made["codebook"] == policies.in_order(made, made["codebook"]) and made["codebook"][-1] == codebook[-1]
    if sizes[0] < target < sizes[1]:  # between two points: nothing that the larger one does not have
        goal = [cells(policies.window_of(entry)) for entry in choices[1]]
        assert all(cells(policies.window_of(row[0])) <= most for row, most in zip(rows, goal))


@pytest.mark.unit
def test_nothing_is_larger_than_the_reference(matcher):
    found = matching.LayerMatcher(matcher, layer_policy(TYPED, [["256:q4_0"] * 4]), None)
    assert found.match(WHOLE, "layers") is not None and found.match(WHOLE + 1, "layers") is None


@pytest.mark.unit
def test_heads_that_lose_most_come_first():
    scores = [[[0.9, 0.99, 1, 1], [0.5, 0.6, 1, 1]], [[0.7, 1, 1, 1], [0.5, 0.9, 1, 1]]]
    policy = {**SOURCE, "operating_points": [{"name": "a", "bytes": 1, "scores": {"cosine": scores}}, {"name": "b", "bytes": 2}]}
    assert rivals.scored_point(policy)["name"] == "a"
    assert rivals.neediest_heads(policy, policy["operating_points"][0]) == [(0, 1), (1, 1), (1, 0), (0, 0)]
    typed = {**policy, "codebook": ["256:q4_0", "256:f16", "full:q4_0", "full:f16"]}
    assert rivals.neediest_heads(typed, policy["operating_points"][0]) == [(0, 1), (1, 1), (0, 0), (1, 0)]


#
# what is left out
#

ASKED = rivals_plan.Plan(budgets=["q8_0", "32MiB", "q4_0", "16MiB"], sides=["context-8192", "other"], depths=[0, 50])
CONFIGS = [(config, {"side": side, "own": own, "twin": twin}) for config, side, own, twin in [
    (SimpleNamespace(series="full", target=None, budget=None), None, False, False),
    (SimpleNamespace(series="ours", target=None, budget=None), None, True, False),
    (SimpleNamespace(series="ours", target=None, budget=None), None, False, False),
    (SimpleNamespace(series="duo", target="a", budget="q4_0"), None, False, True),
    (SimpleNamespace(series="duo", target="a", budget="q4_0"), None, False, False),
    (SimpleNamespace(series="duo", target="b", budget="32MiB"), None, False, False),
    (SimpleNamespace(series="ours", target=None, budget=None), "context-8192", True, False),
    (SimpleNamespace(series="plain", target=None, budget=None), "other", False, False),
]]


def amounts(plan):
    return [rivals_plan.amounts(plan, config, **more) for config, more in CONFIGS]


def cost(plan):
    return sum(10 * n_chunks + 7 * len(plan.depths) * n_needles for n_chunks, n_needles in amounts(plan))


@pytest.mark.unit
def test_all_is_measured_where_there_is_time():
    assert rivals_plan.decide(ASKED, cost, 2 * cost(ASKED)) == (ASKED, [])
    assert amounts(ASKED) == [(8, 2)] * 6 + [(4, 2)] * 2


@pytest.mark.unit
def test_what_is_missed_least_goes_first_and_bars_stay():
    before = cost(ASKED)
    plan, dropped = rivals_plan.decide(ASKED, cost, 0.9 * before)
    assert dropped == ["rivals at the bytes of 32MiB"] and plan.budgets == ["q8_0", "q4_0", "16MiB"] and cost(plan) <= 0.9 * before
    plan, dropped = rivals_plan.decide(ASKED, cost, 1.0)
    assert amounts(plan) == [(8, 2), (8, 2)] + [(0, 0)] * 6  # the full cache and our point for a budget
    assert len(dropped) == len(set(dropped)) and dropped[-2:] == ["context-8192", "all rivals"]
    costs = [cost(plan)]
    for share in (0.2, 0.4, 0.6, 0.8, 1.1):
        costs.append(cost(rivals_plan.decide(ASKED, cost, share * before)[0]))
    assert costs == sorted(costs)


@pytest.mark.unit
def test_what_is_done_is_not_left_out():
    plan, dropped = rivals_plan.decide(ASKED, lambda plan: 100 * plan.others, 10.0)
    assert dropped == ["our points that are for none of the bytes"] and plan.budgets == ASKED.budgets


#
# bars and the page
#

def config(name, series="plain", size=100, **more):
    return rivals.Config(name, series, size, **more)


def kl_of(*values):
    return {i: {"kl": value, "perplexity": 20.0, "perplexity_full": 20.0, "same_top": 0.9} for i, value in enumerate(values)}


def needles_of(*values):
    return {(64, 0, i): {"logprob": value, "greedy": value > -1} for i, value in enumerate(values)}


@pytest.mark.unit
@pytest.mark.parametrize("mean, half, expected", [
    (-2.0, 1.0, "yes"), (-0.5, 1.0, "yes, within the interval undecided"), (0.5, 1.0, "no, within the interval undecided"), (2.0, 1.0, "no"),
    (0.0, 0.0, "yes"), (-1.0, None, "yes, by one chunk"), (None, None, "not measured")])
def test_verdicts_of_bars(mean, half, expected):
    assert rivals_data.verdict_of({"mean": mean, "half": half, "n": 8}) == expected


@pytest.mark.unit
def test_bars_are_held_against_the_better_one_and_paired():
    configs = [config("a", "ours", 10), config("q4_0"), config("tau-0.995, q8_0", "tau", 90)]
    kl = {"a": kl_of(0.006, 0.010), "q4_0": kl_of(0.05, 0.07), "tau-0.995, q8_0": kl_of(0.01, 0.02)}
    found = {(bar["budget"], bar["factor"]): bar for bar in rivals_data.bars(configs, {"q4_0": "a"}, kl)}
    better, tenth = found["q4_0", 0.7], found["q4_0", 0.1]
    assert better["against"] == "tau-0.995, q8_0" and better["verdict"] == "yes, within the interval undecided"
    assert better["difference"]["mean"] == pytest.approx((0.006 - 0.007 + 0.010 - 0.014) / 2)
    assert tenth["against"] == "q4_0" and tenth["verdict"].startswith("no")
    assert {bar["verdict"] for key, bar in found.items() if key[0] != "q4_0"} == {"not measured"}
    text = rivals_page.bars_table(list(found.values()))
    assert "| q4_0 | a | 0.00 | 0.00800 ± " in text and "| tau-0.998, q8_0 | - |" in text


@pytest.mark.unit
def test_the_served_point_is_the_smallest_that_is_good_enough():
    def row(name, size, kl, needle, series="ours"):
        return {"name": name, "series": series, "bytes": size, "kl": {"mean": kl}, "needle": {"mean": needle, "half": 0.2}}

    full = row("full", 90, 0.0, -1.0, "full")
    rows = [full, row("a", 48, 0.0002, -1.0), row("b", 32, 0.0019, -1.19), row("c", 30, 0.0019, -1.21), row("d", 24, 0.0021, -1.0), row("q", 9, 0.0, -1.0, "plain")]
    found = rivals_data.served(rows)
    assert found["name"] == "b" and "**b**" in rivals_data.served_text(found)
    assert rivals_data.served([full, *rows[3:]])["name"] is None
    assert "No point of ours (2 were measured)" in rivals_data.served_text(rivals_data.served([full, *rows[3:]]))
    assert "Not decided" in rivals_data.served_text(rivals_data.served(rows[1:]))


@pytest.mark.unit
def test_rows_compare_the_same_examples():
    configs = [config("full", "full"), config("a", "ours"), config("r", "duo", target="a", budget="16MiB", over=0.1), config("unseen", "duo", target="a")]
    kl = {"full": kl_of(0, 0, 0), "a": kl_of(1, 5, 9), "r": kl_of(2, 6), "unseen": {}}
    needle = {"full": needles_of(-1, -1), "a": needles_of(-2, -4), "r": {}, "unseen": {}}
    kl["a"][2] = {"error": "gone"}
    rows = {row["name"]: row for row in rivals_data.rows_of(configs, kl, needle)}
    assert list(rows) == ["full", "a", "r"]
    assert rows["r"]["kl_to_ours"] == {"mean": 1.0, "half": 0.0, "n": 2} and rows["r"]["needle_to_ours"]["n"] == 0
    assert (rows["a"]["kl_failed"], rows["a"]["kl"]["n"], rows["a"]["needle_change"]["mean"]) == (1, 2, -2.0)
    assert rivals_data.errors_of(kl, needle) == [{"error": "gone"}] and rivals_data.failed(rows.values()) == 1
    table = rivals_page.rivals_table(rows.values())
    assert "| 16MiB | a | DuoAttention, 4 + 252 | +10.00% | 1.00000 ± 0.00000 | - | KL: ours, needle: undecided |" in table


@pytest.mark.unit
def test_verdict_needs_an_interval_that_leaves_out_zero():
    def found(mean, half):
        return {"mean": mean, "half": half, "n": 8}
    row = {"kl_to_ours": found(0.02, 0.01), "needle_to_ours": found(0.5, 0.6)}
    assert rivals_page.verdict(row) == "KL: ours, needle: undecided"
    row = {"kl_to_ours": found(-0.02, 0.01), "needle_to_ours": found(-0.7, 0.6)}
    assert rivals_page.verdict(row) == "KL: it, needle: ours"
    row = {"kl_to_ours": {"mean": None, "half": None, "n": 0}, "needle_to_ours": {"mean": 0.3, "half": None, "n": 1}}
    assert rivals_page.verdict(row) == "KL: undecided, needle: undecided"


@pytest.mark.unit
def test_the_frontier_is_what_nothing_smaller_beats():
    points = [(3, 0.5), (1, 9.0), (2, 0.7), (2, 0.6), (4, 0.5), (5, 0.1)]
    assert frontier.frontier(points) == [(1, 9.0), (2, 0.6), (3, 0.5), (5, 0.1)]


@pytest.fixture
def page(tmp_path):
    """A copy of the committed figures; the page is not there yet."""
    (tmp_path / "results").mkdir()
    shutil.copy(ROOT / "docs" / "results" / "rivals.json", tmp_path / "results")
    return tmp_path / "results-rivals.md"


@pytest.mark.unit
def test_the_committed_page_is_what_its_figures_say(page):
    assert cli.main(["rivals-page", "--page", str(page)]) == 0
    assert page.read_text() == (ROOT / "docs" / "results-rivals.md").read_text(), "scripts/eval rivals-page writes docs/results-rivals.md again"


@pytest.mark.unit
@pytest.mark.parametrize("text", ["{", "[]", '{"scenes": [1]}', None])
def test_figures_that_cannot_be_used_are_one_line(page, text, capsys):
    figures = page.parent / "results" / "rivals.json"
    figures.unlink() if text is None else figures.write_text(text)
    assert cli.main(["rivals-page", "--page", str(page)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not page.exists()


#
# with programs
#

@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny model with points by floor, points that were allocated, in types, and one entry a layer."""
    folder = make_tiny(tmp_path_factory.mktemp("rivals"))
    tau = policies.read(folder / "policy.json")
    entries = policies.in_order(tau, ["128:q4_0", "128:q8_0", "512:q8_0", "full:q8_0", "full:f16"])
    for name, by_layer in (("ours", False), ("ours-layers", True)):
        points = []
        for budget, heads in (("large", [3, 2]), ("small", [1, 0])):
            rows = [[entries.index(entries[heads[(jl if by_layer else ih) % 2]]) for ih in range(n)] for jl, n in enumerate(policies.heads(tau))]
            made = policies.with_point(tau, entries, rows, budget, "by hand", 4)["operating_points"][0]
            points.append({**made, "budget": made["bytes"], "lambda": 0.5})
        (folder / f"{name}.json").write_text(json.dumps({**tau, "version": 2, "codebook": entries, "sinks": 4, "operating_points": points, "selected": "large"}))
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def maker_of(tiny, out, policy="ours.json", **more):
    return rivals.Maker(need_program("llama-kv-policy").parent, tiny / "tiny.gguf", tiny / policy, 1024, out, tau=tiny / "policy.json", **more)


@pytest.mark.bridge
def test_allocated_bytes_of_rivals(tiny, tmp_path):
    maker = maker_of(tiny, tmp_path)
    configs, targets = maker.all(["q8_0", "q4_0", "1MiB"])
    by_name = {config.name: config for config in configs}
    assert len(by_name) == len(configs) and configs[0].series == "full" and targets["q8_0"] == "large"
    full = by_name["full"].bytes
    assert (by_name["q8_0"].bytes, by_name["q4_0"].bytes, by_name["q8_0/q4_0"].bytes) == (full * 34 // 64, full * 18 // 64, full * 26 // 64)
    assert by_name["q8_0/q4_0"].arguments() == ["-ctk", "q8_0", "-ctv", "q4_0"] and by_name["full"].arguments() == []
    assert by_name["large"].arguments() == ["--kv-policy", str(tiny / "ours.json"), "--kv-policy-point", "large"]
    held = [config for config in configs if config.target]
    assert {config.series for config in held} == {"uniform", "streaming", "layers", "duo", "duo-128"} and {config.cache for config in held} == {"f16", "q8_0", None}
    for config in held:
        ours = by_name[config.target]
        assert targets[config.budget] == config.target and config.bytes >= ours.bytes and config.over == config.bytes / ours.bytes - 1
        policy = policies.read(config.policy)
        # what is predicted with the model is what the matching counted with
        assert maker.matcher.bytes(policy, config.cache) == config.bytes
        assert policy["sinks"] == {"uniform": 0, "duo-128": 128}.get(config.series, 4)
        if config.cache is None:
            assert config.arguments()[0] == "--kv-policy"
    assert any(config.has_q4 for config in configs if config.series == "ours") and not by_name["q8_0"].has_q4
    floors = [config for config in configs if config.series == "tau"]
    assert not floors and sum("has no such point" in text for text in maker.left_out) == 3
    assert any("is the largest point again" in text or "takes so few" in text for text in maker.left_out) == (len(targets) < 3)


@pytest.mark.bridge
def test_layers_without_types_are_there_in_both(tiny, tmp_path):
    tool = need_program("llama-kv-policy")
    subprocess.run([tool, "make", "layers", "-o", tmp_path / "layers.json", "-m", tiny / "tiny.gguf", "-c", "1024", "--windows", "128,512,full,256", "--sinks", "4"],
                   check=True, capture_output=True)
    plain, other = maker_of(tiny, tmp_path), maker_of(tiny, tmp_path, layers=tmp_path / "layers.json")
    assert plain.identity != other.identity
    found = {config.name for config in other.all(["q8_0"])[0] if config.series == "layers"}
    assert "layers@q8_0" in found and found <= {"layers@q8_0", "layers-q8_0@q8_0"}
    assert [config.cache for config in plain.all(["q8_0"])[0] if config.series == "layers"] == [None]
    with pytest.raises(Failure, match="has several entries in a layer"):
        maker_of(tiny, tmp_path, layers=tiny / "ours.json")


@pytest.mark.bridge
def test_full_windows_beside_sliding_ones_are_made_as_ours(tmp_path):
    tool, model = need_program("llama-kv-policy"), tmp_path / "gemma.gguf"
    tiny_gguf.make_model(model, "gemma3", seed=1)
    subprocess.run([tool, "make", "uniform", "-o", tmp_path / "policy.json", "-m", model, "-c", "1024", "--window", "256"], check=True, capture_output=True)
    maker = rivals.Maker(tool.parent, model, tmp_path / "policy.json", 1024, tmp_path / "out")
    assert len(maker.data["model"]["layers"]) < maker.data["model"]["n_layer"]
    full = maker.plain("f16")
    for cache, share in (("q8_0", 34), ("q4_0", 18)):
        found = maker.plain(cache)
        assert (found.bytes, found.cache, found.series, found.note) == (full.bytes * share // 64, None, "plain", "sliding windows stay F16")
        assert found.arguments()[0] == "--kv-policy" and found.has_q4 == (cache == "q4_0")


def command(tiny, data, out):
    return list(map(str, [
        "rivals", "--model-file", tiny / "tiny.gguf", "--policy", tiny / "ours.json", "--tau-policy", tiny / "policy.json", "--other", tiny / "tiny.gguf",
        "--other-policy", tiny / "policy.json", "--other-context", 1024, "--programs", need_program("llama-server").parent, "--data", data, "--out", out,
        "--page", out / "page.md", "--threads", 1, "--context", 1024, "--budgets", "q8_0", "--chunks", 2, "--side-chunks", 2, "--examples", 1,
        "--depths", "0,100"]))


@pytest.mark.bridge
@pytest.mark.timeout(240)
def test_everything_survives_a_kill(tiny, data, tmp_path, capsys):
    out = tmp_path / "out"
    env = dict(os.environ, PYTHONPATH=str(ROOT / "scripts"))
    process = subprocess.Popen([sys.executable, "-m", "headwisekv.evaluate", *command(tiny, data, out)], env=env, stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    kl = out / "main" / "kl.jsonl"
    deadline = time.monotonic() + 120
    while not (kl.exists() and kl.read_text().count("\n") >= 8) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL, errors
    assert re.search(r"estimate: [\d.]+ min in all, limit 100 min: tiny, context 1024, KL .*, needles", errors)
    before = kl.read_text().splitlines()

    assert cli.main(command(tiny, data, out)) == 0
    errors = capsys.readouterr().err
    assert "going on in" in errors and kl.read_text().splitlines()[:len(before)] == before
    assert "bar at the bytes of q8_0, against q8_0: " in errors and "tiny, context 1024: " in errors
    page = (out / "page.md").read_text()
    data_out = json.loads((out / "results" / "rivals.json").read_text())
    assert page == rivals_page.page_of(data_out) and "failed" not in page and "not finished" not in page and "AdaKV" in page
    main, other = data_out["scenes"]
    rows = {row["name"]: row for row in main["rows"]}
    assert {"full", "large", "small", "q8_0", "q4_0", "q8_0/q4_0", "streaming@q8_0", "duo-128@q8_0", "layers@q8_0"} <= rows.keys()
    assert all(row["kl"]["n"] == 2 and row["needle"]["n"] == 2 and row["kl_failed"] == row["needle_failed"] == 0 for row in rows.values())
    assert abs(rows["full"]["kl"]["mean"]) < 1e-4 < rows["small"]["kl"]["mean"]  # the full cache from itself
    assert 0 <= rows["q8_0"]["kl"]["mean"] < rows["q4_0"]["kl"]["mean"] and rows["q8_0"]["kl"]["mean"] < rows["large"]["kl"]["mean"]
    assert main["bars"][0]["verdict"].startswith("no") and "bars" in other and other["bars"] == []
    assert {row["series"] for row in other["rows"]} <= {"full", "plain", "ours", "layers"}
    assert {path.name for path in (out / "results").iterdir()} == {"rivals.json", "rivals.png", "rivals-other.png"}
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in (out / "results").glob("*.png"))
    assert not list(out.rglob("logits.bin*"))

    again = kl.read_text()
    assert cli.main(command(tiny, data, out)) == 0 and kl.read_text() == again  # nothing is left to do
    assert cli.main([*command(tiny, data, out), "--chunks", "3"]) == 1
    assert "is of another run: asked is" in capsys.readouterr().err


@pytest.mark.bridge
def test_too_little_time_keeps_the_bars(tiny, data, tmp_path, monkeypatch, capsys):
    """As if it had taken longer than the limit already: what is not the base is left out, and named."""
    monkeypatch.setattr(run_rivals.State, "spent", lambda state: 1e6)
    assert cli.main(command(tiny, data, tmp_path)) == 0
    errors = capsys.readouterr().err
    assert "left out to stay within the limit: all rivals" in errors
    found = json.loads((tmp_path / "results" / "rivals.json").read_text())
    assert "all rivals" in found["dropped"] and "tiny, context 1024" in found["dropped"]
    rows = found["scenes"][0]["rows"]
    assert {row["name"] for row in rows} == {"full", "q8_0", "q4_0", "q8_0/q4_0", "large"} and all(row["kl"]["n"] == 2 for row in rows)


@pytest.mark.bridge
def test_what_is_missing_is_said(tiny, data, tmp_path, capsys):
    words = command(tiny, data, tmp_path)
    assert cli.main([*words, "--tau-policy", str(tmp_path / "none.json")]) == 1
    assert "there is no file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        cli.main([*words, "--budgets", "16GB"])
    assert usage.value.code == 2 and "found '16GB', expected q8_0, q4_0 or a size such as 32MiB" in capsys.readouterr().err
    left_out = []
    options = SimpleNamespace(other="no-model", other_policy=tmp_path / "none.json")
    assert run_rivals.other_model(options, left_out) is None and "there is no policy" in left_out[0]
    options.other_policy = tiny / "policy.json"
    assert run_rivals.other_model(options, left_out) is None and "a model's name" in left_out[1]
