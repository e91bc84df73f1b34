"""The offline programs of this tree: what a policy takes, simple policies, KL divergence."""

import json
import math
import re
import subprocess

from .core import Failure
from .server import check_program, ending_with_us

# llama-perplexity writes from a thread and does not wait for it at its end: at times, on a busy machine, the last lines are missing
LAST_LINE = "Same top p:"
TRIES = 8

# of llama-perplexity's last words: name, pattern
KL_FIGURES = {
    "perplexity": r"Mean PPL\(Q\) *: *([\d.eE+-]+|-?nan|inf)",
    "perplexity_full": r"Mean PPL\(base\) *: *([\d.eE+-]+|-?nan|inf)",
    "kl": r"Mean +KLD: *([\d.eE+-]+|-?nan|inf)",
    "kl_99": r"99\.0% +KLD: *([\d.eE+-]+|-?nan|inf)",
    "same_top": r"Same top p: *([\d.eE+-]+|-?nan|inf)",
}


def run(program, *arguments):
    """stdout of a program that ended well."""
    check_program(program)
    done = subprocess.run(ending_with_us([program, *arguments]), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["it said nothing"]
        raise Failure(f"{program.name} ended with code {done.returncode}: {last[0].strip()[:300]}")
    return done.stdout


def check(programs, policy, model, n_ctx, point=None, cache="f16"):
    """What the runtime will allocate: bytes, plain_bytes, groups, n_pad, n_rollback, policy_sha256."""
    out = run(programs / "llama-kv-policy", "check", policy, "-m", model, "-c", n_ctx, "-ctk", cache, "-ctv", cache, "--json",
              *(["--point", point] if point else []))
    return json.loads(out)


def make(programs, method, out, *arguments):
    run(programs / "llama-kv-policy", "make", method, "-o", out, *arguments)


def read_figures(text):
    """What llama-perplexity says of one comparison with the stored logits."""
    figures = {}
    for name, pattern in KL_FIGURES.items():
        match = re.search(pattern, text)
        value = float(match[1]) if match else math.nan
        if not math.isfinite(value):
            raise Failure(f"llama-perplexity gave no {name}, expected a line such as {pattern.split('*')[0].strip()!r}")
        figures[name] = value
    figures["same_top"] /= 100
    return figures


def perplexity_arguments(model, n_ctx, threads):
    return ["-m", model, "-c", n_ctx, "-b", 2048, "-ub", 512, "--chunks", 1, "-t", threads, "-fa", "on", "--fit", "off", "--no-warmup", "--offline"]


def store_logits(programs, model, text, n_ctx, threads, out):
    """The full F16 cache's log-probabilities of the second half of the text's first n_ctx tokens."""
    part = out.with_name(out.name + ".part")
    run(programs / "llama-perplexity", *perplexity_arguments(model, n_ctx, threads), "-f", text, "--save-all-logits", part)
    part.replace(out)


def compare_logits(programs, model, base, n_ctx, threads, arguments):
    """KL divergence and so on of a cache from what store_logits() has kept."""
    command = [*perplexity_arguments(model, n_ctx, threads), "--kl-divergence", "--kl-divergence-base", base, *arguments]
    for attempt in range(1, TRIES + 1):
        text = run(programs / "llama-perplexity", *command)
        if LAST_LINE in text or attempt == TRIES:
            return read_figures(text)
