"""Programs of this tree that run to their end, and what llama-kv-policy says."""

import json
import shutil
import subprocess
from pathlib import Path

from .core import Failure


def check_program(path):
    if not Path(path).is_file():
        raise Failure(f"there is no file {path}; make build makes the programs")


def ending_with_us(command):
    """The command as one that ends when this process does, even when that is killed."""
    return (["setpriv", "--pdeathsig", "TERM"] if shutil.which("setpriv") else []) + list(map(str, command))


def run(program, *arguments):
    """stdout of a program that ended well."""
    return done_well(program, *arguments).stdout


def run_both(program, *arguments):
    """stdout and stderr of it."""
    done = done_well(program, *arguments)
    return done.stdout + done.stderr


def done_well(program, *arguments):
    check_program(program)
    done = subprocess.run(ending_with_us([program, *arguments]), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        last = [line for line in done.stderr.splitlines() if line.strip()][-1:] or ["it said nothing"]
        raise Failure(f"{Path(program).name} ended with code {done.returncode}: {last[0].strip()[:300]}")
    return done


def check_policy(program, policy, model, n_ctx, point=None, cache="f16", **more):
    """What the runtime will allocate: bytes, bytes_plain, groups, n_pad, n_rollback, policy_sha256.

    Without a model by the policy's own geometry, which is quick. `cache` is for K and V, "q8_0/q4_0" where they differ, None for what the
    policy says. `more` are other options, such as n_pad.
    """
    type_k, _, type_v = (cache or "").partition("/")
    types = ["-ctk", type_k, "-ctv", type_v or type_k] if cache else []
    other = [word for name, value in more.items() for word in (f"--{name.removeprefix('n_')}", value)]
    out = run(program, "check", policy, *(["-m", model] if model else []), "-c", n_ctx, *types, *other, "--json", *(["--point", point] if point else []))
    return json.loads(out)


def policy_arguments(policy, point):
    """For any llama.cpp program."""
    if policy is None:
        return []
    return ["--kv-policy", policy, *(["--kv-policy-point", point] if point else [])]
