"""KL divergence from the full cache, by llama-perplexity."""

import math
import re

from ..core import Failure
from ..programs import run

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
