"""Tiny models, policies for them and bridge-test, which runs both and compares with a mask per head."""

import json
import subprocess

import tiny_gguf
from mixed_policy import full_policy, mixed_policy, typed_policy

WINDOWS = (16, 48, 130)
CONTEXT = 512
MEMORIES = ("llama", "gemma3", "qwen35")  # plain, with sliding windows, hybrid


def cache(type_k, type_v=None, flash_attn="on"):
    """Options of bridge-test."""
    return ("-fa", flash_attn, "-ctk", type_k, "-ctv", type_v or type_k)


class Bench:
    """Models and policies are made once."""

    def __init__(self, folder, program):
        self.folder = folder
        self.bridge_test = program("bridge-test")
        self.kv_policy = program("llama-kv-policy")

    def model(self, arch, **options):
        name = "-".join([arch, *(f"{key}_{value}" for key, value in sorted(options.items()))])
        file = self.folder / f"{name}.gguf"
        if not file.exists():
            tiny_gguf.make_model(file, arch, seed=1, **options)
        return file

    def make(self, model, window=64, context=CONTEXT):
        """llama-kv-policy make: its result and the policy's path."""
        out = self.folder / f"{model.stem}-{window}-{context}.json"
        return self.call(self.kv_policy, "make", "uniform", "--window", window, "-c", context, "-m", model, "-o", out), out

    def base(self, model, window=64, context=CONTEXT):
        """Every head has the same window; the other policies of a model are made from this one."""
        out = self.folder / f"{model.stem}-{window}-{context}.json"
        if not out.exists():
            result, _ = self.make(model, window, context)
            assert result.returncode == 0, result.stderr
        return out

    def full(self, model):
        return full_policy(self.base(model), self.folder / f"{model.stem}-full.json")

    def mixed(self, model, seed, sinks=4, windows=WINDOWS, context=CONTEXT):
        out = self.folder / f"{model.stem}-{seed}-{sinks}-{'_'.join(map(str, windows))}.json"
        return mixed_policy(self.base(model, context=context), out, windows, seed, sinks)

    def typed(self, model, seed, codebook, sinks=4, context=CONTEXT):
        """Entries with types, dealt to the heads."""
        name = "-".join(entry.replace(":", "_").replace("/", "+") for entry in codebook)
        return typed_policy(self.base(model, context=context), self.folder / f"{model.stem}-{seed}-{sinks}-{name}.json", codebook, seed, sinks)

    def run(self, command, model, *args, code=0, timeout=600):
        """The JSON line of bridge-test, or its errors where it must fail."""
        result = self.call(self.bridge_test, command, "-m", model, *args, timeout=timeout)
        assert result.returncode == code, result.stderr
        if code == 0:
            return json.loads(result.stdout)
        assert result.stdout == ""
        return result.stderr

    @staticmethod
    def call(*args, timeout=60):
        return subprocess.run([str(arg) for arg in args], capture_output=True, text=True, timeout=timeout)


def every_type(windows, types):
    """Entries: each window in each type."""
    return [f"{window}:{one}" for window in windows for one in types]


def check_f32(found):
    """The bar for F32 weights and an F32 cache without flash attention, which would round to F16."""
    assert found["n"] > 0
    assert found["max_abs"] <= 1e-3, found
    assert found["same_top"] == found["n"], found


def check_rounded(found, kl=1e-5):
    """The bar for caches that round: KL of the next token."""
    assert found["n"] > 0
    assert found["max_kl"] <= kl, found
