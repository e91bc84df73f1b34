"""Window groups: the same results as a mask per head, after whatever was done to the sequences.

bridge-test compares every decode with a cold run of the sequence's tokens on llama.cpp's plain cache, whose scores are
masked per head by a callback. Each memory type has a tiny model: llama for the plain cache, gemma3 for sliding-window
layers beside it, qwen35 for recurrent layers.
"""

import json
import random
import resource
import socket
import subprocess
import time
from pathlib import Path

import pytest
import tiny_gguf
from mixed_policy import full_policy, mixed_policy
from server_process import ServerProcess, free_port

pytestmark = pytest.mark.bridge

MEMORIES = ("llama", "gemma3", "qwen35")
WINDOWS = (16, 48, 130)
SHARED_DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def bench(program, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("headwise"), program("bridge-test"), program("llama-kv-policy"))


class Bench:
    def __init__(self, folder, bridge_test, kv_policy):
        self.folder = folder
        self.bridge_test = bridge_test
        self.kv_policy = kv_policy

    def model(self, arch):
        file = self.folder / f"{arch}.gguf"
        if not file.exists():
            tiny_gguf.make_model(file, arch, seed=2)
        return file

    def base(self, arch, model=None):
        """What the policies of a model are made from."""
        file = self.folder / f"{arch}-base.json"
        if not file.exists():
            subprocess.run([self.kv_policy, "make", "uniform", "--window", "64", "-c", "512", "-m", model or self.model(arch), "-o", file],
                           check=True, capture_output=True, timeout=60)
        return file

    def full(self, arch):
        return full_policy(self.base(arch), self.folder / f"{arch}-full.json")

    def mixed(self, arch, seed, sinks=4, windows=WINDOWS):
        return mixed_policy(self.base(arch), self.folder / f"{arch}-{seed}-{sinks}-{len(windows)}.json", windows, seed, sinks)

    def run(self, command, model, *args, code=0, timeout=600):
        result = subprocess.run([str(x) for x in (self.bridge_test, command, "-m", model, *args)], capture_output=True, text=True,
                                timeout=timeout)
        assert result.returncode == code, result.stderr
        return json.loads(result.stdout) if code == 0 else result.stderr


def check_exact(result, noise=0.0):
    """noise: what llama.cpp's own cache shows against the same reference (GELU goes through a table of F16 values)"""
    assert result["n"] > 0
    assert result["max_abs"] <= max(1e-3, 3 * noise)
    assert result["same_top"] == result["n"]


#
# nothing to window: the plain cache, to the last bit
#


@pytest.mark.parametrize("arch", MEMORIES)
@pytest.mark.parametrize("flash_attn", ["on", "off"])
def test_full_windows_change_no_bit(bench, arch, flash_attn):
    args = ("-fa", flash_attn, "-ctk", "f16", "-ctv", "f16", "-c", 512)
    plain = bench.run("hash", bench.model(arch), *args)
    assert bench.run("hash", bench.model(arch), "-p", bench.full(arch), *args) == plain
    # a context that every window reaches
    wide = mixed_policy(bench.base(arch), bench.folder / f"{arch}-wide.json", (256, 300, 400), 1, 4)
    small = ("-fa", flash_attn, "-ctk", "f16", "-ctv", "f16", "-c", 256, "-n", 150, "-d", 50)
    assert bench.run("hash", bench.model(arch), "-p", wide, *small) == bench.run("hash", bench.model(arch), *small)
    # and windows do change something
    assert bench.run("hash", bench.model(arch), "-p", bench.mixed(arch, 1), *args)["sha256"] != plain["sha256"]


#
# window boundaries, ubatch sizes, ring wraps
#


@pytest.mark.parametrize("arch", MEMORIES)
@pytest.mark.parametrize("sinks", [0, 4])
@pytest.mark.parametrize("ubatch", [1, 16, 17, 64])
def test_every_position_is_exact(bench, arch, sinks, ubatch):
    # all positions are compared, so also w - 1, w and w + 1 of every window; rings of 256 cells wrap in prompt and decode
    args = ("-c", 512, "-ub", ubatch, "-n", 330, "-d", 120)
    noise = bench.run("run", bench.model(arch), "-p", bench.full(arch), *args)["max_abs"]
    result = bench.run("run", bench.model(arch), "-p", bench.mixed(arch, ubatch, sinks), *args)
    assert result["groups"] >= 2
    check_exact(result, noise)


@pytest.mark.parametrize("arch", MEMORIES)
def test_no_head_is_full(bench, arch):
    base = json.loads(bench.base(arch).read_text())
    assert all(w == 64 for row in base["operating_points"][0]["windows"] for w in row)
    args = ("-c", 512, "-ub", 32, "-n", 330, "-d", 60)
    noise = bench.run("run", bench.model(arch), "-p", bench.full(arch), *args)["max_abs"]
    check_exact(bench.run("run", bench.model(arch), "-p", bench.base(arch), *args), noise)


@pytest.mark.parametrize("cache_type", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl"])
@pytest.mark.parametrize("arch", MEMORIES)
def test_cache_types(bench, arch, cache_type):
    # rounding is part of the cache type: the plain cache of that type sets the scale; short windows average over fewer
    # values, so more of it is left
    args = ("-fa", "on", "-ctk", cache_type, "-ctv", cache_type, "-c", 512, "-ub", 32, "-n", 330, "-d", 40)
    plain = bench.run("run", bench.model(arch), "-p", bench.full(arch), *args)
    mixed = bench.run("run", bench.model(arch), "-p", bench.mixed(arch, 5), *args)
    assert mixed["max_kl"] <= max(1e-5, 10 * plain["max_kl"])


#
# operations on sequences
#


def check_operations(bench, arch, n_runs):
    policy = bench.mixed(arch, 3)
    # upstream's own sliding-window cache, without any policy, loses positions when sequences share its cells
    shared = "off" if arch == "gemma3" else "on"
    noise = bench.run("run", bench.model(arch), "-p", bench.full(arch), "-c", 512)["max_abs"]
    resumed = refused = 0
    for i, (slots, unified) in enumerate([(1, "on"), (3, shared), (3, "off"), (4, shared)]):
        result = bench.run("ops", bench.model(arch), "-p", policy, "-c", 384 * slots, "-np", slots, "-kvu", unified, "-ub", 32, "--rollback", 16,
                           "--ops", 25, "--runs", n_runs // 4 + 1, "-s", 1000 * i, timeout=3000)
        check_exact(result, noise)
        resumed += result["resumed"]
        refused += result["refused"]
    assert resumed > n_runs / 2
    if arch != "qwen35":  # recurrent state refuses first
        assert refused > 0


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
    result = bench.run("copies", bench.model("llama"), "-p", bench.mixed("llama", 1), "-c", 2560, "-np", 4, "-kvu", unified, "-ub", 32,
                       "-n", 200, "-d", 3 * max(WINDOWS))
    check_exact(result)


@pytest.mark.parametrize("windows", [WINDOWS, (64,)])
def test_context_shift(bench, windows):
    # 300 tokens, the first 150 dropped, 120 more: the rings wrap after the shift
    policy = bench.mixed("llama", 4, 0, windows)
    check_exact(bench.run("shift", bench.model("llama"), "-p", policy, "-c", 512, "-ub", 32, "-n", 300, "-d", 120, "--rollback", 0))


@pytest.mark.parametrize("windows", [WINDOWS, (64,)])
def test_divided_positions(bench, windows):
    policy = bench.mixed("llama", 4, 0, windows)
    check_exact(bench.run("shift", bench.model("llama"), "-p", policy, "-c", 512, "-ub", 32, "-n", 300, "-d", 120, "--rollback", 0, "--div", 2))


#
# devices
#


@pytest.fixture
def rpc_servers(program):
    """Two rpc-server processes on this machine."""
    started = []
    for _ in range(2):
        port = free_port()
        process = subprocess.Popen([program("rpc-server"), "-H", "127.0.0.1", "-p", str(port), "-t", "1"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        started.append((process, port))
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
    yield [f"127.0.0.1:{port}" for _, port in started]
    for process, _ in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_split_over_rpc_devices(bench, program, rpc_servers, arch):
    policy = bench.mixed(arch, 1)

    def tokens(*args):
        with ServerProcess(bench.model(arch), bench.folder / "rpc.log", "--kv-policy", str(policy), "-fa", "off", "-ctk", "f32", "-ctv", "f32",
                           *args, ctx=512) as server:
            prompt = [5 + i * 7 % 200 for i in range(300)]
            answer = server.post("/completion", json={"prompt": prompt, "n_predict": 40, "temperature": 0, "return_tokens": True}).json()
            return answer["tokens"], server.log()

    local, _ = tokens()
    remote, _ = tokens("--rpc", ",".join(rpc_servers), "-ngl", "99", "-sm", "layer", "-fit", "off")
    assert len(local) == 40
    assert remote == local
    # the groups really are on both devices
    plan = subprocess.run([program("llama-server"), "-m", bench.model(arch), "-c", "512", "-np", "1", "--kv-policy", policy, "--kv-policy-dry-run",
                           "--rpc", ",".join(rpc_servers), "-ngl", "99", "-fit", "off"], capture_output=True, text=True, timeout=60)
    assert all("RPC" in line for line in plan.stdout.splitlines()[1:3]), plan.stdout + plan.stderr


#
# memory
#


@pytest.mark.parametrize("seed", range(20))
def test_allocated_is_predicted(bench, seed):
    rng = random.Random(seed)
    arch = rng.choice(MEMORIES)
    slots = rng.choice([1, 1, 2, 4])
    flash_attn = rng.choice(["on", "on", "off"])
    types = [rng.choice(["f32", "f16", "q8_0", "q4_0"]), rng.choice(["f32", "f16", "q8_0"] if flash_attn == "on" else ["f32", "f16"])]
    unified = rng.choice(["on", "off"])
    ctx, ubatch = rng.choice([2048, 4096, 5000]), rng.choice([32, 512])
    policy = bench.mixed(arch, seed, rng.choice([0, 4]), tuple(sorted(rng.sample(range(16, 511), 3))))
    args = ("-fa", flash_attn, "-ctk", types[0], "-ctv", types[1], "-kvu", unified, "-np", slots, "-c", ctx, "-ub", ubatch)

    result = bench.run("plan", bench.model(arch), "-p", policy, *args)
    without = bench.run("plan", bench.model(arch), *args)
    assert 0 < result["predicted"] <= result["plain"]
    # other layers keep what they had
    assert without["cache"] - result["cache"] == result["plain"] - result["predicted"]

    check = subprocess.run([bench.kv_policy, "check", policy, "-m", bench.model(arch), "-c", str(ctx), "-ub", str(ubatch), "-np", str(slots),
                            "-fa", flash_attn, "-ctk", types[0], "-ctv", types[1], "--kv-unified" if unified == "on" else "--no-kv-unified",
                            "--json"], capture_output=True, text=True, check=True, timeout=60)
    assert f'{result["predicted"]}' in check.stdout


def test_out_of_memory_names_the_group(bench, program, model):
    # 90 heads of 200,000 positions are 4.3 GiB: over what the process may have
    base = bench.folder / "large.json"
    subprocess.run([bench.kv_policy, "make", "uniform", "--window", "200000", "-c", "400000", "-m", model, "-o", base], check=True, timeout=60)

    def limit():
        resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))

    result = subprocess.run([program("bridge-test"), "plan", "-m", model, "-p", base, "-c", "400000", "-ctk", "f16", "-ctv", "f16", "-fa", "on"],
                            capture_output=True, text=True, timeout=120, preexec_fn=limit)
    assert result.returncode == 1
    assert "window 200000: cannot allocate 4398.75 MiB" in result.stderr


#
# what does not fit is refused
#


def spoil(bench, change):
    policy = json.loads(bench.mixed("llama", 1).read_text())
    change(policy)
    file = bench.folder / "spoiled.json"
    file.write_text(json.dumps(policy))
    return bench.run("plan", bench.model("llama"), "-p", file, code=1)


def test_refuses_what_does_not_fit(bench):
    def set_window(policy):
        policy["operating_points"][0]["windows"][0][0] = 0

    assert "windows[0][0]: found 0, expected a positive" in spoil(bench, set_window)
    assert "sinks: found 16, expected less than" in spoil(bench, lambda p: p.update(sinks=16))
    assert "windows[1]" in spoil(bench, lambda p: p["operating_points"][0]["windows"][1].append("full"))
    assert "windows: found 3 entries" in spoil(bench, lambda p: p["operating_points"][0]["windows"].pop())
    assert "architecture: found" in bench.run("plan", bench.model("qwen35"), "-p", bench.mixed("llama", 1), code=1)
    assert "cannot open" in bench.run("plan", bench.model("llama"), "-p", "/nonexistent.json", code=1)
    assert "no operating point" in bench.run("plan", bench.model("llama"), "-p", bench.mixed("llama", 1), "--point", "7", code=1)


#
# the default model
#


def mixed_for(bench, name, model, context, windows, seed=1):
    base = bench.folder / f"{name}-base.json"
    subprocess.run([bench.kv_policy, "make", "uniform", "--window", "64", "-c", str(context), "-m", model, "-o", base], check=True,
                   capture_output=True, timeout=60)
    return mixed_policy(base, bench.folder / f"{name}.json", windows, seed, 4)


def test_default_model_with_wide_windows(bench, model):
    policy = mixed_for(bench, "smollm2", model, 8192, (2048, 3000, 4000))
    args = ("-fa", "on", "-ctk", "f16", "-ctv", "f16", "-c", 1024, "-ub", 512, "-n", 300, "-d", 10)
    assert bench.run("hash", model, "-p", policy, *args) == bench.run("hash", model, *args)


@pytest.mark.timeout(1200)
def test_default_model_greedy(bench, model, program):
    text = SHARED_DATA / "books" / "sherlock-holmes.txt"
    if not text.exists():
        pytest.skip(f"{text} is not there: it is the text of this test")
    exact = bench.folder / "smollm2-f32.gguf"
    subprocess.run([program("llama-quantize"), "--allow-requantize", model, exact, "f32", "1"], check=True, capture_output=True, timeout=300)
    # 1024 cells for the largest window: every ring has wrapped before the first new token
    policy = mixed_for(bench, "smollm2-f32", exact, 4096, (64, 256, 512))
    result = bench.run("greedy", exact, "-p", policy, "-f", text, "-c", 4096, "-ub", 256, "-n", 1300, "-d", 256, timeout=1200)
    assert result == {"n": 256, "same": 256}
