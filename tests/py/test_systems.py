"""scripts/bench systems and capacity: their arithmetic, and short runs with llama-server and a tiny model."""

import json
import re
import subprocess
import time

import pytest
import tiny_gguf
from server_process import need_program

from headwisekv import devices
from headwisekv.bench import capacity, systems, systems_run
from headwisekv.core import Failure
from headwisekv.server import Server
from headwisekv.store import Store


#
# arithmetic
#

@pytest.mark.unit
def test_order_is_counterbalanced():
    methods = [systems_run.Method("full"), systems_run.Method("policy")]
    jobs = systems.plan([512, 1024], methods, 3)
    assert [(n, m.name, i) for n, m, i in jobs[:6]] == [(512, "full", 0), (512, "policy", 0), (512, "policy", 1), (512, "full", 1), (512, "full", 2), (512, "policy", 2)]
    assert [m.name for _, m, _ in jobs[6:8]] == ["policy", "full"]
    assert len(set((n, m.name, i) for n, m, i in jobs)) == 12


@pytest.mark.unit
def test_points_without_checkpoints():
    options = systems.parse_args(["--model", "m", "--policy", "p", "--points", "a,b", "--checkpoints", "both"])
    methods = systems_run.methods_of(options)
    assert [method.name for method in methods] == ["full", "a", "a without checkpoints", "b", "b without checkpoints"]
    found = [systems_run.server_arguments(options, method, 512, False) for method in methods]
    assert [arguments[-2:] == ["--ctx-checkpoints", 0] for arguments in found] == [False, False, True, False, True]
    assert systems_run.checkpoint_text(["full", "a"]) == "" != systems_run.checkpoint_text(["a without checkpoints"])


def record(prompt_ms, decode_ms, peak, **more):
    return {"prompt_n": 1000, "prompt_ms": prompt_ms, "intervals": 127, "decode_ms": decode_ms, "peak_rss": peak, "peak_device": None, "kv_bytes": 1, **more}


@pytest.mark.unit
def test_throughput_is_pooled_and_memory_the_median():
    found = systems.summarise([record(1000, 127, 5), record(3000, 254, 9), record(2000, 254, 6), {"out_of_memory": "no"}, {"error": "odd"}])
    assert found["prefill"] == 500.0 and found["decode"] == pytest.approx(1000 * 381 / 635) and found["peak"] == 6
    assert (found["n"], found["out_of_memory"], found["failed"]) == (3, 1, 1)
    found = systems.summarise([record(1000, 127, 5, ) | {"peak_device": 70}])
    assert (found["peak"], found["memory"]) == (70, "peak_device")
    assert systems.summarise([])["prefill"] is None


class Memory:
    """Admits contexts up to `room`; `odd` are contexts with outcomes of their own, one for each attempt."""

    def __init__(self, room, odd=None):
        self.room, self.odd, self.asked = room, odd or {}, []

    def __call__(self, n_ctx):
        self.asked.append(n_ctx)
        runs = self.odd.get(n_ctx)
        return (runs.pop(0) if runs else n_ctx <= self.room), "no memory"


def find(tmp_path, memory, first=1024, most=65536, name="full"):
    store = Store(tmp_path / "results.jsonl", {})
    try:
        return capacity.Probe(name, memory, store, 3).find(first, 1024, most)
    finally:
        store.close()


@pytest.mark.unit
@pytest.mark.parametrize("room", [1024, 5000, 8192, 40000, 64511])
def test_probe_finds_both_ends_three_times(tmp_path, room):
    memory = Memory(room)
    found = find(tmp_path, memory)
    largest = room // 1024 * 1024
    assert (found["largest"], found["first_failure"], found["unstable"]) == (largest, largest + 1024, [])
    assert found["runs"][str(largest)] == [True] * 3 and found["runs"][str(largest + 1024)] == [False] * 3
    assert len(memory.asked) <= 18


@pytest.mark.unit
def test_probe_where_nothing_or_everything_fits(tmp_path):
    found = find(tmp_path / "a", Memory(100))
    assert (found["largest"], found["first_failure"], found["runs"]) == (0, 1024, {"1024": [False] * 3})
    found = find(tmp_path / "b", Memory(10**9), most=16384)
    assert (found["largest"], found["first_failure"]) == (16384, None) and found["runs"]["16384"] == [True] * 3


@pytest.mark.unit
def test_a_context_that_fits_at_times_does_not_count(tmp_path):
    found = find(tmp_path / "a", Memory(5000, {4096: [True, False, True]}))
    assert (found["largest"], found["first_failure"], found["unstable"]) == (3072, 5120, [4096])
    assert found["runs"]["3072"] == [True] * 3 and found["runs"]["5120"] == [False] * 3
    found = find(tmp_path / "b", Memory(5000, {5120: [False, False, True], 6144: [False, True]}))
    assert (found["largest"], found["first_failure"], found["unstable"]) == (4096, 7168, [5120, 6144])
    assert found["runs"]["7168"] == [False] * 3


@pytest.mark.unit
def test_probe_goes_on(tmp_path):
    class Killed(Exception):
        pass

    memory = Memory(5000)

    def until(n_ctx):
        if len(memory.asked) == 4:
            raise Killed
        return memory(n_ctx)

    with pytest.raises(Killed):
        find(tmp_path, until)
    again = Memory(5000)
    found = find(tmp_path, again)
    assert (found["largest"], found["first_failure"]) == (4096, 5120) and not set(memory.asked[:3]) & set(again.asked) - {4096}


@pytest.mark.unit
def test_only_memory_counts_as_no_memory():
    for line in ("E ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 3", "what():  std::bad_alloc",
                 "CUDA error: out of memory", "E ggml_aligned_malloc: insufficient memory (attempted",
                 "ggml.c:1644: GGML_ASSERT(ctx->mem_buffer != NULL) failed"):
        assert systems_run.OUT_OF_MEMORY.search(line)
    assert not systems_run.OUT_OF_MEMORY.search("error: unknown architecture; failed to load model")
    assert systems_run.reason_of("0.00.1 I all is well\n0.01.082.614 E alloc: failed to allocate buffer\n") == "alloc: failed to allocate buffer"


def fake_program(path, *lines):
    """A program that prints these lines, whatever it is asked."""
    path.write_text("#!/bin/sh\n" + "".join(f"{line}\n" for line in lines))
    path.chmod(0o755)
    return path


def fake_devices(path, *devices):
    """llama-server --list-devices."""
    return fake_program(path, "echo Available devices:", *(f"echo '  {line}'" for line in devices or ["(none)"]))


@pytest.fixture
def only_tools(tmp_path, monkeypatch):
    """A folder that is searched for programs before all others, and no nvidia-smi of this machine's."""
    folder = tmp_path / "tools"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


@pytest.mark.unit
def test_devices_are_those_that_ggml_lists(tmp_path, only_tools):
    assert devices.listed(fake_devices(tmp_path / "a")) == [] and devices.memory_of(tmp_path / "a") is None
    program = fake_devices(tmp_path / "b", "Vulkan0: AMD Radeon RX (RADV NAVI31) (24560 MiB, 23000 MiB free)", "Vulkan1: Intel (2048 MiB, 2048 MiB free)")
    assert devices.listed(program) == [devices.Device("Vulkan0", "AMD Radeon RX (RADV NAVI31)", 24560 * 2**20, 23000 * 2**20),
                                       devices.Device("Vulkan1", "Intel", 2048 * 2**20, 2048 * 2**20)]
    meter = devices.memory_of(program)
    assert (meter.name, meter.used()) == ("ggml", 1560 * 2**20)
    nvidia = fake_devices(tmp_path / "c", "CUDA0: NVIDIA GeForce RTX 4090 D (24080 MiB, 23600 MiB free)")
    assert devices.memory_of(nvidia).name == "ggml"  # its tool is not installed
    fake_program(only_tools / "nvidia-smi", "echo 511", "echo 1")
    meter = devices.memory_of(nvidia)
    assert (meter.name, meter.used()) == ("nvidia-smi", 512 * 2**20)
    assert devices.memory_of(program).name == "ggml"
    fake_program(only_tools / "nvidia-smi", "exit 9")
    assert meter.used() is None
    with pytest.raises(Failure, match="ended with code 3"):
        devices.memory_of(fake_program(tmp_path / "d", "exit 3"))


class Readings:
    """A meter that reads these values, and the last one ever after."""
    name, every = "fake", 0.001

    def __init__(self, *values):
        self.values = list(values)

    def used(self):
        return self.values.pop(0) if len(self.values) > 1 else self.values[0]


@pytest.mark.unit
@pytest.mark.parametrize("values, peak", [([5, 9, 7], 9), ([5, None, 9], 9), ([9, 5], 9), ([None, None, 4, 6], 6), ([5], None), ([0], None), ([None], None)])
def test_the_peak_of_a_device(values, peak):
    meter = Readings(*values)
    with devices.Peak(meter) as found:
        deadline = time.monotonic() + 10
        while len(meter.values) > 1 and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.02)
    assert found.peak == peak
    with devices.Peak(None) as found:
        pass
    assert found.peak is None


@pytest.mark.unit
def test_the_table_says_whose_memory_it_is():
    def text(gpu, memory):
        return systems.memory_text({"gpu": gpu, "cells": [{"memory": memory}]})

    assert text(False, "peak_rss") == "resident memory of the server"
    assert text("ggml", "peak_device") == "GPU memory in use, of all processes, as ggml reports it"
    assert text("ggml", "peak_rss").endswith("what ggml reports did not change")


@pytest.mark.unit
def test_usage(tmp_path, capsys):
    text = str(tmp_path / "text.txt")
    (tmp_path / "text.txt").write_text("some words")
    common = ["--model", __file__, "--server", str(fake_devices(tmp_path / "server")), "--text", text, "--out", str(tmp_path / "out")]
    assert systems.main(["--model", str(tmp_path / "none"), "--server", __file__]) == 1
    assert "there is no file" in capsys.readouterr().err
    assert systems.main([*common, "--points", "a"]) == 2
    assert "found --points without --policy" in capsys.readouterr().err
    assert capacity.main(common) == 2
    for wrong in (["--max", "1000"], ["--first", "2048", "--max", "1024"], ["--limit", "0"]):
        with pytest.raises(SystemExit) as usage:
            capacity.main([*common, *wrong])
        assert usage.value.code == 2
    assert systems.parse_args([*common, "--paper"]).contexts == [8192, 16384, 32768, 65536, 98304, 114688, 131072]


#
# llama-server
#

@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("systems")
    tiny_gguf.make_model(folder / "tiny.gguf", "llama", seed=1)
    subprocess.run([need_program("llama-kv-policy"), "make", "streaming", "--window", "64", "-m", folder / "tiny.gguf", "-c", "4096", "-o",
                    folder / "policy.json"], check=True)
    (folder / "text.txt").write_text("the cat sat on the mat and it was a fine day for cats. " * 800)
    return folder


def arguments(tiny, out, *more):
    return list(map(str, ["--model", tiny / "tiny.gguf", "--policy", tiny / "policy.json", "--server", need_program("llama-server"), "--text",
                          tiny / "text.txt", "--threads", 1, "--out", out, *more]))


@pytest.mark.server
def test_systems_run(tiny, tmp_path, capsys):
    command = arguments(tiny, tmp_path, "--contexts", "256", "--repetitions", "2")
    assert systems.main(command) == 0
    done = capsys.readouterr()
    assert re.search(r"\| 256 \| policy \| [\d.]+ \| [\d.]+ \| [\d.]+ \| [\d.]+ \| [\d.]+ \| [\d.]+ \| 2 \|", done.out)
    data = json.loads((tmp_path / "results.json").read_text())
    assert [r["method"] for r in data["records"]] == ["full", "policy", "policy", "full"]
    assert all(r["prompt_n"] == 128 and r["intervals"] == 127 and r["peak_rss"] > 2**20 for r in data["records"])
    assert {r["method"]: r["kv_bytes"] for r in data["records"]} == {"full": None, "policy": 4 * 2 * 128 * 2 * 2 * 64}
    assert (tmp_path / "systems.png").read_bytes()[:4] == b"\x89PNG"
    assert systems.main(command) == 0
    assert "systems: 4 of 4 are done already" in capsys.readouterr().err
    assert systems.main(arguments(tiny, tmp_path / "b", "--contexts", "1000000", "--repetitions", "1")) == 1
    assert re.search(r"2 failed: the text has \d+ tokens, expected 999872", capsys.readouterr().out)


@pytest.mark.server
def test_capacity_under_a_limit(tiny, tmp_path, capsys):
    """As much as the full cache needs at 1024 tokens on this machine, in address space and in memory."""
    with Server(need_program("llama-server"), ["-m", tiny / "tiny.gguf", "-c", 1024, "-np", 1, "-t", 1, "--no-warmup", "--fit", "off"], tmp_path / "log", "x") as server:
        server.ask("/completion", {"prompt": "the cat", "n_predict": 4})
        status = open(f"/proc/{server.process.pid}/status").read()
    address = int(re.search(r"VmPeak:\s+(\d+)", status)[1]) // 1024 + 16
    resident = int(re.search(r"VmHWM:\s+(\d+)", status)[1]) // 1024 + 4
    for option, limit, most, title in (("--limit", address, 4096, f"{address} MiB of address space"), ("--resident", resident, 16384, f"{resident} MiB of resident memory")):
        out = tmp_path / option
        lift = ["--server-args", "--override-kv llama.context_length=int:16384"]
        assert capacity.main(arguments(tiny, out, option, limit, "--max", most, "--first", most, "--step", 2048, "--repetitions", 2, *lift)) == 0
        done = capsys.readouterr()
        full, policy = json.loads((out / "results.json").read_text())["found"]
        for found in (full, policy):
            assert all(len(found["runs"][str(n_ctx)]) == 2 for n_ctx in (found["largest"], found["first_failure"]) if n_ctx)
        assert f"Limit: {title}" in done.out
    assert full["largest"] < 16384 and re.search(r"full: 16384 tokens do not fit: [\d.]+ MiB resident", done.err)
    assert full["largest"] <= policy["largest"]


@pytest.mark.server
def test_other_failures_end_the_probe(tiny, tmp_path, capsys):
    assert capacity.main(arguments(tiny, tmp_path, "--limit", 4000, "--max", 2048, "--points", "none")) == 1
    assert re.search(r"error: llama-server \(none, 1024\) did not start", capsys.readouterr().err)
    with pytest.raises(Failure, match="context 128 is too small"):
        systems_run.check_prompt([1] * 5, 128)
