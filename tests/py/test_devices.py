"""Window groups on devices, where there are none: the CPU under other names, in bridge-test and behind RPC servers.

bridge-test's fake devices have memory of their own and attend to K and V of one type, which is not iq4_nl. The reference is on
the CPU.
"""

import os
import subprocess

import pytest
from bridge_bench import MEMORIES, WINDOWS, Bench, cache, check_f32, check_rounded, every_type
from server_process import ServerProcess

pytestmark = pytest.mark.bridge

# rings have 256 cells: prompt and decoding both go past their end
LENGTH = ("-c", 512, "-ub", 32, "-n", 280, "-d", 40)


@pytest.fixture(scope="session")
def bench(program, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("devices"), program)


#
# where a model can be
#

PLACES = {
    "one": ("--fake", 1),
    "two": ("--fake", 2),
    "two by rows": ("--fake", 2, "-sm", "row"),
    "one of two": ("--fake", 2, "-sm", "none"),
    "the other": ("--fake", 2, "--device", "Fake1"),
    "some layers": ("--fake", 2, "-ngl", 3),
    "no layers": ("--fake", 1, "-ngl", 0),
    "weights only": ("--fake", 2, "-nkvo", "on"),
    "cache only": ("--fake", 2, "-ot", r"\.attn_"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("arch", MEMORIES)
def test_places(bench, arch, place):
    model = bench.model(arch)
    args = ("-p", bench.mixed(model, 5), *LENGTH, *PLACES[place])
    found = bench.run("run", model, *args)
    assert found["groups"] == len(WINDOWS) + 1
    check_f32(found)


@pytest.mark.parametrize("place", ["two", "some layers", "weights only"])
@pytest.mark.parametrize("cache_type", ["f16", "q8_0"])
def test_places_with_flash_attention(bench, cache_type, place):
    model = bench.model("gemma3")
    check_rounded(bench.run("run", model, "-p", bench.mixed(model, 5), *LENGTH, *cache(cache_type), *PLACES[place]), 2e-5)


def test_the_cache_is_on_every_device(bench):
    """What test_places says holds for devices only if the groups are there."""
    model = bench.model("llama")
    result = subprocess.run([bench.bridge_test, "plan", "-m", model, "-p", bench.base(model), "--fake", "2"], capture_output=True, text=True, timeout=60,
                            env={**os.environ, "BRIDGE_TEST_VERBOSE": "1"})
    assert result.returncode == 0, result.stderr
    assert all(f"Fake{i} KV buffer size" in result.stderr for i in range(2)), result.stderr


@pytest.mark.parametrize("arch", MEMORIES)
@pytest.mark.parametrize("unified", ["on", "off"])
def test_random_operations_on_two_devices(bench, arch, unified):
    model = bench.model(arch)
    args = ("-kvu", unified, "-np", 3, "-c", 1536, "-ub", 48, "--ops", 40, "--fake", 2)
    check_rounded(bench.run("ops", model, "-p", bench.mixed(model, 7, sinks=0), *cache("f16"), *args), 2e-5)


@pytest.mark.parametrize("args, cells", [(("--fake", 1), 256), (("--fake", 1, "-nkvo", "on"), 256), (("--fake", 1, "-ngl", 0), 128), ((), 128)])
def test_rings_have_whole_blocks_of_cells_where_a_gpu_computes_a_layer(bench, args, cells):
    model = bench.model("llama")
    found = bench.run("plan", model, "-p", bench.base(model), *cache("f16"), "-c", 4096, "-ub", 32, *args)
    # 64 and 64 to take back; 4 layers of 2 heads of 64
    assert found["predicted"] == cells * 4 * 2 * 64 * 2 * 2


@pytest.mark.parametrize("args, cells", [((), 2304), (("-nkvo", "on"), 2048)])
def test_rings_have_room_for_a_batch_where_scratch_memory_is_dear(bench, args, cells):
    # 1984 and 64 to take back are whole blocks; a batch of 128 then needs 64 more, or all cells of a layer once more beside them
    model = bench.model("llama")
    found = bench.run("plan", model, "-p", bench.base(model, 1984, 4096), *cache("f16"), "-c", 4096, "-ub", 128, "--fake", 1, *args)
    assert found["predicted"] == cells * 4 * 2 * 64 * 2 * 2


def test_heads_of_512(bench):
    # in whole blocks of cells, also beside the ring
    model = bench.model("llama", head_dim=512, n_layer=2)
    for ubatch in (32, 200):
        check_rounded(bench.run("run", model, "-p", bench.mixed(model, 5), *cache("f16"), "-c", 512, "-ub", ubatch, "-n", 280, "-d", 20, "--fake", 1), 2e-5)


#
# what a device cannot attend to
#

LACKING = {
    "iq4_nl": cache("iq4_nl"),
    "unlike": cache("f16", "q8_0"),
}


@pytest.mark.parametrize("name, found", [("iq4_nl", "K iq4_nl and V iq4_nl"), ("unlike", "K f16 and V q8_0")])
def test_refused_by_name(bench, name, found):
    model = bench.model("llama")
    error = bench.run("plan", model, "-p", bench.base(model), *LACKING[name], "--fake", 2, code=1)
    expected = (f"KV policy: window 64: found {found} in 256 cells, heads of 64, in layer 0 on Fake0, which cannot attend to them, "
                "expected f32, f16, bf16, q8_0, q5_1, q5_0, q4_1 or q4_0 for both, -nkvo, or --kv-policy-allow-cpu to have the CPU attend\n")
    assert expected in error
    # only what is on a device is asked for
    bench.run("plan", model, "-p", bench.base(model), *LACKING[name], "--fake", 2, "-ngl", 0)


@pytest.mark.parametrize("arch", MEMORIES)
@pytest.mark.parametrize("name", LACKING)
@pytest.mark.parametrize("way", [("--allow-cpu", "on"), ("-nkvo", "on")])
def test_the_cpu_attends_where_that_is_allowed(bench, arch, name, way):
    model = bench.model(arch)
    check_rounded(bench.run("run", model, "-p", bench.mixed(model, 5), *LACKING[name], *LENGTH, "--fake", 2, *way), 1e-4)


def test_a_warning_names_what_the_cpu_attends_to(bench):
    model = bench.model("llama")
    result = subprocess.run([bench.bridge_test, "plan", "-m", model, "-p", bench.base(model), *cache("iq4_nl"), "--fake", "2", "--allow-cpu", "on"],
                            capture_output=True, text=True, timeout=60, env={**os.environ, "BRIDGE_TEST_VERBOSE": "1"})
    lines = [line for line in result.stderr.splitlines() if "to which it cannot attend: the CPU does" in line]
    assert len(lines) == 2, result.stderr  # one for each device, not for each layer
    assert "window 64: found K iq4_nl and V iq4_nl" in lines[0]


@pytest.mark.parametrize("arch", MEMORIES)
def test_flash_attention_is_left_out_where_that_serves(bench, arch):
    # K of another type than V is attended to without it
    model = bench.model(arch)
    check_rounded(bench.run("run", model, "-p", bench.mixed(model, 5), *cache("q8_0", "f16", "auto"), *LENGTH, "--fake", 1), 2e-5)


def test_values_in_blocks_need_flash_attention(bench):
    # some heads have them: left to llama.cpp flash attention would be turned off, and without it they cannot be transposed
    model = bench.model("llama")
    args = ("-p", bench.typed(model, 5, every_type(WINDOWS, ("f16", "iq4_nl"))), "-fa", "auto", *LENGTH, "--fake", 1)
    error = bench.run("run", model, *args, code=1)
    assert "found K iq4_nl and V iq4_nl" in error and "which cannot attend to them" in error
    check_rounded(bench.run("run", model, *args, "--allow-cpu", "on"), 2.5e-4)
    assert bench.run("run", model, *args, "--allow-cpu", "on", "--type-error", 1)["max_kl"] > 7.5e-4


def test_heads_spread_over_devices_are_refused(bench):
    model = bench.model("llama")
    error = bench.run("plan", model, "-p", bench.base(model), *cache("f16"), "--fake", 2, "-sm", "tensor", code=1)
    assert "KV policy: found -sm tensor, which spreads the heads of a layer over devices, expected -sm layer, row or none\n" in error


#
# RPC
#


@pytest.mark.parametrize("arch", MEMORIES)
@pytest.mark.parametrize("n_server, args", [(1, ()), (2, ("-sm", "layer")), (2, ("-ot", r"\.attn_")), (1, ("--fake", 1)), (2, ("-nkvo", "on"))])
def test_rpc_devices(bench, rpc_servers, arch, n_server, args):
    model = bench.model(arch)
    check_f32(bench.run("run", model, "-p", bench.mixed(model, 5), *LENGTH, "--rpc", ",".join(rpc_servers[:n_server]), *args))


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_split_over_rpc_devices(bench, program, rpc_servers, arch):
    model = bench.model(arch)
    policy = bench.mixed(model, 1)

    def tokens(*args):
        with ServerProcess(model, bench.folder / "rpc.log", "--kv-policy", str(policy), "-fa", "off", "-ctk", "f32", "-ctv", "f32",
                           *args, ctx=512) as server:
            prompt = [5 + i * 7 % 200 for i in range(300)]
            answer = server.post("/completion", json={"prompt": prompt, "n_predict": 40, "temperature": 0, "return_tokens": True}).json()
            return answer["tokens"], server.log()

    local, _ = tokens()
    remote, _ = tokens("--rpc", ",".join(rpc_servers), "-ngl", "99", "-sm", "layer", "-fit", "off")
    assert len(local) == 40
    assert remote == local
    # the groups really are on both devices
    plan = subprocess.run([program("llama-server"), "-m", model, "-c", "512", "-np", "1", "--kv-policy", policy, "--kv-policy-dry-run",
                           "--rpc", ",".join(rpc_servers), "-ngl", "99", "-fit", "off"], capture_output=True, text=True, timeout=60)
    assert all("RPC" in line for line in plan.stdout.splitlines()[1:3]), plan.stdout + plan.stderr
