#!/usr/bin/env python3
"""Gate 0: without a policy our build and a build of the pristine package give the same bytes.

usage: compare.py PATCHED-GATE0 PRISTINE-GATE0 [--before TEXT]

--before gives only the pristine program another text before its prompts: then the comparison must fail. One mode and one
prompt are enough for that.
Exit codes: 0 equal, 1 not equal or not comparable, 77 no model.
"""

import argparse
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
SYMBOL = b"hwkv_version_line"
N_MODES = 3
N_PROMPTS = 5
N_STEPS = 64


def fail(text, code=1):
    print(f"gate0: {text}", file=sys.stderr)
    sys.exit(code)


def find_model():
    if os.environ.get("HWKV_TEST_MODEL"):
        return os.environ["HWKV_TEST_MODEL"]
    done = subprocess.run([sys.executable, ROOT / "scripts" / "fetch", ROOT / "models" / "PIN", "--offline"],
                          capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"skipped, no model: {done.stderr.strip()}", 1 if os.environ.get("HWKV_TEST_STRICT") else 77)
    return done.stdout.strip()


def libraries(program):
    """The llama and ggml libraries that the program really loads."""
    out = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    found = [line.split("=>")[1].split("(")[0].strip() for line in out.splitlines() if "=>" in line and ("libllama" in line or "libggml" in line)]
    if not any("libllama" in path for path in found) or not all(os.path.exists(path) for path in found):
        fail(f"{program} loads {found}, expected libllama and libggml")
    return [os.path.realpath(path) for path in found]


def check_libraries(patched, pristine):
    ours, theirs = libraries(patched), libraries(pristine)
    shared = set(ours) & set(theirs)
    if shared:
        fail(f"both programs load {sorted(shared)[0]}, expected libraries of their own")
    for program, paths, expected in ((patched, ours, True), (pristine, theirs, False)):
        llama = next(path for path in paths if "libllama" in path)
        if (SYMBOL in Path(llama).read_bytes()) != expected:
            fail(f"{llama} of {program} has {'no' if expected else 'our'} {SYMBOL.decode()}")


def n_lines(n_modes, n_prompts):
    return n_modes * n_prompts * (1 + N_STEPS) + 1  # a title and the steps of each, end


def run(program, model, n_modes, n_prompts, before=""):
    # preloads or library paths of the caller would let one program load the other's libraries
    env = {k: v for k, v in os.environ.items() if k not in ("LD_LIBRARY_PATH", "LD_PRELOAD")}
    env["OMP_NUM_THREADS"] = "1"
    env["GGML_HWKV_FATTN"] = "0"  # our attention kernel takes its sums in another order
    done = subprocess.run([program, model, str(n_modes), str(n_prompts), before], stdout=subprocess.PIPE, env=env)
    if done.returncode != 0:
        fail(f"{program} ended with {done.returncode}")
    lines = done.stdout.split(b"\n")[:-1]
    expected = n_lines(n_modes, n_prompts)
    if len(lines) != expected or lines[-1] != b"end":
        fail(f"{program} printed {len(lines)} lines, expected {expected}")
    return done.stdout


def main():
    parser = argparse.ArgumentParser(description="Compare greedy output and logits of the patched and the pristine build.")
    parser.add_argument("patched")
    parser.add_argument("pristine")
    parser.add_argument("--before", metavar="TEXT", help="another text for the pristine program only")
    args = parser.parse_args()
    for program in (args.patched, args.pristine):
        if not os.path.exists(program):
            fail(f"{program} is not built")
    model = find_model()
    check_libraries(args.patched, args.pristine)
    n_modes, n_prompts = (1, 1) if args.before else (N_MODES, N_PROMPTS)
    ours = run(args.patched, model, n_modes, n_prompts)
    theirs = run(args.pristine, model, n_modes, n_prompts, args.before or "")
    if ours != theirs:
        title = ""
        for a, b in zip(ours.split(b"\n"), theirs.split(b"\n")):
            title = a.decode() if a.startswith(b"mode") else title
            if a != b:
                fail(f"outputs differ in {title}: found {a.decode()}, the pristine package gives {b.decode()}")
    print(f"gate0: {n_lines(n_modes, n_prompts)} lines equal, {len(ours)} bytes")


if __name__ == "__main__":
    main()
