"""Window groups on every architecture and head geometry: the same logits as a cold run with a mask per head.

bridge-test runs a tiny model with a policy and compares every logit with a reference that keeps the full cache, F32
and without flash attention, and masks each head's scores. ggml has noise of its own there: ubatches of another size
take other matrix kernels, and GELU goes through a table of F16 values. So the bound is the larger of a fixed one and
three times what a policy with all heads full, which is llama.cpp's own cache, shows for the same model.
"""

import json
import subprocess
from dataclasses import replace

import pytest
import tiny_gguf
from mixed_policy import full_policy, mixed_policy

pytestmark = pytest.mark.bridge

WINDOWS = (16, 48, 130)
CONTEXT = 512
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


class Bench:
    """Models, policies and the noise of the plain cache, each made once."""

    def __init__(self, folder, program):
        self.folder = folder
        self.bridge_test = program("bridge-test")
        self.kv_policy = program("llama-kv-policy")
        self.noises = {}

    def model(self, arch, options):
        name = "-".join([arch, *(f"{key}_{value}" for key, value in sorted(options.items()))])
        file = self.folder / f"{name}.gguf"
        if not file.exists():
            tiny_gguf.make_model(file, arch, seed=1, **options)
        return file

    def make(self, model):
        """llama-kv-policy make for a model: the result and the policy's path."""
        out = model.with_suffix(".json")
        return self.call(self.kv_policy, "make", "uniform", "--window", 128, "-c", CONTEXT, "-m", model, "-o", out), out

    def base(self, model):
        out = model.with_suffix(".json")
        if not out.exists():
            result, _ = self.make(model)
            assert result.returncode == 0, result.stderr
        return out

    def run(self, model, policy, *args):
        result = self.call(self.bridge_test, "run", "-m", model, "-p", policy, *LENGTH, *args)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout)
        assert found["n"] == 340
        return found

    def noise(self, model, *args):
        key = (model, args)
        if key not in self.noises:
            self.noises[key] = self.run(model, full_policy(self.base(model), model.with_suffix(".full.json")), *args)
            assert self.noises[key]["groups"] == 0
        return self.noises[key]

    def mixed(self, model, seed, sinks, *args):
        policy = mixed_policy(self.base(model), model.with_suffix(".mixed.json"), WINDOWS, seed, sinks)
        found = self.run(model, policy, *args)
        assert found["groups"] == len(WINDOWS) + 1
        return found

    @staticmethod
    def call(*args):
        return subprocess.run([str(arg) for arg in args], capture_output=True, text=True, timeout=60)


@pytest.fixture(scope="module")
def bench(program, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("archs"), program)


def shared(arch, options):
    # the reference must mask gemma4's last layer like the one whose cache it reads
    c = replace(tiny_gguf.DEFAULTS[arch], **options)
    return ("--shared", f"{c.n_layer - 1}:{c.n_layer - 1 - c.n_shared}") if arch == "gemma4" and c.n_shared else ()


@pytest.mark.parametrize("name", ARCHS)
def test_layers_with_windows(bench, name):
    arch, options, layers = ARCHS[name]
    found = json.loads(bench.base(bench.model(arch, options)).read_text())["model"]
    assert found["architecture"] == arch
    assert [layer["layer"] for layer in found["layers"]] == layers
    assert tiny_gguf.full_layers(arch, replace(tiny_gguf.DEFAULTS[arch], **options)) == layers


@pytest.mark.parametrize("sinks", (0, 4))
@pytest.mark.parametrize("name", CASES)
def test_f32_logits_equal_the_masked_reference(bench, name, sinks):
    arch, options = CASES[name]
    model = bench.model(arch, options)
    args = (*F32, *shared(arch, options))
    noise = bench.noise(model, *args)
    assert noise["max_abs"] <= 2e-3  # else the bound below would mean nothing
    found = bench.mixed(model, 11 + sinks, sinks, *args)
    assert found["max_abs"] <= max(1e-3, 3 * noise["max_abs"]), (found, noise)
    assert found["same_top"] == found["n"]


@pytest.mark.parametrize("name, sinks", [*((name, 0) for name in ARCHS), *((name, 4) for name in CASES)])
def test_f16_cache_with_flash_attention(bench, name, sinks):
    arch, options = CASES[name]
    if tiny_gguf.DEFAULTS[arch].n_expert:
        # F16 rounding moves a token to another expert now and then, which is a jump: let all of them vote
        options = {**options, "n_expert_used": tiny_gguf.DEFAULTS[arch].n_expert}
    model = bench.model(arch, options)
    args = (*F16, *shared(arch, options))
    noise = bench.noise(model, *args)
    assert noise["max_kl"] <= 1e-4  # as above
    found = bench.mixed(model, 23 + sinks, sinks, *args)
    assert found["max_kl"] <= max(1e-5, 3 * noise["max_kl"]), (found, noise)
    assert found["same_top"] == found["n"]


def test_a_wrong_mask_is_noticed(bench):
    # without --shared the reference leaves one layer of gemma4 unmasked
    model = bench.model("gemma4", {})
    assert bench.mixed(model, 11, 0, *F32)["max_abs"] > 0.1
    assert bench.mixed(model, 11, 0, *F16)["max_kl"] > 1e-3


#
# what cannot have windows
#


@pytest.mark.parametrize("arch, reason", [("deepseek2", "MLA"), ("mamba", "no attention layers"), ("mpt", "ALiBi")])
def test_refused_at_load(bench, arch, reason):
    model = bench.model(arch, {})
    result, policy = bench.make(model)
    if result.returncode == 0:
        assert arch == "mpt"  # has heads that a policy can name, but no context will take it
    else:
        assert result.returncode == 1
        assert f"architecture {arch} " in result.stderr
        assert reason in result.stderr
        assert not policy.exists()
        policy = bench.base(bench.model("llama", {}))

    result = bench.call(bench.bridge_test, "run", "-m", model, "-p", policy, *LENGTH)
    assert result.returncode == 1, result.stderr
    assert f"architecture {arch} " in result.stderr
    assert reason in result.stderr
    assert result.stdout == ""
