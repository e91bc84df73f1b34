"""A tiny random model with a policy whose windows evict most of a prompt."""

from pathlib import Path

import tiny_gguf
from kv_policy_server import make_policy
from server_process import ROOT

SHIPPED_POLICY = ROOT / "policies" / "smollm2-135m-instruct-8k.json"  # of the default model
WINDOWS = (16, 48, 130)


def make_tiny(folder, arch="llama", context=4096, windows=WINDOWS, **options):
    """(model, policy) in the folder."""
    model = Path(folder) / f"{arch}.gguf"
    tiny_gguf.make_model(model, arch, seed=2, **options)
    return model, make_policy(Path(folder), model, windows, context)
