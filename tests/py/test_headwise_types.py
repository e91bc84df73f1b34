"""Cache types of the heads' own, from policy files: several groups with one window, and two or more with full history, share cells.

The reference is a cache of floats without window groups, which rounds every head as its entry says, in the space where llama.cpp rounds it. It
does not round the query, which ggml does beside keys in blocks.
"""

import json
import re
import subprocess

import pytest
from bridge_bench import MEMORIES, Bench, check_rounded, every_type

pytestmark = pytest.mark.bridge

# K and V alike, and q4_0 values beside q8_0 keys
THREE = ("f16", "q8_0", "q4_0")
MIXED = (*every_type(("48", "full"), THREE), "48:q8_0/q4_0", "full:q8_0/q4_0")
FINE = every_type(("16", "48", "full"), ("f16", "q8_0"))  # what does not move a value far when a sum is taken in another order

LENGTH = ("-fa", "on", "-c", 512, "-ub", 64, "-n", 330, "-d", 60)

# Steps of 4 bits are large: a value beside a rounding boundary, or a query that ggml rounds, moves more.
KL_FINE   = 1e-5
KL_COARSE = 2.5e-4


@pytest.fixture(scope="module")
def bench(program, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("types"), program)


def many_heads(bench, arch):
    """Enough KV heads for every entry of MIXED."""
    return bench.model(arch, n_head=8, n_head_kv=4) if arch in ("gemma3", "qwen35", "gemma4") else bench.model(arch)


def layers_of(policy):
    return json.loads(policy.read_text())["operating_points"][0]["entries"]


#
# the same logits
#


@pytest.mark.parametrize("sinks", [0, 4])
@pytest.mark.parametrize("ubatch, rollback", [(32, 64), (200, 64), (300, 0)])
@pytest.mark.parametrize("arch", MEMORIES)
def test_mixed_types(bench, arch, ubatch, rollback, sinks):
    """Rings of 256 cells wrap in prompt and decode, and the larger batches are beyond their room."""
    model = many_heads(bench, arch)
    policy = bench.typed(model, ubatch, MIXED, sinks)
    found = bench.run("run", model, "-p", policy, *LENGTH, "-ub", ubatch, "--rollback", rollback)
    assert found["groups"] == len({entry for row in layers_of(policy) for entry in row}) >= 6 and found["full_groups"] >= 2
    check_rounded(found, KL_COARSE)


@pytest.mark.parametrize("codebook, kl", [(MIXED, KL_COARSE), (FINE, KL_FINE)], ids=["mixed", "fine"])
@pytest.mark.parametrize("arch", (*MEMORIES, "gemma4"))
def test_the_types_of_other_heads_are_noticed(bench, arch, codebook, kl):
    model = many_heads(bench, arch)
    args = ("-p", bench.typed(model, 3, codebook), *LENGTH)
    found = bench.run("run", model, *args)
    check_rounded(found, kl)
    assert bench.run("run", model, *args, "--type-error", 1)["max_kl"] > 5 * found["max_kl"]
    assert bench.run("run", model, *args, "--window-error", 1)["max_kl"] > 5 * found["max_kl"]


@pytest.mark.parametrize("seed", [0, 1, 4])
def test_three_types_in_one_layer(bench, seed):
    model = bench.model("llama", n_head=9, n_head_kv=3)
    policy = bench.typed(model, seed, ("full:f16", "48:q8_0", "48:q4_0"))
    assert any(len(set(row)) == 3 for row in layers_of(policy))
    check_rounded(bench.run("run", model, "-p", policy, *LENGTH), KL_COARSE)


@pytest.mark.parametrize("arch", MEMORIES)
def test_each_group_rotates_its_own(bench, arch, monkeypatch):
    """Blocks are kept in rotated space, floats are not: in one layer, of one query. Without rotation the same values are rounded otherwise."""
    model = bench.model(arch)
    args = ("-p", bench.typed(model, 1, every_type(("48", "full"), ("f32", "q8_0"))), *LENGTH)
    check_rounded(bench.run("run", model, *args), KL_FINE)
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    check_rounded(bench.run("run", model, *args), KL_FINE)


@pytest.mark.parametrize("types", ["f32/q8_0", "q8_0/f16", "bf16", "q8_0/q5_1", "q5_0/q4_1", "iq4_nl"])
def test_other_types_beside_f16(bench, types):
    model = bench.model("llama")
    policy = bench.typed(model, 2, every_type(("48", "full"), ("f16", types)))
    check_rounded(bench.run("run", model, "-p", policy, *LENGTH), KL_COARSE if re.search("q[45]", types) else 2e-5)


#
# operations on sequences
#


@pytest.mark.parametrize("slots, unified", [(1, "on"), (3, "on"), (3, "off")])
@pytest.mark.parametrize("arch", MEMORIES)
def test_random_operations(bench, arch, slots, unified):
    """States, copies and shifts reach every store, also where several share cells."""
    model = bench.model(arch)
    # gemma3: what llama.cpp's own sliding-window cache cannot do with sequences that share a stream (SLOTS in test_headwise.py)
    more = ("-ub", 128, "--copies", "off") if (arch, unified, slots) == ("gemma3", "on", 3) else ("-ub", 32)
    found = bench.run("ops", model, "-p", bench.typed(model, 5, FINE, 0), "-fa", "on", "-c", 384 * slots, "-np", slots, "-kvu", unified, *more,
                      "--rollback", 16, "--ops", 25, "--runs", 6)
    assert found["resumed"] > 5
    check_rounded(found, 5e-5)


@pytest.mark.parametrize("unified", ["on", "off"])
def test_random_operations_with_4_bits(bench, unified):
    model = bench.model("llama")
    found = bench.run("ops", model, "-p", bench.typed(model, 5, MIXED), "-fa", "on", "-c", 384 * 3, "-np", 3, "-kvu", unified, "-ub", 32, "--rollback", 16,
                      "--ops", 25, "--runs", 6)
    assert found["resumed"] > 5
    check_rounded(found, 1e-3)


@pytest.mark.parametrize("unified", ["on", "off"])
def test_copies_of_a_prompt(bench, unified):
    model = bench.model("llama")
    check_rounded(bench.run("copies", model, "-p", bench.typed(model, 1, MIXED), "-fa", "on", "-c", 2560, "-np", 4, "-kvu", unified, "-ub", 32, "-n", 200, "-d", 150),
                  KL_COARSE)


@pytest.mark.parametrize("divide", [(), ("--div", 2)])
@pytest.mark.parametrize("types, kl", [(("f16", "f32"), 2e-5), (("f32", "q8_0"), 2e-5), (THREE, 1e-3)], ids=["floats", "q8_0", "three"])
def test_a_shift_reaches_every_store(bench, types, kl, divide):
    model = bench.model("llama")
    found = bench.run("shift", model, "-p", bench.typed(model, 1, every_type(("40", "full"), types), 0), "-fa", "on", "-c", 512, "-ub", 32, "-n", 300, "-d", 120,
                      "--rollback", 0, *divide)
    check_rounded(found, kl)


#
# what can be shifted
#


@pytest.mark.parametrize("types, can", [("f16", True), ("q8_0", True), ("q8_0/bf16", True), ("bf16", False), ("bf16/f16", False)])
def test_ggml_ropes_no_bf16(bench, types, can):
    model = bench.model("llama")
    policy = bench.typed(model, 1, ["40:f16", f"full:{types}"], 0)
    args = ("-p", policy, "-fa", "on", "-c", 512, "-ub", 32, "-n", 200, "-d", 30, "--rollback", 0)
    assert bench.run("plan", model, *args)["can_shift"] is can
    if not can:
        assert "cannot be shifted" in bench.run("shift", model, *args, code=1)


@pytest.mark.parametrize("types, can", [("f16", True), ("f16/q8_0", True), ("q8_0", False), ("q4_0/f16", False)])
def test_keys_in_blocks_are_roped_only_where_they_are_rotated(bench, types, can, monkeypatch):
    narrow = bench.model("llama", head_dim=96)  # heads of three blocks are not rotated
    args = ("-fa", "on", "-c", 512, "-ub", 32, "-n", 200, "-d", 30, "--rollback", 0)
    for model, off in [(narrow, "0"), (bench.model("llama"), "1")]:
        monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", off)
        with_policy = ("-p", bench.typed(model, 1, ["40:f16", f"full:{types}"], 0), *args)
        assert bench.run("plan", model, *with_policy)["can_shift"] is can
        if not can:
            assert "cannot be shifted" in bench.run("shift", model, *with_policy, code=1)


def test_one_type_for_all_is_held_against_the_same(bench):
    model = bench.model("llama")
    for cache_type, can in [("f16", True), ("q8_0", True), ("bf16", False)]:
        args = ("-p", bench.mixed(model, 1, 0), "-fa", "on", "-ctk", cache_type, "-ctv", cache_type)
        assert bench.run("plan", model, *args)["can_shift"] is can


#
# memory, and what is refused at load
#


@pytest.mark.parametrize("arch", MEMORIES)
@pytest.mark.parametrize("args", [(), ("-np", 3, "-kvu", "off"), ("-np", 3, "-kvu", "on")], ids=["one", "streams", "unified"])
def test_allocated_is_predicted(bench, arch, args):
    model = many_heads(bench, arch)
    policy = bench.typed(model, 7, MIXED)
    result, without = (bench.run("plan", model, *more, "-fa", "on", "-c", 2048, "-ctk", "f16", "-ctv", "f16", *args) for more in (("-p", policy), ()))
    assert without["cache"] - result["cache"] == result["plain"] - result["predicted"] > 0
    check = subprocess.run([bench.kv_policy, "check", policy, "-m", model, "-c", "2048", "--json", "-np", "3" if args else "1",
                            "--no-kv-unified" if "off" in args else "--kv-unified"], capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(check.stdout)["bytes"] == result["predicted"]


def test_values_in_blocks_cannot_be_transposed(bench):
    model = bench.model("llama")
    error = bench.run("plan", model, "-p", bench.typed(model, 1, ["48:f16", "full:f16/q4_0"]), "-fa", "off", code=1)
    assert re.search(r"KV policy \S+: \$\.codebook\[\d\]: found V cache type q4_0 without flash attention, expected f32, f16 or bf16", error)
    # keys can be, and an entry that no head has is not asked
    bench.run("plan", model, "-p", bench.typed(model, 1, ["48:f16", "full:q8_0/f16"]), "-fa", "off")
    policy = json.loads(bench.typed(model, 1, ["48:f16", "full:f16"]).read_text())
    policy["codebook"] = ["48:q4_0", *policy["codebook"]]
    file = bench.folder / "unused.json"
    file.write_text(json.dumps(policy))
    bench.run("plan", model, "-p", file, "-fa", "off")


def test_blocks_that_do_not_divide_the_heads(bench):
    model = bench.model("llama", head_dim=80)
    policy = json.loads(bench.typed(model, 1, ["48:f16", "full:f16"]).read_text())
    policy["codebook"] = ["48:q4_0", "full:f16"]
    policy["operating_points"][0]["entries"] = [["48:q4_0" if entry == "48:f16" else entry for entry in row] for row in policy["operating_points"][0]["entries"]]
    file = bench.folder / "blocks.json"
    file.write_text(json.dumps(policy))
    assert "$.codebook[0]: found q4_0 and q4_0, expected types whose blocks divide the head dims 80 and 80" in bench.run("plan", model, "-p", file, code=1)
