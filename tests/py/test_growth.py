"""Nothing grows after the start: a context's compute buffers are reserved for whatever may come."""

import pytest
from bridge_bench import Bench

pytestmark = pytest.mark.bridge

SLOTS = {"one": (), "shared": ("-np", 4, "-kvu", "on"), "apart": ("-np", 4, "-kvu", "off"), "many": ("-np", 8, "-kvu", "off")}


@pytest.fixture(scope="module")
def bench(program, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("growth"), program)


def check_growth(bench, arch, slots, ubatch, rollback, cache_type="f16", windows=(16, 130, 600), context=1024, together=1024):
    model = bench.model(arch)
    n_slot = SLOTS[slots][1] if SLOTS[slots] else 1
    found = bench.run("growth", model, "-p", bench.mixed(model, 5, windows=windows, context=context), "-fa", "on", "-ctk", cache_type, "-ctv", cache_type,
                      "-c", context * n_slot, "-n", together, "-ub", ubatch, "--rollback", rollback, *SLOTS[slots])
    assert found["before"] > 0
    assert found["most"] == found["before"], f"a prompt of {found['at']} tokens took {found['most']} bytes, {found['before']} were reserved"


@pytest.mark.parametrize("slots", SLOTS)
@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35"])
def test_prompts_of_any_length(bench, arch, slots):
    check_growth(bench, arch, slots, ubatch=200, rollback=64)


@pytest.mark.parametrize("ubatch, rollback", [(64, 0), (512, 64), (96, 128)])
def test_batches_and_rollbacks(bench, ubatch, rollback):
    check_growth(bench, "llama", "one", ubatch, rollback, "q8_0")


@pytest.mark.gpu
@pytest.mark.parametrize("arch, slots", [("llama", "one"), ("llama", "many"), ("gemma3", "shared"), ("qwen35", "apart")])
def test_prompts_of_any_length_on_a_device(bench, arch, slots):
    # a device in software takes a minute for some thousand tokens: a short context, and of many sequences at once prompts that fill a batch
    check_growth(bench, arch, slots, ubatch=100, rollback=64, windows=(16, 130), context=512, together=51)
