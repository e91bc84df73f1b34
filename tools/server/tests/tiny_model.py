"""A tiny random model with a policy whose windows let go of most of a prompt, and prompts for it."""

import subprocess
from pathlib import Path

import tiny_gguf
from mixed_policy import mixed_policy
from server_process import ROOT, need_program

SHIPPED_POLICY = ROOT / "policies" / "smollm2-135m-instruct-8k.json"  # of the default model
WINDOWS = (16, 48, 130)
EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")  # with F32 weights: the order of additions hardly matters


def make_tiny(folder, arch="llama", context=4096, windows=WINDOWS, **options):
    """(model, policy) in the folder."""
    folder = Path(folder)
    model = folder / f"{arch}.gguf"
    tiny_gguf.make_model(model, arch, seed=2, **options)
    base = folder / "base.json"
    subprocess.run([need_program("llama-kv-policy"), "make", "uniform", "--window", str(windows[0]), "-c", str(context), "-m", model, "-o", base],
                   check=True, timeout=60)
    return model, mixed_policy(base, folder / "policy.json", windows, seed=1, sinks=4)


def words(seed, n):
    """Tokens of the tiny models' vocabulary."""
    state = seed
    out = []
    for _ in range(n):
        state = (state * 1103515245 + 12345) % 2**31
        out.append(4 + (state >> 8) % 250)
    return out
