"""Window groups: the same results as a mask per head, after whatever was done to the sequences.

bridge-test compares every decode with llama.cpp's plain cache that got just the sequence's tokens, masked per head. Each
memory type has a tiny model: llama for the plain cache, gemma3 for sliding-window
layers beside it, qwen35 for recurrent layers.
"""

import json
import os
import random
import re
import resource
import subprocess
from pathlib import Path

import pytest
from bridge_bench import MEMORIES, WINDOWS, Bench, check_f32, check_rounded

pytestmark = pytest.mark.bridge

SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def bench(program, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("headwise"), program)


#
# nothing to window: the plain cache, to the last bit
#


@pytest.mark.parametrize("arch", MEMORIES)
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_full_windows_change_no_bit(bench, arch, flash_attn):
    model = bench.model(arch)
    args = ("-fa", flash_attn, "-ctk", "f16", "-ctv", "f16", "-c", 512)
    plain = bench.run("hash", model, *args)
    assert bench.run("hash", model, "-p", bench.full(model), *args) == plain
    # a context that every window reaches
    wide = bench.mixed(model, 1, windows=(256, 300, 400))
    small = ("-fa", flash_attn, "-ctk", "f16", "-ctv", "f16", "-c", 256, "-n", 150, "-d", 50)
    assert bench.run("hash", model, "-p", wide, *small) == bench.run("hash", model, *small)
    # and windows do change something
    assert bench.run("hash", model, "-p", bench.mixed(model, 1), *args)["sha256"] != plain["sha256"]


#
# window boundaries, ubatch sizes, ring wraps
#


@pytest.mark.parametrize("arch", MEMORIES)
@pytest.mark.parametrize("sinks", [0, 4])
@pytest.mark.parametrize("ubatch", [1, 16, 17, 64])
def test_every_position_is_exact(bench, arch, sinks, ubatch):
    # all positions are compared, so also w - 1, w and w + 1 of every window; rings of 256 cells wrap in prompt and decode
    model = bench.model(arch)
    found = bench.run("run", model, "-p", bench.mixed(model, ubatch, sinks), "-c", 512, "-ub", ubatch, "-n", 330, "-d", 120)
    assert found["groups"] >= 2
    check_f32(found)


@pytest.mark.parametrize("arch", MEMORIES)
@pytest.mark.parametrize("sinks", [0, 4])
@pytest.mark.parametrize("ubatch, rollback", [(33, 8), (64, 0), (200, 64), (300, 5)])
def test_batches_larger_than_the_room(bench, arch, sinks, ubatch, rollback):
    # the ring holds window and rollback only: what a batch needs more is attended to beside it
    model = bench.model(arch)
    check_f32(bench.run("run", model, "-p", bench.mixed(model, ubatch, sinks), "-c", 512, "-ub", ubatch, "-n", 400, "-d", 30, "--rollback", rollback))


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "iq4_nl"])
@pytest.mark.parametrize("arch", MEMORIES)
def test_large_batches_round_as_the_cache_does(bench, arch, cache_type):
    model = bench.model(arch)
    check_rounded(bench.run("run", model, "-p", bench.mixed(model, 5), "-fa", "on", "-ctk", cache_type, "-ctv", cache_type, "-c", 512, "-ub", 128,
                            "-n", 330, "-d", 20, "--rollback", 0))


@pytest.mark.parametrize("n_thread", [1, 3])
def test_masks_larger_than_the_caches(bench, n_thread):
    """From 8 MiB on they are written past the processor's caches, by as many threads as compute."""
    model = bench.model("llama")
    found = bench.run("run", model, "-p", bench.mixed(model, 5), "-fa", "on", "-ctk", "f16", "-ctv", "f16", "-c", 9216, "-ub", 512, "-n", 9000, "-d", 4,
                      "-t", n_thread)
    check_rounded(found)
    assert found["n"] > 8192


@pytest.mark.parametrize("arch", MEMORIES)
def test_no_head_is_full(bench, arch):
    model = bench.model(arch)
    base = json.loads(bench.base(model).read_text())
    assert all(w == 64 for row in base["operating_points"][0]["entries"] for w in row)
    check_f32(bench.run("run", model, "-p", bench.base(model), "-c", 512, "-ub", 32, "-n", 330, "-d", 60))


@pytest.mark.parametrize("arch", MEMORIES)
def test_no_mask_for_a_history_that_no_head_has(bench, arch):
    # 512 tokens by 32768 cells in F16 would be 32 MiB
    model = bench.model(arch)
    result = subprocess.run([bench.bridge_test, "plan", "-m", model, "-p", bench.base(model), "-c", "32768", "-ub", "512", "-fa", "on", "-ctk", "f16", "-ctv", "f16"],
                            capture_output=True, text=True, timeout=60, env={**os.environ, "BRIDGE_TEST_VERBOSE": "1"})
    size = re.search(r"sched_reserve: +CPU compute buffer size = +([0-9.]+) MiB", result.stderr)
    assert size, result.stderr[-2000:]
    assert float(size.group(1)) < 16


# A value beside a rounding boundary can fall on its other side when sums are taken in another order, and a step of 4 or 5
# bits is large: llama.cpp's own cache (all heads full) shows a KL of 3.1e-5 there, and of 6e-7 with q8_0.
COARSE = ("q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")


@pytest.mark.parametrize("cache_type", ["f32", "f16", "bf16", "q8_0", *COARSE])
@pytest.mark.parametrize("arch", MEMORIES)
def test_cache_types(bench, arch, cache_type):
    model = bench.model(arch)
    args = ("-p", bench.mixed(model, 5), "-fa", "on", "-ctk", cache_type, "-ctv", cache_type, "-c", 512, "-ub", 32, "-n", 330, "-d", 40)
    check_rounded(bench.run("run", model, *args), 1e-4 if cache_type in COARSE else 1e-5)
    if cache_type == "q4_0":  # one key too many is noticed in spite of the steps
        assert bench.run("run", model, *args, "--window-error", 1)["max_kl"] > 1e-3


#
# operations on sequences
#

UNIFIED, STREAMS = ("-kvu", "on"), ("-kvu", "off")
PLAIN_SLOTS = [(1, UNIFIED), (3, UNIFIED), (3, STREAMS), (4, UNIFIED)]

# Slots and options for each memory type. llama.cpp's own sliding-window cache, without any policy (bridge-test ops --plain on
# shows it), has two faults. Where cells are not in the order of positions, because sequences share a stream or were shifted,
# preparing a batch of several ubatches drops what the first of them needs (llama_kv_cache::prepare does not undo the purge of
# apply_ubatch): there a batch is one ubatch. And cells of two sequences are never reused, so that copies in one stream fill
# it. Its positions can be shifted only at full size.
SLOTS = {
    "llama": PLAIN_SLOTS,
    "gemma3": [(1, UNIFIED), (3, (*UNIFIED, "-ub", 128, "--copies", "off")), (3, STREAMS), (3, (*STREAMS, "-ub", 128, "--swa-full", "on"))],
    "qwen35": PLAIN_SLOTS,
}


def check_operations(bench, arch, n_runs):
    model = bench.model(arch)
    resumed = refused = shifted = 0
    for i, (slots, args) in enumerate(SLOTS[arch]):
        found = bench.run("ops", model, "-p", bench.mixed(model, 3), "-c", 384 * slots, "-np", slots, "-ub", 32, "--rollback", 16, "--ops", 25,
                          "--runs", n_runs // 4 + 1, "-s", 1000 * i, *args, timeout=3000)
        check_f32(found)
        resumed += found["resumed"]
        refused += found["refused"]
        shifted += found["shifted"]
    assert resumed > n_runs / 2
    if arch != "qwen35":  # recurrent state refuses first, and M-RoPE cannot be shifted
        assert refused > 0
        assert shifted > 0


@pytest.mark.parametrize("arch", MEMORIES)
def test_operations(bench, arch):
    check_operations(bench, arch, 50)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("arch", MEMORIES)
def test_operations_long(bench, arch):
    check_operations(bench, arch, 500)


@pytest.mark.parametrize("unified", ["on", "off"])
def test_copies_of_a_prompt_fill_no_ring(bench, unified):
    # three times the largest window for each of four copies
    model = bench.model("llama")
    check_f32(bench.run("copies", model, "-p", bench.mixed(model, 1), "-c", 2560, "-np", 4, "-kvu", unified, "-ub", 32, "-n", 200,
                        "-d", 3 * max(WINDOWS)))


@pytest.mark.parametrize("divide", [(), ("--div", 2)])
@pytest.mark.parametrize("windows", [(16, 40), (40,)])
def test_shifted_and_divided_positions(bench, windows, divide):
    # 300 tokens, the first 150 dropped or all positions halved, 120 more: the rings wrap after that. Halving puts two tokens on
    # a position, so a window then takes up to 1.5 times its cells; these windows have them by padding
    model = bench.model("llama")
    check_f32(bench.run("shift", model, "-p", bench.mixed(model, 4, 0, windows), "-c", 512, "-ub", 32, "-n", 300, "-d", 120, "--rollback", 0,
                        *divide))


#
# memory
#


@pytest.mark.parametrize("seed", range(20))
def test_allocated_is_predicted(bench, seed):
    rng = random.Random(seed)
    model = bench.model(rng.choice(MEMORIES))
    slots = rng.choice([1, 1, 2, 4])
    flash_attn = rng.choice(["on", "on", "off"])
    types = [rng.choice(["f32", "f16", "q8_0", "q4_0"]), rng.choice(["f32", "f16", "q8_0"] if flash_attn == "on" else ["f32", "f16"])]
    unified = rng.choice(["on", "off"])
    ctx, ubatch = rng.choice([2048, 4096, 5000]), rng.choice([32, 512])
    policy = bench.mixed(model, seed, rng.choice([0, 4]), tuple(sorted(rng.sample(range(16, 511), 3))))
    args = ("-fa", flash_attn, "-ctk", types[0], "-ctv", types[1], "-kvu", unified, "-np", slots, "-c", ctx, "-ub", ubatch)

    result = bench.run("plan", model, "-p", policy, *args)
    without = bench.run("plan", model, *args)
    assert 0 < result["predicted"] <= result["plain"]
    # other layers keep what they had
    assert without["cache"] - result["cache"] == result["plain"] - result["predicted"]

    check = subprocess.run([bench.kv_policy, "check", policy, "-m", model, "-c", str(ctx), "-np", str(slots),
                            "-fa", flash_attn, "-ctk", types[0], "-ctv", types[1], "--kv-unified" if unified == "on" else "--no-kv-unified",
                            "--json"], capture_output=True, text=True, check=True, timeout=60)
    assert f'{result["predicted"]}' in check.stdout


def test_out_of_memory_names_the_group(bench, program, model):
    # 90 heads of 200,000 positions are 4.3 GiB: over what the process may have
    base = bench.base(model, 200000, 400000)

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    result = subprocess.run([program("bridge-test"), "plan", "-m", model, "-p", base, "-c", "400000", "-ctk", "f16", "-ctv", "f16", "-fa", "on"],
                            capture_output=True, text=True, timeout=120, preexec_fn=limit)
    assert result.returncode == 1
    assert "window 200000: cannot allocate 4395.94 MiB" in result.stderr


#
# what does not fit is refused
#


def spoil(bench, change):
    model = bench.model("llama")
    policy = json.loads(bench.mixed(model, 1).read_text())
    change(policy)
    file = bench.folder / "spoiled.json"
    file.write_text(json.dumps(policy))
    return bench.run("plan", model, "-p", file, code=1)


def test_refuses_what_does_not_fit(bench):
    def set_window(policy):
        policy["operating_points"][0]["entries"][0][0] = 0

    assert "entries[0][0]: found 0, expected a positive" in spoil(bench, set_window)
    assert "sinks: found 16, expected less than" in spoil(bench, lambda p: p.update(sinks=16))
    assert "entries[1]" in spoil(bench, lambda p: p["operating_points"][0]["entries"][1].append("full"))
    assert "entries: found 3 entries" in spoil(bench, lambda p: p["operating_points"][0]["entries"].pop())
    model = bench.model("llama")
    policy = bench.mixed(model, 1)
    assert "architecture: found" in bench.run("plan", bench.model("qwen35"), "-p", policy, code=1)
    assert "cannot open" in bench.run("plan", model, "-p", "/nonexistent.json", code=1)
    assert "no operating point" in bench.run("plan", model, "-p", policy, "--point", "7", code=1)


#
# the default model
#


def test_default_model_with_wide_windows(bench, model):
    policy = bench.mixed(model, 1, windows=(2048, 3000, 4000), context=8192)
    args = ("-fa", "on", "-ctk", "f16", "-ctv", "f16", "-c", 1024, "-ub", 64, "-n", 150, "-d", 10)
    assert bench.run("hash", model, "-p", policy, *args) == bench.run("hash", model, *args)


@pytest.mark.timeout(1200)
def test_default_model_greedy(bench, model, program):
    text = SHARED_DATA / "books" / "sherlock-holmes.txt"
    if not text.exists():
        pytest.skip(f"{text} is not there: it is the text of this test")
    exact = bench.folder / "smollm2-f32.gguf"
    subprocess.run([program("llama-quantize"), "--allow-requantize", model, exact, "f32", "1"], check=True, capture_output=True, timeout=300)
    policy = bench.mixed(exact, 1, windows=(64, 256, 512), context=4096)
    found = bench.run("greedy", exact, "-p", policy, "-f", text, "-c", 4096, "-ub", 256, "-n", 3800, "-d", 256, timeout=1200)
    assert found["same"] == found["n"] == 256
    assert found["max_abs"] <= 1e-3
