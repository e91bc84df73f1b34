"""Makes policies of the default model, as `make calibrate` does: the shipped ones again, or others of another text or context.

The shipped ones take a few hours on two cores. Ctrl-C loses nothing: the next call goes on. Settings come from the environment:
  TEXT     a text of your own; one part calibrates, two others are held out
  DATA     the folder with calibration/wiki.valid.raw and books/ (../shared/data; without one, prose from Debian's packages)
  CTX      context in tokens (8192); 512 takes some minutes
  OUT      folder for the policies (policies for the shipped ones, else build/policies)
  THREADS  (all cores)
"""

import json
import os
import re
from pathlib import Path

from . import process, texts
from .core import ROOT, Failure, say, sha256_file, write_whole

TOOL = "build/bin/llama-seqcalib"
SHIPPED_CTX = 8192
OVER_BUDGET = 3  # exit code of a calibration without a point within the budget; the file has them all

# sha256 of the data folder's files, without which the shipped policies can't be made again
PINNED = {
    texts.CALIBRATION: "4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7",
    texts.HELD_OUT[0]: "974510f0fd69b2551f9a408b0af631445f86c11dd366bbeb898cf5353ac22287",
    texts.HELD_OUT[1]: "531a512315745ce15fb83455e6c2fcfc2287bf860c49e38a17f4366b5d3d58f7",
}

# end of the name, options, checked on held-out text: what make run serves; the paper's setting without sinks; and what one window a
# layer can do, for the evaluation to compare with
POLICIES = [
    ("", ["--sinks", "4", "--tau", "0.98,0.99,0.995,0.998", "--budget", "0.6"], True),
    ("-sinks0", ["--sinks", "0", "--tau", "0.995"], True),
    ("-layers", ["--sinks", "4", "--per-layer", "--tau", "0.98,0.985,0.99,0.995,0.998"], False),
]


def check_folder(folder):
    for name, sha256 in PINNED.items():
        path = folder / name
        if not path.is_file():
            raise Failure(f"DATA is '{folder}', but there is no {name} in it (WikiText-2 raw and books in the public domain; expected sha256 {sha256})")
        found = sha256_file(path)
        if found != sha256:
            raise Failure(f"{path}: found sha256 {found}, expected {sha256}")


def read_context():
    text = os.environ.get("CTX") or str(SHIPPED_CTX)
    if not re.fullmatch(r"[1-9][0-9]{2,6}", text) or int(text) < 256 or int(text) % 32:
        raise Failure(f"CTX is '{text}', expected a multiple of 32 tokens from 256 on, such as {SHIPPED_CTX}")
    return int(text)


def policy_name(n_ctx, suffix):
    size = f"{n_ctx // 1024}k" if n_ctx % 1024 == 0 else n_ctx
    return f"smollm2-135m-instruct-{size}{suffix}.json"


def run_tool(command, *fine):
    """`fine` are exit codes that are no failure either."""
    code, _ = process.run(command)
    if code != 0 and code not in fine:
        raise SystemExit(code)  # it has said itself what went wrong


def tool_options(text, n_ctx):
    """What all policies have: windows are 1/32 to 1/2 of the context, in the types of the cache."""
    windows = ",".join(str(n_ctx // part) for part in (32, 16, 8, 4, 2))
    threads = ["-t", os.environ["THREADS"]] if os.environ.get("THREADS") else []
    return ["-f", str(text.calibration), "-c", str(n_ctx), "--n-seq", "4", "--windows", windows, "--types", "cache", *threads]


def draw_head_map(policy, target):
    process.setup("venv")
    run_tool([".venv/bin/python", "scripts/head-map", str(policy), "--all", "-o", f"{target}.png"])


def run():
    os.chdir(ROOT)
    n_ctx = read_context()
    text = texts.choose()
    if text.folder:
        check_folder(text.folder)
    shipped = text.folder is not None and n_ctx == SHIPPED_CTX
    out = Path(os.environ.get("OUT") or ("policies" if shipped else "build/policies"))

    process.setup("packages")
    process.setup("build", "cpu", "llama-seqcalib")
    model = process.setup("model")

    out.mkdir(parents=True, exist_ok=True)
    held_out = ["--holdout", "1", *(argument for path in text.held_out for argument in ("--holdout-file", str(path)))]
    mark = "" if text.folder else f"-{text.sha256[:12]}"  # a run of another text must not go on with this one's work
    for suffix, options, checked in POLICIES:
        policy = out / policy_name(n_ctx, suffix)
        say(f"calibrating {policy}")
        run_tool([TOOL, "-m", model, *tool_options(text, n_ctx), *(held_out if checked else []), *options, "-o", str(policy), "--force",
                  "--work", f"build/{policy.name}{mark}.work", "--resume"], *(() if shipped else (OVER_BUDGET,)))
    if out == Path("policies"):
        draw_head_map(out / policy_name(n_ctx, ""), "docs/head-map")
        return 0
    write_whole(out / "texts.json", json.dumps(text.record(), indent=1) + "\n")
    draw_head_map(out / policy_name(n_ctx, ""), out / "head-map")
    say(f"written to {out}; serve the first with: make run POLICY={out / policy_name(n_ctx, '')} CTX={n_ctx}")
    return 0


def main():
    return process.exit_code(run)
