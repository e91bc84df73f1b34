"""The weights of a model in F32, with which KL divergences are measured.

With quantised weights activations are rounded to 8 bits, and another size of a batch alone rounds others: on the default model that is a KL of
0.0034, more than what is to be measured (docs/evaluation.md).
"""

import os
import re
from pathlib import Path

from . import programs
from .core import Failure, say, sha256_file
from .fetch import cache_dir

MIB_MAX = 8192  # larger ones don't fit beside the rest into what people have


def sizes_mib(quantize, model):
    """Of the weights as they are and in F32, by llama-quantize's own sums."""
    out = programs.run_both(quantize, "--allow-requantize", "--dry-run", model, "F32")
    found = [re.search(rf"{name} size *= *([\d.]+) MiB", out) for name in ("model", "quant")]
    if not all(found):
        raise Failure("llama-quantize --dry-run gave no 'quant size = ... MiB'")
    return [float(match[1]) for match in found]


def f32_weights(folder, model):
    """The model file with F32 weights, kept in the per-user cache; None where they would be too large. `folder` has the programs."""
    quantize = Path(folder) / "llama-quantize"
    now, mib = sizes_mib(quantize, model)
    if now == mib:
        return Path(model)
    if mib > MIB_MAX:
        say(f"the weights would take {mib / 1024:.1f} GiB in F32, more than {MIB_MAX // 1024}: KL is measured with those of the file, and has rounding in it")
        return None
    out = cache_dir() / f"{Path(model).stem}-{sha256_file(model)[:12]}-f32.gguf"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        say(f"making {out} ({mib:.0f} MiB): KL is measured with F32 weights")
        part = out.with_name(f"{out.name}.{os.getpid()}.part")
        try:
            programs.run(quantize, "--allow-requantize", model, part, "F32")
            os.replace(part, out)
        finally:
            part.unlink(missing_ok=True)
    return out
