"""llama-seqcalib --types: candidates of several cache types, rounded as such caches round them."""

import json
import subprocess

import pytest
from seqcalib_reference import Reference
from seqcalib_tool import (CHOICE, CONTEXT, SHORT, TYPED, agreement, check_numbers, letters_as_tokens, reference, tool, units,  # noqa: F401 (fixture)
                           validated)
from test_headwise_archs import ARCHS

from headwisekv import policy as policies

pytestmark = pytest.mark.bridge

# random weights: short windows, all positions in few bits, and all in F16
FLOORS = ("--tau", "0.6,0.97,0.9945,0.99999")


def types_of(policy, point):
    """What heads have: (window, K type, V type) of each, layer by layer."""
    return [[policies.parts(entry, policy["cache_types"]) for entry in row] for row in policies.matrix(point)]


def score_table(policy, point):
    """(layer, head, entry as spelled): score."""
    return {(il, ih, entry): score for il, row in enumerate(policies.scores(policy, point)) for ih, head in enumerate(row)
            for entry, score in zip(policy["codebook"], head)}


#
# rounding
#

# architecture, options, what K and V are rotated by: none without whole multiples of 64; gemma4 goes by its sliding layers
HEADS = {
    "64": ("llama", {}, (64, 64)),
    "96": ("llama", {"head_dim": 96}, (0, 0)),
    "128": ("llama", {"head_dim": 128}, (128, 64)),
    "192": ("llama", {"head_dim": 192}, (64, 64)),
    "gemma3 256": ("gemma3", {"head_dim": 256}, (256, 64)),
    "gemma4 64": ("gemma4", {}, (0, 0)),
    "qwen35 64": ("qwen35", {}, (64, 64)),
}


def rounding(program, model, type_k, type_v, *more):
    result = subprocess.run([program("round-test"), model, type_k, type_v, *more], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.mark.parametrize("name", HEADS)
def test_rounding_is_the_caches(tool, program, name):
    arch, options, rotated = HEADS[name]
    for type_k, type_v in (("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "q4_0"), ("iq4_nl", "q5_1")):
        found = rounding(program, tool.model(arch, **options), type_k, type_v)
        assert (found["rotated_k"], found["rotated_v"]) == rotated
        assert found["rounding"] > 1e-3  # else there was nothing to get right
        for side, n_rot in zip("kv", rotated):
            n_other, most = found[side]
            # turned back once by additions and once by the definition, in double
            assert most < 1e-6 if n_rot else n_other == 0, (type_k, type_v, side)


@pytest.mark.parametrize("cache_type", ["f16", "bf16"])
def test_rounding_of_floats(tool, program, cache_type):
    found = rounding(program, tool.model("llama"), cache_type, cache_type)
    assert found["rotated_k"] == found["rotated_v"] == found["k"][0] == found["v"][0] == 0
    assert found["rounding"] > 1e-4


def test_rounding_on_a_device(tool, program):
    """Whose memory is its own, and which attends to K and V of one type that is not iq4_nl."""
    for model in (tool.model("llama"), tool.model("gemma3")):
        for types in (("q8_0", "q8_0"), ("q4_0", "q4_0"), ("f16", "f16")):
            assert rounding(program, model, *types, "fake") == rounding(program, model, *types)
        for types in (("q8_0", "q4_0"), ("iq4_nl", "iq4_nl"), ("f16", "q8_0")):
            assert rounding(program, model, *types, "fake") == {"device": "Fake0"}


#
# scores
#


# The runtime rounds queries too, so what is half way between two of 16 steps may come to the other, and that adds up from layer to layer. A
# layer below in other types than it should be makes a difference of 0.005 in the second layer.
CLOSE = (2e-5, 2e-3, 1e-2, 1e-2)


@pytest.mark.parametrize("types, head_dim, sinks, n_seq, per_layer, taus", [
    ("f16,q8_0,q4_0", 64, 4, 2, False, (0.682, 0.9945)),
    ("q8_0,q8_0/q4_0,q4_0", 64, 0, 1, True, (0.682, 0.9945)),
    ("f16,q4_0", 96, 4, 1, False, (0.69, 0.9945)),
    ("q8_0/q4_0,q4_0", 128, 4, 1, False, (0.69, 0.9945)),
])
def test_against_a_calibration_in_numpy(tool, tmp_path, types, head_dim, sinks, n_seq, per_layer, taus):
    model = tool.model("llama", head_dim=head_dim)
    result = tool.run("-m", model, "-f", tool.text(), *SHORT, "--windows", "16,48,120", "--types", types, "--tau", ",".join(map(str, taus)),
                      "--sinks", sinks, "--n-seq", n_seq, *(["--per-layer"] if per_layer else []), "-o", tmp_path / "p.json")
    assert agreement(result) >= 0.9999
    policy = json.loads((tmp_path / "p.json").read_text())
    codebook = [(None if window == "full" else window, k, v) for window, k, v in (policies.parts(entry, None) for entry in policy["codebook"])]
    sequences = letters_as_tokens(tool.text().read_text(), n_seq, CONTEXT)

    for tau, point in zip(taus, policy["operating_points"], strict=True):
        scores, chosen = Reference(model, 4, 2, head_dim).calibrate(sequences, codebook, sinks, tau, per_layer)
        for il, (row, expected) in enumerate(zip(point["scores"]["cosine"], scores, strict=True)):
            for head, head_expected in zip(row, expected, strict=True):
                assert head == pytest.approx(head_expected, abs=CLOSE[il]), il
        assert policies.entries(policy, point) == chosen
        assert len({ie for row in chosen for ie in row}) > 1


def test_numpy_would_see_rows_that_are_not_rotated(tool, tmp_path, monkeypatch):
    # what the test above would miss otherwise
    _, policy = tool.calibrate(tmp_path / "p.json", "llama", *TYPED, "--tau", 0.99)
    at = policy["codebook"].index("full:q4_0")
    found = [head[at] for head in policies.scores(policy, policy["operating_points"][0])[0]]
    monkeypatch.setattr("seqcalib_reference.rotate", lambda x, n: x)
    sequences = letters_as_tokens(tool.text().read_text(), 1, CONTEXT)
    plain = Reference(tool.model("llama"), 4, 2, 64).calibrate(sequences, [(None, "q4_0", "q4_0"), (None, "f16", "f16")], 4, 0.99)[0][0]
    assert all(abs(head - expected[0]) > 1e-4 for head, expected in zip(found, plain, strict=True))


@pytest.mark.parametrize("name", ARCHS)
def test_every_architecture(tool, tmp_path, name):
    result, policy = tool.calibrate(tmp_path / "sweep.json", name, *TYPED, *FLOORS)
    assert agreement(result) >= 0.9999
    check_numbers(policy)
    assert policy["codebook"][reference(policy)] == "full:f16"
    assert len(policy["codebook"]) == 15
    chosen = {entry for point in policy["operating_points"] for _, entry, _ in units(policy, point)}
    assert len({policies.parts(entry, None)[1] for entry in chosen}) >= 2 and len(chosen) >= 3
    for ip in range(len(policy["operating_points"])):
        tool.check(tmp_path / "sweep.json", tool.model(name), "--point", ip)

    naive, _ = tool.calibrate(tmp_path / "naive.json", name, *TYPED, *FLOORS, "--naive")
    assert agreement(naive) >= 0.9999
    assert (tmp_path / "naive.json").read_bytes() == (tmp_path / "sweep.json").read_bytes()


def test_layers_that_cannot_be_cut_apart(tool, tmp_path):
    result, policy = tool.calibrate(tmp_path / "p.json", "gemma3n", *TYPED, *FLOORS)
    assert "every layer gets a pass over all layers below it" in result.stderr
    check_numbers(policy)


def test_bits_lose_what_they_should(tool, tmp_path):
    _, policy = tool.calibrate(tmp_path / "p.json", "llama", *TYPED)
    for (il, ih, entry), score in score_table(policy, policy["operating_points"][0]).items():
        if entry.startswith("full:"):
            lost = {"f16": (0, 0), "q8_0": (1e-6, 1e-3), "q4_0": (1e-3, 0.05)}[entry.split(":")[1]]
            assert lost[0] <= 1 - score <= lost[1], (il, ih, entry)


#
# one type, and the cache's
#


def test_one_type_gives_the_windows_of_the_cache(tool, tmp_path):
    _, cache = tool.calibrate(tmp_path / "cache.json", "llama")
    _, typed = tool.calibrate(tmp_path / "f16.json", "llama", "--types", "f16")
    assert cache["codebook"] == [16, 32, 64, 128, "full"] and typed["codebook"] == [f"{w}:f16" for w in cache["codebook"]]
    for point, expected in zip(typed["operating_points"], cache["operating_points"], strict=True):
        assert [[f"{w}:f16" for w in row] for row in expected["entries"]] == point["entries"]
        assert expected["scores"] == point["scores"]  # to the bit
        assert expected["artifact_id"] != point["artifact_id"]


def test_one_quantised_type(tool, tmp_path):
    # without types it is replayed as it lies in the cache, rotated
    args = ("-ctk", "q8_0", "-ctv", "q8_0")
    _, cache = tool.calibrate(tmp_path / "cache.json", "llama", *args)
    _, typed = tool.calibrate(tmp_path / "q8_0.json", "llama", "--types", "q8_0", *args)
    assert typed["codebook"][reference(typed)] == "full:q8_0"
    for point, expected in zip(typed["operating_points"], cache["operating_points"], strict=True):
        assert [[f"{w}:q8_0" for w in row] for row in expected["entries"]] == point["entries"]
        for row, expected_row in zip(point["scores"]["cosine"], expected["scores"]["cosine"]):
            for head, expected_head in zip(row, expected_row):
                assert head == pytest.approx(expected_head, abs=1e-5)


def test_f32_is_read_as_f16(tool, tmp_path):
    _, policy = tool.calibrate(tmp_path / "p.json", "llama", "--types", "f32,f16", "--tau", 1)
    for (il, ih, entry), score in (table := score_table(policy, policy["operating_points"][0])).items():
        assert score == table[il, ih, entry.replace("f32", "f16")]
    assert {entry for _, entry, _ in units(policy, policy["operating_points"][0])} == {"full:f16"}  # the cheaper one


#
# the reference
#


def test_the_reference_need_not_be_a_candidate(tool, tmp_path):
    _, policy = tool.calibrate(tmp_path / "p.json", "llama", "--windows", "32", "--types", "q4_0,q8_0/q4_0", "-ctk", "q8_0", "-ctv", "q8_0", *FLOORS)
    assert policy["cache_types"] == {"k": "q8_0", "v": "q8_0"}
    assert policy["codebook"] == ["32:q4_0", "32:q8_0/q4_0", "full:q4_0", "full:q8_0/q4_0", "full:q8_0"]
    check_numbers(policy)
    assert {entry for _, entry, _ in units(policy, policy["operating_points"][-1])} == {"full:q8_0"}


def test_entries_dearer_than_the_reference(tool, tmp_path):
    _, policy = tool.calibrate(tmp_path / "p.json", "llama", *TYPED, *FLOORS, "-ctk", "q4_0", "-ctv", "q4_0")
    check_numbers(policy)
    assert policy["codebook"][reference(policy)] == "full:q4_0" and policy["codebook"][-1] == "full:f16"
    # nothing is better than what it is compared with
    assert {entry for _, entry, _ in units(policy, policy["operating_points"][-1])} == {"full:q4_0"}
    assert all(score < 1 for (_, _, entry), score in score_table(policy, policy["operating_points"][0]).items() if entry != "full:q4_0")


def test_the_check_is_against_what_the_attention_read(tool, tmp_path):
    # heads whose only types lose much would fail it otherwise
    result, _ = tool.calibrate(tmp_path / "p.json", "llama", "--types", "q4_0", "-ctk", "q4_0", "-ctv", "q4_0")
    assert agreement(result) >= 0.9999


#
# the default
#


def test_default_types(tool, tmp_path):
    args = ("-f", tool.text(), *SHORT, "--windows", "32", "-o", tmp_path / "p.json", "--force")
    result = tool.run("-m", tool.model("llama"), *args)
    assert json.loads((tmp_path / "p.json").read_text())["codebook"] == ["32:q4_0", "32:q8_0", "32:f16", "full:q4_0", "full:q8_0", "full:f16"]
    assert "candidates" not in result.stderr

    result = tool.run("-m", tool.model("llama", head_dim=80), *args)
    assert json.loads((tmp_path / "p.json").read_text())["codebook"] == ["32:f16", "full:f16"]
    assert "candidates are in f16; impossible are q8_0 with head dim 80 in layer 0, q4_0 with head dim 80 in layer 0\n" in result.stderr


#
# the rest of a run
#


@pytest.mark.parametrize("name", ["llama", "gemma3", "gpt-oss"])
def test_two_runs_give_the_same_bytes(tool, tmp_path, name):
    for i, threads in enumerate((1, 1, 2)):
        tool.calibrate(tmp_path / f"{i}.json", name, *TYPED, *FLOORS, "--holdout", 1, "-t", threads)
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes() == (tmp_path / "2.json").read_bytes()


def test_resume(tool, tmp_path):
    command = ("-m", tool.model("llama"), "-f", tool.text(), *SHORT, *CHOICE, *TYPED, *FLOORS, "--holdout", 1)
    tool.run(*command, "-o", tmp_path / "whole.json")
    whole = (tmp_path / "whole.json").read_bytes()
    with open("/dev/full", "w") as full:
        tool.run(*command, "-o", "-", "--work", tmp_path / "whole.work", code=1, stdout=full)
    lines = (tmp_path / "whole.work").read_bytes().splitlines(keepends=True)
    for n in (2, 5, len(lines) - 2, len(lines)):
        out = tmp_path / f"{n}.json"
        out.with_suffix(".json.work").write_bytes(b"".join(lines[:n]))
        tool.run(*command, "-o", out, "--resume")
        assert out.read_bytes() == whole, n
    # other types are another run
    for types in ("f16,q8_0", "cache", "q8_0,f16,q4_0,q8_0/q4_0"):
        work = tmp_path / "other.json.work"
        work.write_bytes(b"".join(lines))
        result = tool.run(*command, "--types", types, "-o", tmp_path / "other.json", "--resume", code=1)
        assert "work file: found another model, text or setting" in result.stderr


def test_the_order_of_the_list_changes_nothing(tool, tmp_path):
    for i, types in enumerate(("f16,q8_0,q4_0", "q4_0,f16,q8_0")):
        tool.calibrate(tmp_path / f"{i}.json", "llama", "--types", types)
    assert (tmp_path / "0.json").read_bytes() == (tmp_path / "1.json").read_bytes()


def test_per_layer(tool, tmp_path):
    _, policy = tool.calibrate(tmp_path / "p.json", "llama", *TYPED, *FLOORS, "--per-layer")
    for point in policy["operating_points"]:
        assert point["method"].startswith("one entry a layer, tau-")
        assert all(len(set(row)) == 1 for row in point["entries"])
    assert len({entry for point in policy["operating_points"] for _, entry, _ in units(policy, point)}) >= 3


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen35", "gpt-oss"])
def test_holdout(tool, tmp_path, name):
    _, policy = tool.calibrate(tmp_path / "p.json", name, *TYPED, *FLOORS, "--holdout", 2)
    check_numbers(policy)
    validated(policy, 2)
    _, plain = tool.calibrate(tmp_path / "plain.json", name, *TYPED, *FLOORS)
    for point in policy["operating_points"]:
        del point["validation"]
    assert policy == plain


def test_bounds_of_a_layer_are_those_of_the_references_types(tool, tmp_path):
    # windows in F16 have them, whatever other candidates there are; the same numbers as without types
    _, cache = tool.calibrate(tmp_path / "cache.json", "llama", "--tau", 0.65, "--holdout", 1)
    _, typed = tool.calibrate(tmp_path / "f16.json", "llama", "--tau", 0.65, "--holdout", 1, "--types", "f16")
    assert typed["operating_points"][0]["validation"] == cache["operating_points"][0]["validation"]
    assert all("mass_bound" in row for row in typed["operating_points"][0]["validation"]["bounds"])
    _, other = tool.calibrate(tmp_path / "q8_0.json", "llama", "--tau", 0.65, "--holdout", 1, "--types", "q8_0")
    assert all("mass_bound" not in row and row["omitted_mass"] > 0 for row in other["operating_points"][0]["validation"]["bounds"])


def test_what_is_said_of_a_layer(tool, tmp_path):
    result, policy = tool.calibrate(tmp_path / "p.json", "llama", *TYPED, "--tau", 0.97)
    point = policy["operating_points"][0]
    lines = [line for line in result.stderr.splitlines() if ", layer " in line]
    assert len(lines) == 4
    for line, row in zip(lines, point["entries"], strict=True):
        assert f": {' '.join(row)}, scores " in line
    assert f"{100 * point['retention']:.1f}% kept so far" in lines[-1]


def test_report_and_statistics(tool, tmp_path):
    _, policy = tool.calibrate(tmp_path / "p.json", "llama", *TYPED, *FLOORS, "--html", tmp_path / "p.html")
    assert '"16:q4_0"' in (tmp_path / "p.html").read_text()
    text = tool.run("--show-statistics", tmp_path / "p.json").stdout
    for point in policy["operating_points"]:
        assert f"{100 * point['retention']:.2f}%" in text and f"{100 * point['retention_query']:.2f}%" in text
    assert "heads per entry" in text and "full:q8_0" in text and "nan" not in text
    # a layer's share is of bytes
    layer = policy["operating_points"][1]["entries"][0]
    share = sum(policies.position_bytes(policy["model"]["layers"][0], entry, None) * policies.kept(entry, CONTEXT) for entry in layer)
    share /= len(layer) * policies.position_bytes(policy["model"]["layers"][0], "full:f16", None) * CONTEXT
    part = text[text.index("== tau-0.97"):]
    assert f"{100 * share:.2f}%" in part.splitlines()[4]


#
# bad input
#


USAGE = {
    "--types: found 'q9', expected types of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, such as f16,q8_0,q8_0/q4_0, or cache alone": "q9",
    "--types: found '', expected types of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, such as f16,q8_0,q8_0/q4_0, or cache alone": "f16,",
    "--types: found 'cache', expected types of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, such as f16,q8_0,q8_0/q4_0, or cache alone":
        "f16,cache",
    "--types: found 'f16/', expected types of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl, such as f16,q8_0,q8_0/q4_0, or cache alone": "f16/",
    "--types: found q8_0 twice": "q8_0,f16,q8_0",
    "--types: found q8_0/q8_0 twice": "q8_0,q8_0/q8_0",
    "--types: the value is empty": "",
}


@pytest.mark.parametrize("message, types", USAGE.items())
def test_usage(tool, message, types):
    result = tool.run("-m", "none.gguf", "-f", tool.text(), "--types", types, code=2)
    assert result.stderr == f"llama-seqcalib: {message}\n" and result.stdout == ""


@pytest.mark.parametrize("head_dim, args, message", [
    (80, ("--types", "f16,q4_0"), "--types: found q4_0 with head dim 80 in layer 0, expected types whose blocks divide it"),
    (80, ("--types", "f16,f16/q8_0"), "--types: found f16/q8_0 with head dim 80 in layer 0, expected types whose blocks divide it"),
    (80, ("-ctk", "q8_0"), "-ctk and -ctv: found q8_0/f16 with head dim 80 in layer 0, expected types whose blocks divide it"),
    (64, ("--windows", ",".join(map(str, range(16, 37))), *TYPED),
     "--windows and --types: found 21 windows and full with 3 types, which are 66 entries, expected at most 63"),
    (64, ("--windows", ",".join(map(str, range(16, 47))), "--types", "q8_0,q4_0", "-ctk", "f32", "-ctv", "f32"),
     "--windows and --types: found 31 windows and full with 2 types, which are 65 entries, expected at most 64"),
])
def test_candidates_that_cannot_be(tool, head_dim, args, message):
    result = tool.run("-m", tool.model("llama", head_dim=head_dim), "-f", tool.text(), *SHORT, *args, code=2)
    assert result.stderr == f"llama-seqcalib: {message}\n" and result.stdout == ""


def test_as_many_candidates_as_a_policy_holds(tool, tmp_path):
    # a trace is in F32, for which there must be room if it is no candidate
    for args, n in (((), 63), (("-ctk", "f32", "-ctv", "f32"), 64)):
        _, policy = tool.calibrate(tmp_path / "p.json", "llama", "--windows", ",".join(map(str, range(16, 36))), *TYPED, *FLOORS, *args)
        check_numbers(policy)
        assert len(policy["codebook"]) == n
