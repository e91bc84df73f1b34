"""llama-kv-policy and cache types of the heads' own: make, retype, show, check, diff."""

import json
import re

import pytest
from kv_policy_cli import MIB, SCORES, WINDOWS, run, scored, scores_file, tiny, uniform, windows_of  # noqa: F401
from mixed_policy import typed_policy

from headwisekv import policy as policies

pytestmark = pytest.mark.bridge

TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
ENTRIES = ("64:q4_0", "64:q8_0/q4_0", "256:q8_0", "256:f16", "full:q8_0", "full:f16")


@pytest.fixture
def typed(uniform, tmp_path):
    """Six entries with types over the eight heads of a tiny model; 64 elements, so a row of K and V is 72, 104, 136 or 256 bytes."""
    return typed_policy(uniform(), tmp_path / "typed.json", ENTRIES, seed=1)


def read(file):
    return json.loads(file.read_text())


def point_of(file, ip=0):
    return read(file)["operating_points"][ip]


def words(file):
    """Every entry of the point, one after another."""
    return [entry for row in windows_of(file) for entry in row]


#
# make
#


@pytest.mark.parametrize("type_v", TYPES)
@pytest.mark.parametrize("type_k", TYPES)
def test_make_takes_every_type_of_ggmls_caches(run, tiny, tmp_path, type_k, type_v):
    out = tmp_path / "out.json"
    spelled = f"128:{type_k}" + (f"/{type_v}" if type_v != type_k else "")
    run("make", "uniform", "--window", spelled, "-c", 1024, "-m", tiny("llama"), "-o", out)
    policy = read(out)
    assert sorted(policy["codebook"]) == sorted([spelled, "full:f16"]) and policy["cache_types"] == {"k": "f16", "v": "f16"}
    assert windows_of(out) == [[spelled] * 2] * 4
    size = policies.row_bytes(type_k, 64) + policies.row_bytes(type_v, 64)
    assert point_of(out)["bytes"] == 8 * 128 * size
    assert point_of(out)["retention"] == pytest.approx(128 * size / (1024 * 256))
    assert point_of(out)["retention_query"] == pytest.approx(1 / 8)
    report = json.loads(run("check", out, "-m", tiny("llama"), "--json").stdout)
    assert [(g["window"], g["type_k"], g["type_v"], g["n_cells"]) for g in report["groups"]] == [(128, type_k, type_v, 192)]
    assert report["bytes"] == 8 * 192 * size
    run("show", out)


def test_make_says_types_once_for_all(run, tiny, tmp_path):
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    base = ("make", "layers", "-c", 1024, "-m", tiny("llama"), "--windows")
    run(*base, "512,full,64,512", "--types", "q8_0/q4_0", "-o", one)
    run(*base, "512:q8_0/q4_0,full:q8_0/q4_0,64:q8_0/q4_0,512:q8_0/q4_0", "-o", two)
    assert one.read_bytes() == two.read_bytes()
    assert read(one)["codebook"] == ["64:q8_0/q4_0", "512:q8_0/q4_0", "full:q8_0/q4_0", "full:f16"]
    # the reference can be of other types, and is then one with an entry
    run(*base, "512:f16,full:q8_0,64:q4_0,512:f16", "-ctk", "q8_0", "-ctv", "q8_0", "-o", one)
    assert read(one)["codebook"] == ["64:q4_0", "512:f16", "full:q8_0"]
    assert point_of(one)["retention"] == pytest.approx(point_of(one)["bytes"] / (8 * 1024 * 136))


@pytest.mark.parametrize(
    "args, message",
    [
        (["--window", "128:q9"], '--window: found "128:q9", expected types of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1 or iq4_nl'),
        (["--window", "128:q8_0/q8_0"], '--window: found "128:q8_0/q8_0", expected 128:q8_0'),
        (["--window", "0:q8_0"], '--window: found "0:q8_0", expected a positive 32-bit integer or full, and types after a colon as in 256:q8_0'),
        (["--window", "1024:q8_0"], "--window: found 1024:q8_0, expected less than the context 1024"),
        (["--window", "128:q8_0", "--types", "f16"], "--window: found 128:q8_0 beside --types, expected one of the two"),
        (["--window", "128", "--types", "q8"], "--types: found 'q8', expected a type as q8_0, one for K and another for V as q8_0/q4_0, or none"),
        (["--window", "128", "--types", "x" * 99], f"--types: found '{'x' * 99}', expected a type as q8_0, one for K and another for V as q8_0/q4_0, or none"),
        (["--window", "4:q8_0", "--sinks", "4"], "--sinks: found 4, expected less than the smallest window 4"),
    ],
)
def test_make_refuses_other_entries(run, tiny, args, message):
    result = run("make", "uniform", *args, "-c", 1024, "-m", tiny("llama"), "-o", "-", code=2)
    assert result.stderr == f"llama-kv-policy make: {message} (see llama-kv-policy make --help)\n"


def test_make_refuses_types_in_some_entries_only(run, tiny):
    result = run("make", "layers", "--windows", "64:q8_0,64,full,full", "-c", 1024, "-m", tiny("llama"), "-o", "-", code=2)
    assert "found 64 after 64:q8_0, expected types in all entries or in none" in result.stderr


def test_make_refuses_blocks_that_do_not_divide_the_heads(run, tiny, tmp_path):
    # 80 elements are two and a half blocks
    base = ("make", "uniform", "-c", 1024, "-m", tiny("llama", head_dim=80), "-o", tmp_path / "out.json", "--window")
    assert "found q4_0 and q4_0, expected types whose blocks divide the head dims 80 and 80" in run(*base, "128:q4_0", code=2).stderr
    run(*base, "128:bf16")
    assert "blocks" in run("make", "retype", "--policy", tmp_path / "out.json", "--types", "q8_0", "-o", "-", code=2).stderr


def test_rules_on_scores_of_entries_with_types(run, tmp_path):
    codebook = ["256:q4_0", "256:f16", "full:q4_0", "full:f16"]
    table = [[[0.90, 0.92, 0.97, 1.0], [0.50, 0.91, 0.98, 1.0]], [[0.20, 0.30, 0.99, 1.0], [0.95, 0.94, 0.99, 1.0]]]
    made = policies.with_point(scored(WINDOWS, SCORES), codebook, [[0, 1], [2, 0]], "base", "by hand", 4)
    made["operating_points"][0].update(scores={"cosine": table}, min_score=0.90)
    file, out = tmp_path / "scores.json", tmp_path / "out.json"
    file.write_text(json.dumps(made))

    run("make", "threshold", "--scores", file, "--tau", 0.91, "-o", out)
    assert windows_of(out) == [["256:f16", "256:f16"], ["full:q4_0", "256:q4_0"]]  # the cheapest that reach it, by bytes
    run("make", "duo", "--scores", file, "--window", "256:q4_0", "--ratio", 0.5, "-o", out)
    assert windows_of(out) == [["256:q4_0", "full:f16"], ["full:f16", "256:q4_0"]]
    assert read(out)["selected"] == "duo-256:q4_0-0.5"
    run("make", "duo", "--scores", file, "--window", "full:q4_0", "--ratio", 0.25, "-o", out)
    assert words(out).count("full:f16") == 1
    for window in ("256", "512:q4_0", "full:f16"):
        assert f"--window: found {window}, expected an entry of the codebook" in run("make", "duo", "--scores", file, "--window", window, "--ratio", 0.5,
                                                                                     "-o", "-", code=2).stderr


#
# retype
#


def test_retype_gives_windows_types(run, scores_file, tmp_path):
    out = tmp_path / "out.json"
    result = run("make", "retype", "--policy", scores_file, "--types", "q8_0/q4_0", "-o", out)
    assert result.stderr == f"llama-kv-policy: warning: {out}: scores and validation are left out, they were measured with other types\n"
    policy = read(out)
    assert policy["codebook"] == ["256:q8_0/q4_0", "1024:q8_0/q4_0", "full:q8_0/q4_0", "full:f16"]
    assert policy["cache_types"] == {"k": "f16", "v": "f16"}
    assert windows_of(out) == [["256:q8_0/q4_0", "1024:q8_0/q4_0"], ["full:q8_0/q4_0", "256:q8_0/q4_0"]]
    point = policy["operating_points"][0]
    assert (point["name"], point["method"]) == ("base", "tau 0.9 with types q8_0/q4_0")
    assert "tau" not in point and "scores" not in point and "min_score" not in point
    assert (policy["sinks"], policy["calibration"]["text"]) == (4, "some text")


def test_retype_to_another_cache(run, scores_file, tmp_path):
    out = tmp_path / "out.json"
    run("make", "retype", "--policy", scores_file, "-ctk", "q8_0", "-ctv", "q8_0", "-o", out)
    policy = read(out)
    assert (policy["codebook"], policy["cache_types"]) == ([256, 1024, "full"], {"k": "q8_0", "v": "q8_0"})
    assert windows_of(out) == WINDOWS
    assert point_of(out)["method"] == "tau 0.9 with types q8_0/q8_0"
    assert point_of(out)["retention"] == pytest.approx(point_of(scores_file)["retention"])


def test_retype_that_changes_the_spelling_only_keeps_what_was_measured(run, scores_file, tmp_path):
    out, back = tmp_path / "out.json", tmp_path / "back.json"
    assert run("make", "retype", "--policy", scores_file, "--types", "f16", "-o", out).stderr == ""
    assert read(out)["codebook"] == ["256:f16", "1024:f16", "full:f16"]
    assert point_of(out)["tau"] == 0.9 and point_of(out)["scores"]["cosine"] == SCORES
    assert run("make", "retype", "--policy", out, "--types", "none", "-o", back).stderr == ""
    assert read(back)["codebook"] == [256, 1024, "full"]
    assert point_of(back)["scores"]["cosine"] == SCORES and windows_of(back) == WINDOWS
    # the same types under another reference are not the same
    run("make", "retype", "--policy", out, "-ctk", "q8_0", "-ctv", "q8_0", "-o", back)
    assert read(back)["codebook"] == ["256:f16", "1024:f16", "full:q8_0", "full:f16"]
    assert "scores" not in point_of(back) and windows_of(back) == windows_of(out)
    assert point_of(back)["method"] == "tau 0.9 with reference q8_0/q8_0"
    # spelled as before, yet for another cache
    run("make", "retype", "--policy", out, "--types", "none", "-ctk", "q4_0", "-ctv", "q4_0", "-o", back)
    assert "scores" not in point_of(back) and read(back)["cache_types"] == {"k": "q4_0", "v": "q4_0"}


def test_retype_to_one_type(run, typed, tmp_path):
    out = tmp_path / "out.json"
    run("make", "retype", "--policy", typed, "--types", "q4_0", "-o", out)
    assert read(out)["codebook"] == ["64:q4_0", "256:q4_0", "full:q4_0", "full:f16"]
    assert words(out) == [re.sub(":.*", ":q4_0", entry) for entry in words(typed)]
    run("make", "retype", "--policy", typed, "--types", "none", "-o", out)
    assert read(out)["codebook"] == [64, 256, "full"]
    assert [str(w) for w in words(out)] == [re.sub(":.*", "", entry) for entry in words(typed)]
    # a one-type policy can be run with any cache again
    run("check", out, "-ctk", "q8_0", "-ctv", "q8_0")


def test_retype_keeps_every_point_and_the_selected_one(run, scores_file, tiny, tmp_path):
    three, out = tmp_path / "three.json", tmp_path / "out.json"
    run("make", "threshold", "--scores", scores_file, "--tau", "0.9,0.96,1", "-o", three)
    policy = read(three)
    policy["selected"] = "threshold-0.96"
    policy["operating_points"][1]["method"] = "m" * 127
    three.write_text(json.dumps(policy))
    run("make", "retype", "--policy", three, "--types", "q8_0", "-o", out)
    found = read(out)
    assert [point["name"] for point in found["operating_points"]] == ["threshold-0.9", "threshold-0.96", "threshold-1"]
    assert found["selected"] == "threshold-0.96"
    assert found["operating_points"][1]["method"] == "m" * 79 + " with types q8_0/q8_0"
    assert "$.model.n_layer: found 2, expected 4" in run("make", "retype", "--policy", three, "--types", "q8_0", "-m", tiny("llama"), "-o", "-", code=1).stderr


def test_retype_needs_room_for_the_reference(run, tmp_path):
    file = tmp_path / "many.json"
    codebook = [*range(256, 256 + 63), "full"]
    policy = scored([[256, "full"]], [[[0.95] * 63 + [1.0]] * 2], codebook=codebook)
    file.write_text(json.dumps(policy))
    run("make", "retype", "--policy", file, "--types", "f16", "-o", "-")
    result = run("make", "retype", "--policy", file, "--types", "q8_0", "-o", "-", code=2)
    assert "found 64 entries besides the reference full:f16, expected at most 63" in result.stderr


@pytest.mark.parametrize(
    "args, message",
    [
        (["--types", "q8_0"], "retype needs --policy"),
        (["--policy", "x"], "retype needs --types, -ctk or -ctv"),
        (["--policy", "x", "--types", "q8_0", "--window", "8"], "retype takes no --window"),
        (["--policy", "x", "--types", "q8_0", "--scores", "y"], "retype takes no --scores"),
        (["--policy", "x", "--types", "q8_0", "-c", "8"], "retype takes no -c"),
        (["--policy", "x", "--types", "q8_0", "--sinks", "8"], "retype takes no --sinks"),
        (["--policy", "x", "--types", "q8_0", "--name", "z"], "retype takes no --name"),
    ],
)
def test_retype_usage(run, args, message):
    result = run("make", "retype", *args, "-o", "-", code=2)
    assert result.stderr == f"llama-kv-policy make: {message} (see llama-kv-policy make --help)\n"


#
# show
#


def test_show_marks_types(run, typed):
    lines = run("show", typed).stdout.splitlines()
    symbols = {"64:q4_0": "1.", "64:q8_0/q4_0": "1*", "256:q8_0": "2:", "256:f16": "2", "full:q8_0": "F:", "full:f16": "F"}
    start = lines.index("  layer  0  1") + 1
    for il, row in enumerate(windows_of(typed)):
        assert lines[start + il] == f"      {il}  {symbols[row[0]]:2} {symbols[row[1]]}"
    legend = " ".join(lines[start + 5:start + 8])
    for entry, symbol in symbols.items():
        assert f"{symbol:2} {entry}: {words(typed).count(entry)} head" in legend


def test_show_colours_are_those_of_windows(run, typed):
    out = run("show", typed, "--color", "always").stdout
    pairs = set(re.findall(r"\033\[48;5;(\d+);38;5;\d+m([12F])", out))  # one colour for each window, whatever the type
    assert len(pairs) == len({colour for colour, _ in pairs}) == 3 and {symbol for _, symbol in pairs} == set("12F")
    assert re.sub(r" +$", "", re.sub(r"\033\[[0-9;]*m", "", out), flags=re.MULTILINE) == run("show", typed).stdout


def test_show_every_pair_of_types_has_a_mark_of_its_own(run, uniform, tmp_path):
    pairs = [f"full:{k}" + (f"/{v}" if v != k else "") for k in TYPES for v in TYPES][:63]
    for i in range(0, 63, 8):
        some = [entry for entry in pairs[i:i + 8]]
        file = typed_policy(uniform(), tmp_path / "pairs.json", some, seed=2)
        policy = read(file)
        policy["codebook"] = policies.in_order(policy, {*pairs, "full:f16"})
        file.write_text(json.dumps(policy))
        out = run("show", file).stdout
        marks = re.findall(r"F(.) full:([^:]+): [12] heads?", out)
        assert len(marks) == len(some) and len({mark for mark, _ in marks}) == len(some)
        assert all(mark == {"f16": " ", "q4_0": ".", "q8_0": ":"}.get(types, mark) for mark, types in marks)


def test_show_budget(run, typed):
    policy = read(typed)
    policy["operating_points"][0].update(method="allocated", budget=3 * MIB, **{"lambda": 1e-9})
    typed.write_text(json.dumps(policy))
    assert "allocated, 3 MiB" in run("show", typed).stdout


#
# check and diff
#


def test_check_has_a_column_of_types(run, typed, tiny):
    lines = run("check", typed, "-m", tiny("llama")).stdout.splitlines()
    assert lines[1].split()[2:5] == ["plain", "cache", "f16/f16,"]
    assert lines[3].split() == ["window", "layers", "heads", "cells", "MiB", "bytes", "types"]
    found = {(row[0], row[-1]): (int(row[2]), int(row[3]), int(row[5])) for row in map(str.split, lines[4:10])}
    row = {"q4_0": 72, "q8_0/q4_0": 104, "q8_0": 136, "f16": 256}
    cells = {"64": 128, "256": 320, "full": 1024}
    for entry in ENTRIES:
        window, types = entry.split(":")
        n = words(typed).count(entry)
        assert found[window, types] == (n, cells[window], n * cells[window] * row[types])


def test_check_refuses_types_for_a_whole_cache(run, typed):
    for option in ("-ctk", "-ctv", "--cache-type-k", "--cache-type-v"):
        result = run("check", typed, option, "f16", code=1)
        assert result.stderr == (f"llama-kv-policy: {typed}: $.codebook: found {'-ctk' if option[-1] == 'k' else '-ctv'} beside entries with types of their own such "
                                 "as 64:q4_0, expected no types for the whole cache (llama-kv-policy make retype gives a policy other types)\n")
    assert run("check", typed).stderr == ""


def test_check_refuses_quantised_v_without_flash_attention(run, typed, tiny):
    result = run("check", typed, "-m", tiny("llama"), "-fa", "off", code=1)
    assert re.fullmatch(rf"llama-kv-policy: {typed}: \$\.codebook\[\d\]: found V cache type q[48]_0 without flash attention, expected f32, f16 or bf16\n", result.stderr)


def test_check_warns_of_more_bytes_than_the_plain_cache(run, tiny, tmp_path):
    out = tmp_path / "out.json"
    run("make", "uniform", "--window", "full:f32", "-c", 1024, "-m", tiny("llama"), "-o", out)
    assert run("check", out).stderr == f"llama-kv-policy: warning: {out}: it takes 2.00 MiB more than the plain cache of f16/f16\n"


def test_diff_tells_types(run, typed, tmp_path):
    other = tmp_path / "other.json"
    run("make", "retype", "--policy", typed, "--types", "q8_0", "-o", other)
    lines = run("diff", typed, other, code=1).stdout.splitlines()
    changed = sum(not entry.endswith(":q8_0") for entry in words(typed))
    assert lines[-1] == f"{changed} of 8 heads differ: 0 longer, 0 shorter in the second, {changed} with other types"
    assert re.fullmatch(r"layer +\d head +\d: +64:q8_0/q4_0 -> +64:q8_0", next(line for line in lines if "q8_0/q4_0" in line))


def test_diff_of_windows_alone_and_the_same_with_types(run, scores_file, tmp_path):
    same, other = tmp_path / "same.json", tmp_path / "other.json"
    run("make", "retype", "--policy", scores_file, "--types", "f16", "-o", same)
    run("make", "retype", "--policy", scores_file, "--types", "q8_0", "-o", other)
    run("diff", scores_file, same)
    assert run("diff", scores_file, other, code=1).stdout.splitlines()[-1] == "4 of 4 heads differ: 0 longer, 0 shorter in the second, 4 with other types"
