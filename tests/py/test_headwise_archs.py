"""Window groups on every architecture and head geometry: the same logits as the plain cache with a mask per head."""

import json
from dataclasses import replace

import pytest
import tiny_gguf
from bridge_bench import CONTEXT, WINDOWS, Bench, check_f32, check_rounded, every_type

pytestmark = pytest.mark.bridge

# rings have 256 cells: prompt and decoding both go past their end
LENGTH = ("-c", CONTEXT, "-ub", 32, "-n", 280, "-d", 60)

# (architecture, options of tiny_gguf, expected full-attention layers)
ARCHS = {
    "llama": ("llama", {}, [0, 1, 2, 3]),
    "qwen2": ("qwen2", {}, [0, 1, 2, 3]),
    "qwen3": ("qwen3", {}, [0, 1, 2, 3]),
    "qwen3moe": ("qwen3moe", {}, [0, 1, 2, 3]),
    "qwen3next": ("qwen3next", {}, [2, 5]),
    "qwen35": ("qwen35", {}, [2, 5]),
    "qwen35moe": ("qwen35moe", {}, [2, 5]),
    "gemma3": ("gemma3", {}, [2, 5]),
    "gemma4": ("gemma4", {}, [1, 3]),
    "gemma4-own-kv": ("gemma4", {"n_shared": 0}, [1, 3, 5]),
    # the larger ones: fewer KV heads in the full layers, whose V is K
    "gemma4-k-is-v": ("gemma4", {"n_shared": 0, "n_head_kv_swa": 4, "k_is_v": True}, [1, 3, 5]),
    "gpt-oss": ("gpt-oss", {}, [1, 3]),
}

GEOMETRIES = {
    "llama-9-3-64": ("llama", {"n_head": 9, "n_head_kv": 3}),
    "llama-4-4-64": ("llama", {"n_head": 4, "n_head_kv": 4}),
    "llama-4-1-128": ("llama", {"n_head": 4, "n_head_kv": 1, "head_dim": 128}),
    "llama-8-8-256": ("llama", {"n_head": 8, "n_head_kv": 8, "head_dim": 256, "n_layer": 2}),
    "qwen2-14-2-64": ("qwen2", {"n_head": 14, "n_head_kv": 2, "n_embd": 896, "n_layer": 2}),
    "qwen3-16-8-128": ("qwen3", {"n_head": 16, "n_head_kv": 8, "head_dim": 128, "n_layer": 2}),
    "gemma3-4-1-256": ("gemma3", {"n_head": 4, "n_head_kv": 1, "head_dim": 256, "n_layer": 8, "interval": 2}),
    "gemma4-8-2-128": ("gemma4", {"n_head": 8, "n_head_kv": 2, "head_dim": 128, "head_dim_swa": 64, "n_shared": 0}),
    "gpt-oss-9-3-64": ("gpt-oss", {"n_head": 9, "n_head_kv": 3}),
    "gpt-oss-16-8-64": ("gpt-oss", {"n_head": 16, "n_head_kv": 8}),
    "qwen35-16-2-256": ("qwen35", {"n_head": 16, "n_head_kv": 2, "head_dim": 256}),
    "qwen3next-9-3-128": ("qwen3next", {"n_head": 9, "n_head_kv": 3, "head_dim": 128}),
}

CASES = {**{name: case[:2] for name, case in ARCHS.items()}, **GEOMETRIES}

F32 = ("-fa", "off", "-ctk", "f32", "-ctv", "f32")
F16 = ("-fa", "on", "-ctk", "f16", "-ctv", "f16")


@pytest.fixture(scope="module")
def bench(program, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("archs"), program)


def run_mixed(bench, model, seed, sinks, *args):
    found = bench.run("run", model, "-p", bench.mixed(model, seed, sinks), *LENGTH, *args)
    assert found["groups"] == len(WINDOWS) + 1
    return found


def all_experts(arch, options):
    # rounding moves a token to another expert now and then, which is a jump: let all of them vote
    n_expert = tiny_gguf.DEFAULTS[arch].n_expert
    return {**options, "n_expert_used": n_expert} if n_expert else options


@pytest.mark.parametrize("name", ARCHS)
def test_layers_with_windows(bench, name):
    arch, options, layers = ARCHS[name]
    found = json.loads(bench.base(bench.model(arch, **options)).read_text())["model"]
    assert found["architecture"] == arch
    assert [layer["layer"] for layer in found["layers"]] == layers
    assert tiny_gguf.full_layers(arch, replace(tiny_gguf.DEFAULTS[arch], **options)) == layers


@pytest.mark.parametrize("sinks", (0, 4))
@pytest.mark.parametrize("name", CASES)
def test_f32_logits_equal_the_masked_reference(bench, name, sinks):
    arch, options = CASES[name]
    check_f32(run_mixed(bench, bench.model(arch, **options), 11 + sinks, sinks, *F32))


@pytest.mark.parametrize("name", ("gemma4", "gemma4-own-kv"))
def test_batches_that_no_ring_holds(bench, name):
    # larger than what can be taken back: attended to beside the ring, also by layers that use another one's cache
    arch, options = CASES[name]
    check_f32(run_mixed(bench, bench.model(arch, **options), 11, 4, *F32, "-ub", 200))


@pytest.mark.parametrize("name, sinks", [*((name, 0) for name in ARCHS), *((name, 4) for name in CASES)])
def test_f16_cache_with_flash_attention(bench, name, sinks):
    arch, options = CASES[name]
    found = run_mixed(bench, bench.model(arch, **all_experts(arch, options)), 23 + sinks, sinks, *F16)
    check_rounded(found)
    assert found["same_top"] == found["n"]


# K and V alike of f16, q8_0 and q4_0, and q4_0 values beside q8_0 keys
TYPED = (*every_type((48, "full"), ("f16", "q8_0", "q4_0")), "48:q8_0/q4_0", "full:q8_0/q4_0")


@pytest.mark.parametrize("name, sinks", [*((name, 0) for name in ARCHS), *((name, 4) for name in CASES)])
def test_types_of_the_heads_own(bench, name, sinks):
    """From a policy file. What 4 bits round is rounded by the reference too, but not the query."""
    arch, options = CASES[name]
    model = bench.model(arch, **all_experts(arch, options))
    policy = bench.typed(model, 31 + sinks, TYPED, sinks)
    found = bench.run("run", model, "-p", policy, "-fa", "on", *LENGTH)
    used = {entry for row in json.loads(policy.read_text())["operating_points"][0]["entries"] for entry in row}
    assert found["groups"] == len(used) >= 2
    check_rounded(found, 2.5e-4)


@pytest.mark.parametrize("name", ARCHS)
def test_one_key_too_many_is_noticed(bench, name):
    # a reference whose windows are longer by one position is far beyond both bars
    arch, options, _ = ARCHS[name]
    model = bench.model(arch, **all_experts(arch, options))
    assert run_mixed(bench, model, 23, 0, *F32, "--window-error", 1)["max_abs"] > 0.05
    assert run_mixed(bench, model, 23, 0, *F16, "--window-error", 1)["max_kl"] > 1e-4


#
# what cannot have windows
#


@pytest.mark.parametrize("arch", ["gemma3", "gemma4"])
def test_tokens_of_an_image_see_each_other_where_the_model_says(bench, arch):
    """In gemma3 in every layer, in gemma4 in those with a sliding window alone."""
    model = bench.model(arch)
    args = ("-p", bench.base(model, window=130), "-c", CONTEXT, "-ub", 48, "-n", 40)
    found = bench.run("image", model, *args)
    assert found["n"] == 94
    assert found["max_abs"] <= 1e-4


@pytest.mark.parametrize("arch, reason", [("deepseek2", "MLA"), ("mamba", "no attention layers"), ("mpt", "ALiBi")])
def test_refused_at_load(bench, arch, reason):
    model = bench.model(arch)
    result, policy = bench.make(model)
    if result.returncode == 0:
        assert arch == "mpt"  # has heads that a policy can name, but no context will take it
    else:
        assert result.returncode == 1
        assert f"architecture {arch} " in result.stderr
        assert reason in result.stderr
        assert not policy.exists()
        policy = bench.base(bench.model("llama"))

    errors = bench.run("run", model, "-p", policy, *LENGTH, code=1)
    assert f"architecture {arch} " in errors
    assert reason in errors
