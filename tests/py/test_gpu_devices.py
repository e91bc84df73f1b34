"""Where groups can be, with ggml's Vulkan backend: two devices, RPC beside one, parts of the model on the host, and what is refused.

One device is seen twice, so that two are tested where there is one. The reference is on the CPU.
"""

import os

import pytest
from bridge_bench import MEMORIES, WINDOWS, Bench, cache, check_rounded

pytestmark = pytest.mark.gpu

# rings have 256 cells: prompt and decoding both go past their end
LENGTH = ("-c", 512, "-ub", 32, "-n", 280, "-d", 20)


@pytest.fixture(scope="module")
def bench(program, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("gpu-devices"), program)


@pytest.fixture
def twice(monkeypatch):
    device = os.environ.get("GGML_VK_VISIBLE_DEVICES", "0").split(",")[0]
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", f"{device},{device}")
    return ("--device", "Vulkan0,Vulkan1")


#
# where a model can be
#


@pytest.mark.parametrize("arch", MEMORIES)
@pytest.mark.parametrize("args", [(), ("-ngl", 3), ("-nkvo", "on"), ("-ot", r"\.attn_")])
def test_two_devices(bench, twice, arch, args):
    model = bench.model(arch)
    found = bench.run("run", model, "-p", bench.mixed(model, 5), *cache("f16"), *LENGTH, *twice, *args)
    assert found["groups"] == len(WINDOWS) + 1
    check_rounded(found, 2e-5)


@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0"])
def test_blocks_on_two_devices(bench, twice, cache_type):
    model = bench.model("gemma3")
    # a device rounds to 4 bits at other places than the CPU
    check_rounded(bench.run("run", model, "-p", bench.mixed(model, 5), *cache(cache_type), *LENGTH, *twice), 1e-3 if cache_type == "q4_0" else 2e-5)


@pytest.mark.parametrize("unified", ["on", "off"])
def test_random_operations_on_two_devices(bench, twice, unified):
    model = bench.model("llama")
    found = bench.run("ops", model, "-p", bench.mixed(model, 7, sinks=0), *cache("f16"), "-kvu", unified, "-np", 3, "-c", 1536, "-ub", 48, "--ops", 30, *twice)
    check_rounded(found, 2e-5)


@pytest.mark.parametrize("arch", MEMORIES)
def test_a_device_and_an_rpc_server(bench, rpc_servers, arch):
    model = bench.model(arch)
    check_rounded(bench.run("run", model, "-p", bench.mixed(model, 5), *cache("f16"), *LENGTH, "--rpc", rpc_servers[0], "--device", "Vulkan0,RPC0"), 2e-5)


def test_by_rows(bench, twice):
    """As far as llama.cpp has that for a device: Vulkan has no buffers that are split."""
    model = bench.model("llama")
    args = ("-p", bench.mixed(model, 5), *cache("f16"), *LENGTH, *twice, "-sm", "row")
    result = bench.call(bench.bridge_test, "plan", "-m", model, *args)
    if result.returncode != 0:
        assert "does not support split buffers" in result.stderr
    else:
        check_rounded(bench.run("run", model, *args), 2e-5)


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
def test_weights_on_the_device_and_the_cache_on_the_host(bench, arch):
    model = bench.model(arch)
    args = ("-p", bench.base(model), *cache("f16"), "-c", 4096, "-ub", 32)
    # the device is given whole blocks of cells there too
    assert bench.run("plan", model, *args, "-nkvo", "on")["predicted"] == bench.run("plan", model, *args)["predicted"]
    check_rounded(bench.run("run", model, "-p", bench.mixed(model, 5), *cache("f16"), *LENGTH, "-nkvo", "on", "-ub", 200), 2e-5)


#
# what a device cannot attend to
#


def test_heads_of_512(bench):
    # in whole blocks of cells, also beside the ring
    model = bench.model("llama", head_dim=512, n_layer=1)
    check_rounded(bench.run("run", model, "-p", bench.mixed(model, 5), *cache("f16"), "-c", 512, "-ub", 200, "-n", 270, "-d", 4), 2e-5)


@pytest.mark.parametrize("types", [("iq4_nl", "iq4_nl"), ("f16", "q8_0"), ("bf16", "q8_0"), ("q8_0", "bf16")])
def test_refused_by_name_or_right(bench, types):
    """Which types a device attends to is its own affair. Vulkan has bf16 only for both."""
    model = bench.model("llama")
    args = ("-p", bench.mixed(model, 5), *cache(*types), *LENGTH)
    result = bench.call(bench.bridge_test, "plan", "-m", model, *args)
    assert result.returncode == (1 if "bf16" in types else 0), result.stderr
    if result.returncode != 0:
        assert f"KV policy: window full: found K {types[0]} and V {types[1]} in 512 cells, heads of 64, in layer 0 on Vulkan0, which cannot attend to them" in result.stderr
        assert "or --kv-policy-allow-cpu to have the CPU attend\n" in result.stderr
        args = (*args, "--allow-cpu", "on")
    # Vulkan rounds to iq4_nl otherwise than the CPU: llama.cpp's own cache shows a KL of 3.7e-4
    check_rounded(bench.run("run", model, *args), 1e-3 if "iq4_nl" in types else 1e-4)


def test_heads_that_no_kernel_takes(bench):
    # flash attention takes multiples of 8; left to llama.cpp the rest is attended to without
    model = bench.model("llama", head_dim=36)
    args = ("-p", bench.mixed(model, 5), *LENGTH)
    error = bench.run("run", model, *args, *cache("f16"), code=1)
    assert "heads of 36, in layer 0 on Vulkan0, which cannot attend to them, expected -fa off with f32, f16 or bf16, -nkvo, or --kv-policy-allow-cpu" in error
    check_rounded(bench.run("run", model, *args, *cache("f16"), "--allow-cpu", "on"), 2e-5)
    check_rounded(bench.run("run", model, *args, *cache("f16", flash_attn="auto")), 2e-5)


def test_heads_spread_over_devices_are_refused(bench, twice):
    model = bench.model("llama")
    error = bench.run("plan", model, "-p", bench.base(model), *cache("f16"), *twice, "-sm", "tensor", code=1)
    assert "KV policy: found -sm tensor, which spreads the heads of a layer over devices, expected -sm layer, row or none\n" in error
