"""The paper's models at 131,072 tokens, as sizes: docs/paper-scale.md, the bars it shows, and that its device stands for others."""

import json

import pytest
import tiny_gguf
from bridge_bench import Bench, check_f32
from server_process import ROOT, need

from headwisekv import policy as policies
from headwisekv.markdown import put_between
from headwisekv.paper import page, sizes
from headwisekv.rpc_device import RpcDevice

MIB = 2**20

# rpc-server's device rounds tensors up by other steps than a GPU, and reuses memory in another order
DEVICES_DIFFER = 9 * MIB


@pytest.fixture(scope="module")
def folder(program):
    return program("bridge-test").parent


@pytest.fixture(scope="module")
def device(program):
    """Options of bridge-test. The tree for a GPU may have no rpc-server; it is a program of the same llama.cpp."""
    beside = program("bridge-test").parent / "rpc-server"
    with RpcDevice(beside if beside.exists() else need(ROOT / "build" / "bin" / "rpc-server", "run make build")) as rpc:
        yield rpc.options


#
# shares and decks
#

@pytest.mark.unit
@pytest.mark.parametrize("share, n_unit", [(0.5801, 32), (0.6895, 64), (0.7438, 20), (0.9189, 40), (1.0, 8), (0.0625, 8)])
def test_the_share_comes_out(share, n_unit):
    deck = sizes.deck_of(share, n_unit)
    kept = sum(1 / part for part in sizes.PARTS for _ in range(deck.count(sizes.PARTS.index(part)))) + deck.count(len(sizes.PARTS))
    assert len(deck) == n_unit and abs(kept / n_unit - share) < 2e-4
    assert deck == sizes.deck_of(share, n_unit)


@pytest.mark.unit
def test_kinds_of_policies():
    base = {"context": 131072, "model": {"layers": [{"n_head_kv": 4}] * 8}}
    by_head, by_layer = sizes.rows_of(base, "heads"), sizes.rows_of(base, "layers")
    for rows in (by_head, by_layer):
        assert sorted(ie for row in rows for ie in row) == sorted([0, 1, 2, 3] * 8)
    assert all(len(set(row)) == 1 for row in by_layer) and any(len(set(row)) > 1 for row in by_head)
    assert by_head == sizes.rows_of(base, "heads")
    model = sizes.Model("none", base)
    assert sizes.mask_bytes(model, "heads") == 512 * 2 * (8192 + 16384 + 32768)
    assert sizes.mask_bytes(model, "8K") == 512 * 2 * 8192


#
# the models
#

@pytest.mark.bridge
@pytest.mark.parametrize("name", tiny_gguf.PAPER)
def test_small_weights_compute(program, tmp_path, name):
    """With data, the same shapes give what a mask per head gives, and one key more is noticed."""
    bench = Bench(tmp_path, program)
    model = tmp_path / f"{name}.gguf"
    experts = {"n_expert": 8, "n_expert_used": 2} if "A3B" in name else {}
    tiny_gguf.make_paper_model(model, name, **tiny_gguf.PAPER_NARROW, **experts)
    assert model.stat().st_size < 64 * MIB
    args = ("-p", bench.mixed(model, 5), "-c", 512, "-ub", 32, "-n", 140, "-d", 2)
    check_f32(bench.run("run", model, *args))
    if name != "Qwen3.6-27B":  # which has the architecture of the 9B and takes twice as long
        assert bench.run("run", model, *args, "--window-error", 1)["max_abs"] > 0.1


@pytest.mark.bridge
def test_a_hollow_model_takes_no_disk(tmp_path):
    for name in tiny_gguf.PAPER:
        path = tmp_path / f"{name}.gguf"
        tiny_gguf.make_paper_model(path, name, hollow=True)
        assert path.stat().st_size > 10**10 and path.stat().st_blocks * 512 < MIB


@pytest.mark.bridge
@pytest.mark.parametrize("on_device", [False, True])
def test_sizes_without_memory_are_those_with_it(folder, device, tmp_path, on_device):
    """Of a context small enough to allocate."""
    path = tmp_path / "model.gguf"
    tiny_gguf.make_model(path, "qwen35", seed=1)
    base = json.loads(sizes.programs.run(folder / "llama-kv-policy", "make", "uniform", "--window", 64, "-c", 2048, "-m", path, "-o", "-"))
    policy = tmp_path / "policy.json"
    policy.write_text(json.dumps(policies.with_point(base, [64, 256, "full"], policies.deal(base, [0, 1, 2, 0], 1), "x", "x", 4)))
    found = [json.loads(sizes.programs.run(folder / "bridge-test", "plan", "-m", path, "-p", policy, "-ctk", "f16", "-ctv", "f16", "-fa", "on", "-c", 2048,
                                           "-ub", 128, "--no-alloc", no_alloc, *(device if on_device else ()))) for no_alloc in ("on", "off")]
    def used(plan):
        return [(memory["name"], memory["context"], memory["compute"]) for memory in plan["memory"] if memory["context"] or memory["compute"]]

    assert used(found[0]) == used(found[1])
    assert found[0]["predicted"] == found[1]["predicted"] and found[0]["cache"] == found[1]["cache"]


@pytest.mark.bridge
def test_the_page_has_what_is_measured(folder):
    text = (ROOT / "docs" / "paper-scale.md").read_text()
    assert put_between(page.MARKS, text, f"\n{page.text_of(folder)}") == text, "scripts/paper-scale --into docs/paper-scale.md writes the tables again"


#
# bars
#

def check_bars(folder, tmp_path, device, kinds, plain):
    model = sizes.model_of(folder, tmp_path, "attention")
    for kind in kinds:
        found = sizes.measure(folder, tmp_path, model, kind, device)
        assert found.compute <= page.BARS[kind] * MIB, (kind, found)
        assert found.kv + found.compute <= page.together_bar(found, plain, sizes.mask_bytes(model, kind)), (kind, found, plain)


@pytest.mark.bridge
def test_bars(folder, device, tmp_path):
    plain = sizes.measure(folder, tmp_path, sizes.model_of(folder, tmp_path, "attention"), None, device)
    check_bars(folder, tmp_path, device, page.BARS, plain)


@pytest.mark.bridge
@pytest.mark.parametrize("name, share", page.SHARES)
def test_windows_save_what_they_drop(folder, device, tmp_path, name, share):
    """The share of the plain cache, but for padding and rollback; everything else of the context is as without a policy."""
    model = sizes.model_of(folder, tmp_path, name)
    plain, found = (sizes.measure(folder, tmp_path, model, kind, device) for kind in (None, share))
    assert plain.kv == plain.nominal == found.kv_plain
    assert 0 <= found.kv - found.nominal <= 0.01 * plain.kv
    assert found.context - found.kv == plain.context - plain.kv


#
# devices
#

@pytest.mark.gpu
@pytest.mark.parametrize("name", ["attention", "Qwen3.5-9B"])
def test_the_device_stands_for_a_gpu(folder, device, tmp_path, name):
    """At a quarter of the context, and without the widest models: Mesa's software device has no tensors above 128 MiB."""
    model = sizes.model_of(folder, tmp_path, name, sizes.CONTEXT // 4)
    for kind in (None, *page.BARS):
        on_rpc, on_gpu = (sizes.measure(folder, tmp_path, model, kind, options) for options in (device, ()))
        assert (on_rpc.kv, on_rpc.context) == (on_gpu.kv, on_gpu.context), kind
        assert abs(on_rpc.compute - on_gpu.compute) <= DEVICES_DIFFER, (kind, on_rpc, on_gpu)


@pytest.mark.gpu
def test_bars_on_a_gpu(folder, device, tmp_path):
    """Those without full history for all heads of a layer, which that device has no room for in one tensor."""
    plain = sizes.measure(folder, tmp_path, sizes.model_of(folder, tmp_path, "attention"), None, device)
    check_bars(folder, tmp_path, (), ("heads", "8K"), plain)
