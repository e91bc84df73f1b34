"""Makes the policies of the speed bench for a model.

    scripts/bench policy bench -m model.gguf -o build/bench/bench.json

bench   a seeded mix of the windows 256, 1024, 4096 and full with 4 sinks that keeps half of the cache at 8192 tokens
full    every head keeps everything
split   a control: in each layer every KV head has a window of its own (context - 1, context - 2, ...), so that it is stored
        and computed alone, yet nothing is dropped as long as a run stays that far below the context
"""

import argparse
import hashlib
import json
import os
from pathlib import Path

from .. import policy as policies
from .. import programs
from ..core import ROOT, exit_code, say
from ..policy import FULL

KINDS = ("bench", "full", "split")
BENCH_CONTEXT = 8192
BENCH_WINDOWS = (256, 1024, 4096)
BENCH_SINKS = 4
BENCH_SHARE = 0.5
BENCH_TOLERANCE = 0.01


def deal_half(policy, codebook, seed):
    """As many full heads as bring the mean closest to the share, the others evenly, and all of it shuffled."""
    n_unit = sum(policies.heads(policy))
    finite = list(reversed(range(len(codebook) - 1)))

    def deck(n_full):
        n_rest = n_unit - n_full
        return [len(codebook) - 1] * n_full + (finite * (n_rest // len(finite) + 1))[:n_rest]

    def distance(n_full):
        return abs(sum(policies.kept(codebook[ie], BENCH_CONTEXT) for ie in deck(n_full)) / (n_unit * BENCH_CONTEXT) - BENCH_SHARE)

    return policies.deal(policy, deck(min(range(n_unit + 1), key=distance)), seed)


def codebook_and_entries(kind, policy, context, seed):
    if kind == "bench":
        codebook = [*BENCH_WINDOWS, FULL]
        return codebook, deal_half(policy, codebook, seed)
    if kind == "full":
        return [FULL], policies.uniform(policy, 0)
    most = max(policies.heads(policy))
    return [*range(context - most, context), FULL], [[most - 1 - ih for ih in range(n)] for n in policies.heads(policy)]


def make(kind, model, out, context=BENCH_CONTEXT, seed=1, program=ROOT / "build" / "bin" / "llama-kv-policy"):
    """Writes the policy and returns it. The model's geometry comes from llama-kv-policy, which also checks the result."""
    if kind == "bench":
        context = BENCH_CONTEXT
    base = json.loads(programs.run(program, "make", "uniform", "--window", 256, "-c", context, "-m", model, "-o", "-"))
    codebook, rows = codebook_and_entries(kind, base, context, seed)
    sinks = BENCH_SINKS if kind == "bench" else 0
    identity = ["speed bench", base["model"], context, policies.spelled(codebook, rows), sinks]
    policy = policies.with_point(base, codebook, rows, kind, f"speed bench, seed {seed}", sinks, hashlib.sha256(json.dumps(identity).encode()).hexdigest())
    share = policy["operating_points"][0]["retention"]
    if kind == "bench" and abs(share - BENCH_SHARE) > BENCH_TOLERANCE:
        say(f"the bench policy keeps {100 * share:.1f}%, expected 50 +- 1%: too few heads to mix")
    temp = Path(f"{out}.tmp")
    temp.write_text(json.dumps(policy) + "\n")
    programs.run(program, "check", temp, "-m", model)
    os.replace(temp, out)
    return policy


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/bench policy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("-m", "--model", required=True, metavar="FILE")
    parser.add_argument("-o", "--output", required=True, metavar="FILE")
    parser.add_argument("-c", "--context", type=int, default=BENCH_CONTEXT, help="context of full and split (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    options = parser.parse_args(arguments)

    def work():
        policy = make(options.kind, options.model, options.output, options.context, options.seed)
        print(f"{options.output}: {100 * policy['operating_points'][0]['retention']:.2f}% kept at {policy['context']} tokens")
        return 0

    return exit_code(work)
