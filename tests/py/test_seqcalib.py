"""llama-seqcalib: the algorithm, on tiny random models of every architecture."""

import json
import subprocess

import pytest
from seqcalib_reference import Reference
from seqcalib_tool import CHOICE, CONTEXT, SHORT, TAUS, agreement, check_numbers, letters_as_tokens, select, tool, units  # noqa: F401 (fixture)
from test_headwise_archs import ARCHS

from headwisekv import policy as policies

pytestmark = pytest.mark.bridge

NAIVE_LINE = "every layer gets a pass over all layers below it"


#
# every architecture
#


@pytest.mark.parametrize("name", [*ARCHS, "gemma2"])
def test_every_architecture(tool, tmp_path, name):
    result, policy = tool.calibrate(tmp_path / "sweep.json", name)
    assert agreement(result) >= 0.9999
    check_numbers(policy)
    if name in ARCHS:
        assert [layer["layer"] for layer in policy["model"]["layers"]] == ARCHS[name][2]
    # else most of what follows would say nothing
    assert len({w for point in policy["operating_points"] for _, w, _ in units(policy, point)}) >= 3
    for ip in range(len(TAUS)):
        tool.check(tmp_path / "sweep.json", tool.model(name), "--point", ip)

    naive, _ = tool.calibrate(tmp_path / "naive.json", name, "--naive")
    assert agreement(naive) >= 0.9999
    assert (tmp_path / "naive.json").read_bytes() == (tmp_path / "sweep.json").read_bytes()
    assert NAIVE_LINE not in result.stderr


def test_layers_that_cannot_be_cut_apart(tool, tmp_path):
    # several streams pass from layer to layer
    result, policy = tool.calibrate(tmp_path / "sweep.json", "gemma3n")
    assert f"the input of layer 1 is not one tensor: {NAIVE_LINE}" in result.stderr
    assert agreement(result) >= 0.9999
    check_numbers(policy)
    naive, _ = tool.calibrate(tmp_path / "naive.json", "gemma3n", "--naive")
    assert NAIVE_LINE not in naive.stderr
    assert (tmp_path / "naive.json").read_bytes() == (tmp_path / "sweep.json").read_bytes()
    dry = tool.run("-m", tool.model("gemma3n"), "-f", tool.text(), *SHORT, "--dry-run")
    assert "every layer from the tokens" in dry.stdout


def test_draft_layers_are_not_calibrated(tool, tmp_path):
    _, plain = tool.calibrate(tmp_path / "plain.json", "qwen35")
    model = tool.model("qwen35", n_nextn=1)
    tool.run("-m", model, "-f", tool.text(), *SHORT, *CHOICE, "-o", tmp_path / "mtp.json")
    policy = json.loads((tmp_path / "mtp.json").read_text())
    assert [p["scores"]["cosine"] for p in policy["operating_points"]] == [p["scores"]["cosine"] for p in plain["operating_points"]]


#
# the scores
#


@pytest.mark.parametrize("sinks, n_seq, per_layer", [(0, 1, False), (4, 2, False), (0, 1, True)])
def test_against_a_calibration_in_numpy(tool, tmp_path, sinks, n_seq, per_layer):
    # every layer: its scores depend on the windows chosen below it
    tau = 0.62 if per_layer else 0.7
    result = tool.run("-m", tool.model("llama"), "-f", tool.text(), *SHORT, "--windows", "16,48,120", "--types", "cache", "--tau", tau,
                      "--sinks", sinks, "--n-seq", n_seq, *(["--per-layer"] if per_layer else []), "-o", tmp_path / "p.json")
    assert agreement(result) >= 0.9999
    found = json.loads((tmp_path / "p.json").read_text())["operating_points"][0]

    codebook = [(window, "f16", "f16") for window in (16, 48, 120, None)]
    sequences = letters_as_tokens(tool.text().read_text(), n_seq, CONTEXT)
    scores, chosen = Reference(tool.model("llama"), 4, 2, 64).calibrate(sequences, codebook, sinks, tau, per_layer)
    windows = [[codebook[ie][0] or "full" for ie in row] for row in chosen]

    assert len({w for row in windows for w in row}) > 1
    for il, (row, expected) in enumerate(zip(found["scores"]["cosine"], scores, strict=True)):
        for head, head_expected in zip(row, expected, strict=True):
            # computed in float32, and queries are rounded to F16 where the runtime attends
            assert head == pytest.approx(head_expected, abs=1e-3), il
    assert found["entries"] == windows
    assert not per_layer or (all(len(set(row)) == 1 for row in windows) and found["method"] == "one window a layer, tau-0.62 for the mean of its heads")


@pytest.mark.parametrize("cache_type", ["f32", "bf16", "q8_0"])
def test_cache_types(tool, tmp_path, cache_type):
    _, f16 = tool.calibrate(tmp_path / "f16.json", "llama")
    result, policy = tool.calibrate(tmp_path / "p.json", "llama", "-ctk", cache_type, "-ctv", cache_type)
    # the runtime rounds the query too, to what it multiplies with the keys
    assert agreement(result) >= (0.999 if cache_type == "q8_0" else 0.9999)
    assert policy["cache_types"] == {"k": cache_type, "v": cache_type}
    check_numbers(policy)
    for found, expected in zip(policy["operating_points"][0]["scores"]["cosine"][0], f16["operating_points"][0]["scores"]["cosine"][0]):
        assert found == pytest.approx(expected, abs=0.01)  # rounding, no more
        # llama.cpp's flash attention reads F32 as F16
        assert (found == expected) == (cache_type == "f32")
    assert len({p["operating_points"][0]["artifact_id"] for p in (policy, f16)}) == 2


def test_mixed_cache_types(tool, tmp_path):
    _, policy = tool.calibrate(tmp_path / "p.json", "gemma3", "-ctk", "q8_0", "-ctv", "f16")
    assert policy["cache_types"] == {"k": "q8_0", "v": "f16"}
    check_numbers(policy)
    assert tool.check(tmp_path / "p.json", tool.model("gemma3"))


def test_queries_are_drawn_by_the_seed(tool, tmp_path):
    args = ("--n-query", 20, "--tau", 0.6)
    scores = []
    for i, seed in enumerate((1, 2, 1)):
        _, policy = tool.calibrate(tmp_path / f"{i}.json", "llama", *args, "--seed", seed)
        assert policy["calibration"]["seed"] == seed
        assert policy["calibration"]["n_query"] == 20
        scores.append(policy["operating_points"][0]["scores"]["cosine"])
    assert scores[0] != scores[1]
    assert scores[0] == scores[2]


def test_the_smallest_runs(tool, tmp_path):
    # one query, batches that don't divide the context, windows of one position and one less than the context
    for args in (("--n-query", 1, "-ub", 7, "-c", 100), ("--n-query", 3, "-ub", 512, "-c", 64), ("--n-query", 500, "-ub", 1, "-c", 64)):
        windows = ("--sinks", 0, "--windows", "1,2,63", "--tau", "0.3,1")
        result, policy = tool.calibrate(tmp_path / "p.json", "llama", *args, *windows)
        assert agreement(result) >= 0.9999
        check_numbers(policy)
        # a window that leaves out one position of 64
        assert policy["context"] > 64 or all(scores[2] > 0.5 for _, _, scores in units(policy, policy["operating_points"][0]))


#
# the same input, the same bytes
#


@pytest.mark.parametrize("name", ["llama", "qwen35moe", "gemma3"])
def test_two_runs_give_the_same_bytes(tool, tmp_path, name):
    for i in range(2):
        tool.calibrate(tmp_path / f"{i}.json", name, "--holdout", 1)
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()


def test_threads_change_no_byte(tool, tmp_path):
    for n in (1, 2):
        tool.calibrate(tmp_path / f"{n}.json", "llama", "-t", n, "-c", 192, "-ub", 192, "--holdout", 1)
    assert (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


def test_several_floors_are_as_several_runs(tool, tmp_path):
    _, together = tool.calibrate(tmp_path / "all.json", "qwen3")
    windows = [p["entries"] for p in together["operating_points"]]
    assert windows[0] != windows[1] != windows[2]  # else there was nothing to keep apart
    for ip, tau in enumerate(TAUS):
        _, alone = tool.calibrate(tmp_path / "one.json", "qwen3", "--tau", tau)
        assert alone["operating_points"] == [together["operating_points"][ip]]


def test_sequences_and_texts(tool, tmp_path):
    _, one = tool.calibrate(tmp_path / "1.json", "llama")
    _, policy = tool.calibrate(tmp_path / "3.json", "llama", "--n-seq", 3, "-f", tool.text(2))
    check_numbers(policy)
    assert policy["calibration"]["n_seq"] == 3
    assert policy["calibration"]["text"] == f"{tool.text().name},{tool.text(2).name}"
    assert policy["operating_points"][0]["scores"]["cosine"] != one["operating_points"][0]["scores"]["cosine"]


def test_control_tokens_in_the_text(tool, tmp_path):
    text = tmp_path / "chat.txt"
    text.write_text("".join(f"</s>{'bcdfgh' * 5}" for _ in range(40)))
    ids = []
    for args in ((), ("--parse-special",)):
        tool.run("-m", tool.model("llama"), "-f", text, *SHORT, *CHOICE, *args, "-o", tmp_path / "p.json", "--force")
        ids.append(json.loads((tmp_path / "p.json").read_text())["operating_points"][0]["artifact_id"])
    assert ids[0] != ids[1]


#
# budgets
#


def test_budgets(tool, tmp_path):
    out = tmp_path / "p.json"
    _, policy = tool.calibrate(out, "llama", "--tau", "0.8,0.5,0.65,0.99,0.95")
    assert policy["selected"] == "tau-0.8"  # the first
    points = policy["operating_points"]
    records = [(p["retention"], p["min_score"]) for p in points]
    assert len(set(records)) >= 4

    retentions = sorted({r for r, _ in records})
    for budget in (*retentions[1:], *(r + 1e-3 for r in retentions[:-1])):
        _, found = tool.calibrate(out, "llama", "--tau", "0.8,0.5,0.65,0.99,0.95", "--budget", repr(budget))
        assert found["operating_points"] == points
        assert found["selected"] == points[select(records, budget)]["name"]


def test_budgets_in_bytes(tool, tmp_path):
    # the cells of a ring are a multiple of 256
    out = tmp_path / "p.json"
    args = ("-c", 1024, "--windows", "16,300,600", "--tau", "0.3,0.7,0.9")
    _, policy = tool.calibrate(out, "llama", *args)
    allocated = [tool.check(out, tool.model("llama"), "--point", ip)["bytes"] for ip in range(3)]
    assert allocated[0] < allocated[1] < allocated[2]
    for ip in range(3):
        fits = f"{allocated[ip] / 1024}KiB"
        _, found = tool.calibrate(out, "llama", *args, "--budget", fits)
        assert found["selected"] == policy["operating_points"][ip]["name"]


@pytest.mark.parametrize("budget", ["0.001", "0.001MiB"])
def test_no_operating_point(tool, tmp_path, budget):
    _, plain = tool.calibrate(tmp_path / "plain.json", "llama")
    result, policy = tool.calibrate(tmp_path / "p.json", "llama", "--budget", budget, code=3)
    assert "no operating point" in result.stderr
    assert policy["operating_points"] == plain["operating_points"]
    assert not (tmp_path / "p.json.work").exists()


#
# the default model
#


def test_default_model(tool, model, root, tmp_path):
    text = tmp_path / "text.txt"
    # prose that every checkout has
    text.write_text("\n".join((root / name).read_text() for name in ("README.md", "docs/how-it-works.md", "src/README.md", "src/policy/hwkv.h")))
    out = tmp_path / "p.json"
    result = tool.run("-m", model, "-f", text, "-c", 512, "--windows", "32,64,128,256", "--tau", 0.98, "-t", 1, "-o", out)
    assert agreement(result) >= 0.9999
    policy = json.loads(out.read_text())
    check_numbers(policy)
    point = policy["operating_points"][0]
    assert 0.1 < point["retention"] < 0.6
    chosen = {policies.parts(entry, None) for _, entry, _ in units(policy, point)}
    assert len({window for window, _, _ in chosen}) >= 3 and len({type_k for _, type_k, _ in chosen}) >= 2
    assert tool.check(out, model)["bytes"] > 0
    assert subprocess.run([tool.binary, "--show-statistics", out], capture_output=True, timeout=60).returncode == 0
