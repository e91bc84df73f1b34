#!/usr/bin/env python3
"""Makes the policies of the speed bench for a model.

    scripts/bench/bench_policy.py bench -m model.gguf -o build/bench/bench.json

bench   a seeded mix of the windows 256, 1024, 4096 and full with 4 sinks that keeps half of the cache at 8192 tokens
full    every head keeps everything
split   a control: in each layer every KV head has a window of its own (context - 1, context - 2, ...), so that it is stored
        and computed alone, yet nothing is dropped as long as a run stays that far below the context
"""

import argparse
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FULL = "full"
KINDS = ("bench", "full", "split")
BENCH_CONTEXT = 8192
BENCH_WINDOWS = (4096, 1024, 256)
BENCH_SINKS = 4
BENCH_SHARE = 0.5
BENCH_TOLERANCE = 0.01


class Failure(Exception):
    """One line for people."""


def deal(n_heads, seed):
    """The windows of the bench policy, a row for each layer. As many full heads as bring the mean closest to the share, the others
    evenly, and all of it shuffled."""
    n_unit = sum(n_heads)

    def deck(n_full):
        n_rest = n_unit - n_full
        return [FULL] * n_full + (list(BENCH_WINDOWS) * (n_rest // len(BENCH_WINDOWS) + 1))[:n_rest]

    def distance(n_full):
        return abs(sum(kept(window, BENCH_CONTEXT) for window in deck(n_full)) / (n_unit * BENCH_CONTEXT) - BENCH_SHARE)

    cards = deck(min(range(n_unit + 1), key=distance))
    random.Random(seed).shuffle(cards)
    cards = iter(cards)
    return [[next(cards) for _ in range(n)] for n in n_heads]


def kept(window, n):
    return n if window == FULL else min(window, n)


def kv_bytes(layers, rows, n):
    """Bytes of K and V in F16 that a token at position n has to read."""
    return sum(2 * (layer["head_dim_k"] + layer["head_dim_v"]) * sum(kept(window, n) for window in row)
               for layer, row in zip(layers, rows, strict=True))


def run_kv_policy(program, *args):
    done = subprocess.run([str(program), *map(str, args)], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Failure((done.stderr.strip().splitlines() or [f"{program} ended with code {done.returncode}"])[-1])
    return done.stdout


def windows_of(kind, layers, context, seed):
    n_heads = [layer["n_head_kv"] for layer in layers]
    if kind == "bench":
        return deal(n_heads, seed)
    if kind == "full":
        return [[FULL] * n for n in n_heads]
    return [[context - 1 - ih for ih in range(n)] for n in n_heads]


def make(kind, model, out, context=BENCH_CONTEXT, seed=1, program=ROOT / "build" / "bin" / "llama-kv-policy"):
    """Writes the policy and returns it. The model's geometry comes from llama-kv-policy, which also checks the result."""
    if kind == "bench":
        context = BENCH_CONTEXT
    policy = json.loads(run_kv_policy(program, "make", "uniform", "--window", 256, "-c", context, "-m", model, "-o", "-"))
    layers = policy["model"]["layers"]
    rows = windows_of(kind, layers, context, seed)
    n_bytes = kv_bytes(layers, rows, context)
    share = n_bytes / kv_bytes(layers, windows_of("full", layers, context, seed), context)
    finite = {window for row in rows for window in row if window != FULL}
    policy["codebook"] = [*sorted(finite), FULL]
    policy["sinks"] = BENCH_SINKS if kind == "bench" else 0
    policy["operating_points"] = [{
        "name": kind, "method": f"speed bench, seed {seed}", "windows": rows, "retention": share, "bytes": n_bytes,
        "artifact_id": hashlib.sha256(json.dumps(["speed bench", policy["model"], context, rows, policy["sinks"]]).encode()).hexdigest()}]
    policy["selected"] = kind
    if kind == "bench" and abs(share - BENCH_SHARE) > BENCH_TOLERANCE:
        print(f"bench_policy.py: the policy keeps {100 * share:.1f}%, expected 50 +- 1%: too few heads to mix", file=sys.stderr)
    temp = Path(f"{out}.tmp")
    temp.write_text(json.dumps(policy) + "\n")
    run_kv_policy(program, "check", temp, "-m", model)
    os.replace(temp, out)
    return policy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("-m", "--model", required=True, metavar="FILE")
    parser.add_argument("-o", "--output", required=True, metavar="FILE")
    parser.add_argument("-c", "--context", type=int, default=BENCH_CONTEXT, help="context of full and split (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="(default: %(default)s)")
    args = parser.parse_args()
    try:
        policy = make(args.kind, args.model, args.output, args.context, args.seed)
    except (Failure, OSError) as error:
        print(f"bench_policy.py: {error}", file=sys.stderr)
        return 1
    print(f"{args.output}: {100 * policy['operating_points'][0]['retention']:.2f}% kept at {policy['context']} tokens")
    return 0


if __name__ == "__main__":
    sys.exit(main())
