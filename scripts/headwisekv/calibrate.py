"""Makes the shipped policies of the default model again, as `make calibrate` does.

Takes a few hours on two cores. Ctrl-C loses nothing: the next call goes on. Settings come from the environment:
  DATA (../shared/data)  the folder with calibration/wiki.valid.raw and books/
  THREADS (all cores)
"""

import os
from pathlib import Path

from . import process
from .core import ROOT, Failure, say, sha256_file

TOOL = "build/bin/llama-seqcalib"

# file in DATA, sha256
TEXT = ("calibration/wiki.valid.raw", "4cd0f6876d07a413aa911261ff6d363c72d757d47f0fdd6015702014c89cb9c7")
HELD_OUT = [
    ("books/sherlock-holmes.txt", "974510f0fd69b2551f9a408b0af631445f86c11dd366bbeb898cf5353ac22287"),
    ("books/pride-and-prejudice.txt", "531a512315745ce15fb83455e6c2fcfc2287bf860c49e38a17f4366b5d3d58f7"),
]

COMMON = ["-c", "8192", "--n-seq", "4", "--windows", "256,512,1024,2048,4096"]

# file, options, checked on held-out text: what make run serves; the paper's setting without sinks; and what one window a layer can
# do, for the evaluation to compare with
POLICIES = [
    ("policies/smollm2-135m-instruct-8k.json", ["--sinks", "4", "--tau", "0.98,0.99,0.995,0.998", "--budget", "0.6"], True),
    ("policies/smollm2-135m-instruct-8k-sinks0.json", ["--sinks", "0", "--tau", "0.995"], True),
    ("policies/smollm2-135m-instruct-8k-layers.json",
     ["--sinks", "4", "--per-layer", "--tau", "0.98,0.985,0.99,0.995,0.998"], False),
]


def data_file(folder, name, sha256):
    path = folder / name
    if not path.is_file():
        raise Failure(f"DATA is '{folder}', but there is no {name} in it (WikiText-2 raw and books in the public domain; expected sha256 {sha256})")
    found = sha256_file(path)
    if found != sha256:
        raise Failure(f"{path}: found sha256 {found}, expected {sha256}")
    return str(path)


def run_tool(command):
    code, _ = process.run(command)
    if code != 0:
        raise SystemExit(code)  # it has said itself what went wrong


def run():
    os.chdir(ROOT)
    folder = Path(os.environ.get("DATA") or "../shared/data")
    text = data_file(folder, *TEXT)
    held_out = ["--holdout", "1", *(argument for name, sha256 in HELD_OUT for argument in ("--holdout-file", data_file(folder, name, sha256)))]
    threads = ["-t", os.environ["THREADS"]] if os.environ.get("THREADS") else []

    process.setup("packages")
    process.setup("build", "cpu", "llama-seqcalib")
    model = process.setup("model")

    for policy, options, checked in POLICIES:
        say(f"calibrating {policy}")
        work = f"build/{Path(policy).name}.work"
        run_tool([TOOL, "-m", model, "-f", text, *COMMON, *(held_out if checked else []), *options, *threads, "-o", policy, "--force", "--work", work, "--resume"])

    process.setup("venv")
    run_tool([".venv/bin/python", "scripts/head-map", POLICIES[0][0], "--all", "-o", "docs/head-map"])
    Path("docs/head-map.svg").unlink()  # the picture in the README is enough
    return 0


def main():
    return process.exit_code(run)
