"""What is predicted for every device is what is allocated there: check, the dry run, /props and llama.cpp's own load log."""

import json
import math
import os
import re

import gguf
import numpy as np
import pytest
import tiny_gguf
from bridge_bench import Bench
from server_process import ServerProcess

from headwisekv.core import ROOT

pytestmark = pytest.mark.bridge

ARCHS = ("llama", "qwen3moe", "gemma3", "gemma4", "qwen35", "gpt-oss")
MIB = 2**20
SIZES = ("weights_bytes", "kv_bytes", "swa_bytes", "recurrent_bytes", "compute_bytes", "draft_bytes", "projector_bytes")

# where the layers are
CPU = pytest.param((), id="cpu")
DEVICES = [pytest.param(("-ngl", str(n)), id=f"ngl {n}", marks=pytest.mark.gpu) for n in (99, 3, 0)]

LOG_SIZE = re.compile(r" (\S+) (model|KV|RS|compute) buffer size = +([\d.]+) MiB")


@pytest.fixture(scope="module")
def bench(program, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("memory"), program)


def check(bench, model, policy, *args):
    result = bench.call(bench.kv_policy, "check", policy, "-m", model, "--json", *args)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def dry_run(bench, program, model, policy, *args):
    """The rows of the table of devices: {device: {column: MiB}}, and the lines below it."""
    result = bench.call(program("llama-server"), "-m", model, "--offline", "--kv-policy", policy, "--kv-policy-dry-run", *args)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    first = next(i for i, line in enumerate(lines) if line.split()[:1] == ["MiB"])
    titles = lines[first].split()[1:]
    rows = {}
    for line in lines[first + 1:]:
        fields = line.split()
        if len(fields) != len(titles) + 1:
            break
        rows[fields[0]] = dict(zip(titles, map(float, fields[1:])))
    return rows, lines[first + 1 + len(rows):]


def serve(model, policy, folder, *args, ctx):
    """Of a running server: what /props tells, and what its load log adds up to by device."""
    with ServerProcess(model, folder / "server.log", "--kv-policy", str(policy), "-fa", "on", "-lv", "4", *map(str, args), ctx=ctx) as server:
        memory = server.get("/props").json()["kv_policy"]["memory"]
        log = server.log()
    return memory, logged(log)


def logged(log):
    """Bytes by device. A context that is made ready again has new compute buffers in place of the old ones."""
    sizes = {}
    for context in log.split("constructing llama_context"):
        found = LOG_SIZE.findall(context)
        compute = {buffer: mib for buffer, kind, mib in found if kind == "compute"}
        for buffer, mib in [(buffer, mib) for buffer, kind, mib in found if kind != "compute"] + list(compute.items()):
            device = "CPU" if buffer == "Vulkan_Host" else buffer
            sizes[device] = sizes.get(device, 0) + float(mib) * MIB
    return sizes


def by_name(memory):
    return {device["name"]: device for device in memory["devices"]}


def check_sums(memory):
    for device in memory["devices"]:
        assert device["total_bytes"] == sum(device[key] for key in SIZES)
        assert device["kv_bytes"] == pytest.approx(sum(device["kv_group_bytes"]), rel=1e-6)
    for key in ("total_bytes", "total_bytes_plain"):
        assert memory[key] == sum(device[key] for device in memory["devices"])


def check_same(predicted, found):
    """Within 1% on every device, and in total."""
    assert by_name(predicted).keys() == by_name(found).keys()
    for name, device in by_name(found).items():
        for key in ("total_bytes", "total_bytes_plain"):
            assert by_name(predicted)[name][key] == pytest.approx(device[key], rel=0.01), (name, key)
    for key in ("total_bytes", "total_bytes_plain"):
        assert predicted[key] == pytest.approx(found[key], rel=0.01)


def check_allocated(memory, sizes, key="total_bytes"):
    """The log has two digits of a MiB in every line. A mapped file it counts from the first tensor to the last, those of devices too."""
    mapped = sizes.pop("CPU_Mapped", 0)
    for name, device in by_name(memory).items():
        allocated = device[key] - device["projector_bytes"]
        if device["host"] and mapped and len(memory["devices"]) > 1:
            assert device["weights_bytes"] <= mapped + 0.01 * MIB
            allocated -= device["weights_bytes"]
        elif device["host"]:
            allocated -= mapped
        assert sizes.get(name, 0) == pytest.approx(allocated, rel=0.01, abs=0.05 * MIB), name


@pytest.mark.parametrize("devices", [CPU, *DEVICES])
@pytest.mark.parametrize("arch", ARCHS)
def test_predicted_is_allocated(bench, program, tmp_path, arch, devices):
    model = bench.model(arch)
    policy = bench.mixed(model, 5, context=2048)
    args = ("-c", 2048, "-ub", 256, *devices)
    fixed = ("-fit", "off") if devices else ()
    report = check(bench, model, policy, *args)
    predicted = report["memory"]
    found, sizes = serve(model, policy, tmp_path, "-ub", 256, *devices, *fixed, ctx=2048)
    if "-ngl" in devices and "0" not in devices:
        assert len(predicted["devices"]) == 2
    for memory in (predicted, found):
        check_sums(memory)
        assert sum(device["kv_bytes"] for device in memory["devices"]) == pytest.approx(report["bytes"], rel=1e-3)
    check_same(predicted, found)
    check_allocated(found, sizes)
    rows, _ = dry_run(bench, program, model, policy, *args, *fixed, "-np", 1, "-fa", "on")
    for name, device in by_name(found).items():
        assert rows[name]["total"] == pytest.approx(device["total_bytes"] / MIB, rel=0.01, abs=0.006)
        assert rows[name]["plain"] == pytest.approx(device["total_bytes_plain"] / MIB, rel=0.01, abs=0.006)


@pytest.mark.parametrize("arch", ["gemma4", "qwen35"])
def test_several_devices(bench, program, tmp_path, rpc_servers, arch):
    """Two of them, and layers on the CPU."""
    model = bench.model(arch)
    policy = bench.mixed(model, 5)
    args = ("--rpc", ",".join(rpc_servers), "-ngl", "3", "-fit", "off")
    found, sizes = serve(model, policy, tmp_path, *args, ctx=512)
    check_sums(found)
    assert by_name(found).keys() == {"CPU", "RPC0", "RPC1"}
    for i, server in enumerate(rpc_servers):  # the log names them by their addresses
        sizes[f"RPC{i}"] = sizes.pop(f"RPC0[{server}]")
    check_allocated(found, sizes)
    rows, _ = dry_run(bench, program, model, policy, "-c", 512, "-np", 1, "-fa", "on", *args)
    for name, device in by_name(found).items():
        assert rows[name]["total"] == pytest.approx(device["total_bytes"] / MIB, rel=0.01, abs=0.006)
        assert rows[name]["plain"] == pytest.approx(device["total_bytes_plain"] / MIB, rel=0.01, abs=0.006)
    assert rows["total"]["total"] == pytest.approx(found["total_bytes"] / MIB, rel=0.01)


@pytest.mark.parametrize("devices", [CPU, *DEVICES])
def test_the_plain_total_is_that_of_the_plain_cache(bench, tmp_path, devices):
    """A server without a policy has no such numbers of its own: its log adds up to the total that was promised for it."""
    model = bench.model("gemma3")
    policy = bench.mixed(model, 5, context=2048)
    predicted = check(bench, model, policy, "-c", 2048, *devices)["memory"]
    with ServerProcess(model, tmp_path / "plain.log", "-fa", "on", "-lv", "4", "-fit", "off", *devices, ctx=2048) as server:
        sizes = logged(server.log())
    check_allocated(predicted, sizes, "total_bytes_plain")


@pytest.mark.parametrize("args", [("-np", "4"), ("-np", "4", "-no-kvu"), ("-ctk", "q8_0", "-ctv", "q8_0"), ("-b", "128")], ids=" ".join)
def test_a_real_model(bench, model, tmp_path, args):
    policy = ROOT / "policies" / "smollm2-135m-instruct-8k.json"
    predicted = check(bench, model, policy, *args)["memory"]
    found, sizes = serve(model, policy, tmp_path, *args, *(("-kvu",) if args == ("-np", "4") else ()), ctx=8192)
    check_sums(found)
    check_same(predicted, found)
    check_allocated(found, sizes)
    assert found["checkpoint_bytes_max"] == predicted["checkpoint_bytes_max"] > 0
    assert found["total_bytes"] < found["total_bytes_plain"]


@pytest.mark.parametrize("mode", ["none", "mmap"])
def test_files_that_are_mapped_or_read(bench, program, tmp_path, mode):
    """gemma4 has a tensor twice: two buffers of a file that is read, one piece of it where it is mapped."""
    model = bench.model("gemma4")
    policy = bench.mixed(model, 5)
    found, sizes = serve(model, policy, tmp_path, "-lm", mode, ctx=512)
    check_allocated(found, sizes)
    rows, _ = dry_run(bench, program, model, policy, "-c", 512, "-np", 1, "-lm", mode, "-fa", "on")
    assert rows["CPU"]["total"] == pytest.approx(found["total_bytes"] / MIB, rel=0.001)


def run_draft(bench, program, folder, model, policy, *args, devices):
    args = (*args, *devices, "-lm", "none")  # two mapped files could not be told apart in the log
    rows, _ = dry_run(bench, program, model, policy, "-c", 1024, "-np", 1, "-fa", "on", *args)
    found, sizes = serve(model, policy, folder, *args, ctx=1024)
    for name, device in by_name(found).items():
        for title, key in (("draft", "draft_bytes"), ("total", "total_bytes"), ("plain", "total_bytes_plain")):
            assert rows[name][title] == pytest.approx(device[key] / MIB, rel=0.01, abs=0.006), (name, title)
    assert sum(device["draft_bytes"] for device in found["devices"]) > 0
    check_allocated(found, sizes)


@pytest.mark.parametrize("devices", [CPU, pytest.param(("-ngl", "99", "-ngld", "99", "-fit", "off"), id="gpu", marks=pytest.mark.gpu)])
def test_a_draft_model(bench, program, tmp_path, devices):
    model = bench.model("llama")
    draft = tmp_path / "draft.gguf"
    tiny_gguf.make_model(draft, "llama", seed=3, n_layer=2)
    run_draft(bench, program, tmp_path, model, bench.mixed(model, 5, context=1024), "-md", draft, "--spec-type", "draft-simple", devices=devices)


@pytest.mark.parametrize("devices", [CPU, pytest.param(("-ngl", "99", "-fit", "off"), id="gpu", marks=pytest.mark.gpu)])
def test_drafts_of_the_model_itself(bench, program, tmp_path, devices):
    """An MTP context has no weights of its own."""
    model = bench.model("qwen35", n_nextn=1)
    run_draft(bench, program, tmp_path, model, bench.mixed(model, 5, context=1024), "--spec-type", "draft-mtp", devices=devices)


def make_projector(path, n_embd, n_layer=2, width=64, n_ff=128, image=56, patch=14):
    """A LLaVA projector with random weights for a model of n_embd; returns the bytes of its tensors."""
    w = gguf.GGUFWriter(str(path), "clip")
    w.add_string("clip.projector_type", "mlp")
    w.add_bool("clip.has_vision_encoder", True)
    w.add_bool("clip.use_gelu", True)
    for key, value in {"embedding_length": width, "feed_forward_length": n_ff, "block_count": n_layer, "projection_dim": n_embd,
                       "attention.head_count": 2, "image_size": image, "patch_size": patch}.items():
        w.add_uint32(f"clip.vision.{key}", value)
    w.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    w.add_array("clip.vision.image_mean", [0.5] * 3)
    w.add_array("clip.vision.image_std", [0.5] * 3)
    shapes = {"v.patch_embd.weight": (width, 3, patch, patch), "v.class_embd": (width,), "v.position_embd.weight": ((image // patch)**2 + 1, width),
              "v.pre_ln.weight": (width,), "v.pre_ln.bias": (width,),
              "mm.0.weight": (n_embd, width), "mm.0.bias": (n_embd,), "mm.2.weight": (n_embd, n_embd), "mm.2.bias": (n_embd,)}
    for il in range(n_layer):
        for name, rows, columns in [("attn_q", width, width), ("attn_k", width, width), ("attn_v", width, width), ("attn_out", width, width),
                                    ("ffn_up", n_ff, width), ("ffn_down", width, n_ff)]:
            shapes |= {f"v.blk.{il}.{name}.weight": (rows, columns), f"v.blk.{il}.{name}.bias": (rows,)}
        for name in ("ln1", "ln2"):
            shapes |= {f"v.blk.{il}.{name}.weight": (width,), f"v.blk.{il}.{name}.bias": (width,)}
    rng = np.random.default_rng(1)
    for name, shape in shapes.items():
        w.add_tensor(name, rng.normal(0, 0.02, shape).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return sum(4 * math.prod(shape) for shape in shapes.values())


@pytest.mark.parametrize("devices, device", [pytest.param((), "CPU", id="cpu"),
                                             pytest.param(("-ngl", "99", "-fit", "off"), "Vulkan0", id="gpu", marks=pytest.mark.gpu)])
def test_a_projector(bench, program, tmp_path, devices, device):
    model = bench.model("llama")
    policy = bench.mixed(model, 5)
    projector = tmp_path / "mmproj.gguf"
    size = make_projector(projector, tiny_gguf.DEFAULTS["llama"].n_embd)
    args = ("--mmproj", projector, *devices)
    with ServerProcess(model, tmp_path / "server.log", "--kv-policy", str(policy), "-fa", "on", "-lv", "4", *map(str, args), ctx=512) as server:
        found = server.get("/props").json()["kv_policy"]["memory"]
        log = server.log()
    compute = sum(float(mib) for mib in re.findall(rf" reserve_compute_meta: +{device} compute buffer size = +([\d.]+) MiB", log))
    assert compute > 0
    assert by_name(found)[device]["projector_bytes"] == pytest.approx(size + compute * MIB, rel=0.01, abs=0.01 * MIB)
    rows, _ = dry_run(bench, program, model, policy, "-c", 512, "-np", 1, "-fa", "on", *args)
    for title, key in (("projector", "projector_bytes"), ("total", "total_bytes"), ("plain", "total_bytes_plain")):
        assert rows[device][title] == pytest.approx(by_name(found)[device][key] / MIB, rel=0.01, abs=0.006)


def test_checkpoints(bench, program, model):
    policy = ROOT / "policies" / "smollm2-135m-instruct-8k.json"
    report = check(bench, model, policy)
    assert report["memory"]["checkpoint_bytes_max"] == report["bytes_saved"] // 2
    for args, mib in [((), report["bytes_saved"] / 2 / MIB), (("--kv-policy-checkpoint-mib", "7"), 7)]:
        _, below = dry_run(bench, program, model, policy, "-c", 8192, "-np", 1, *args)
        assert below == [f"context checkpoints take at most {mib:.2f} MiB of the host's memory besides"]


def test_without_a_table(bench):
    model = bench.model("llama")
    policy = bench.mixed(model, 5)
    report = check(bench, model, policy, "-c", 512, "--pad", 256)
    assert report["memory"] is None
    assert report["no_memory"] == "no device has --pad"
    text = bench.call(bench.kv_policy, "check", policy, "-m", model, "-c", 512, "--pad", 256).stdout
    assert text.endswith("\nmemory of the devices is not known: no device has --pad\n")
    report = json.loads(bench.call(bench.kv_policy, "check", policy, "--json").stdout)
    assert report["memory"] is None
    assert report["no_memory"] == "no model was given"


#
# --fit
#


def served_context(model, folder, budget, *args):
    """The context that --fit chooses when so much of the host's memory may be taken."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with ServerProcess(model, folder / "fit.log", "-fa", "on", "-fitt", str((total - budget) // MIB), "-fitc", "512", *map(str, args), ctx=0) as server:
        return server.get("/props").json()["default_generation_settings"]["n_ctx"]


def test_fit_takes_the_policy_into_account(bench, model, tmp_path):
    policy = ROOT / "policies" / "smollm2-135m-instruct-8k.json"
    memory = check(bench, model, policy)["memory"]
    budget = (memory["total_bytes"] + memory["total_bytes_plain"]) // 2
    assert served_context(model, tmp_path, budget, "--kv-policy", policy) == 8192
    assert 512 <= served_context(model, tmp_path, budget) < 8192


@pytest.mark.parametrize("mib", [150, 165, 180])
def test_fit_is_right_in_between(bench, model, tmp_path, mib):
    """Memory does not grow evenly with the context: what is in between must be measured."""
    policy = ROOT / "policies" / "smollm2-135m-instruct-8k.json"

    def total(n_ctx):
        return check(bench, model, policy, "-c", n_ctx)["memory"]["total_bytes"]

    n_ctx = served_context(model, tmp_path, mib * MIB, "--kv-policy", policy)
    assert 512 < n_ctx < 8192
    assert total(n_ctx) <= mib * MIB < total(n_ctx + 512)  # the margin is in whole MiB
