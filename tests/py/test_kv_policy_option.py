"""--kv-policy in the tools: help, environment, dry run, clear refusals."""

import json
import os
import re
import subprocess

import pytest
import tiny_gguf

from headwisekv.core import ROOT

pytestmark = pytest.mark.bridge

TOOLS = ("llama-server", "llama-completion", "llama-cli", "llama-perplexity")


@pytest.fixture(scope="module")
def policy(program, model, tmp_path_factory):
    file = tmp_path_factory.mktemp("option") / "policy.json"
    subprocess.run([program("llama-kv-policy"), "make", "uniform", "--window", "512", "--sinks", "4", "-c", "8192", "-m", model, "-o", file],
                   check=True, timeout=60)
    return file


def run(*args, env=None, timeout=120):
    return subprocess.run([str(a) for a in args], capture_output=True, text=True, timeout=timeout, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})})


@pytest.mark.parametrize("tool", TOOLS)
def test_help_names_the_options(program, tool):
    text = run(program(tool), "--help").stdout
    for option in ("--kv-policy ", "--kv-policy-point", "--kv-policy-rollback", "--kv-policy-strict", "--kv-policy-allow-cpu", "--kv-policy-dry-run",
                   "LLAMA_ARG_KV_POLICY"):
        assert option in text


def test_dry_run_prints_the_plan(program, model, policy):
    args = (program("llama-server"), "-m", model, "-c", 8192, "-np", 1, "--kv-policy-dry-run")
    result = run(*args, "--kv-policy", policy)
    assert result.returncode == 0
    # 512 + 64 to take back; 90 heads of 256 bytes
    groups, memory = result.stdout.split("\n\n")  # what is in the second is tested in test_memory.py
    assert [line.split() for line in groups.splitlines()] == [
        ["window", "layers", "heads", "cells", "MiB", "device"],
        ["512", "30", "90", "576", f"{576 * 90 * 256 / 2**20:.2f}", "CPU"],
        ["total", "90", f"{576 * 90 * 256 / 2**20:.2f}"],
        ["plain", "180.00"],
        ["saved", "92.97%", f"{180 - 576 * 90 * 256 / 2**20:.2f}"],
    ]
    assert memory.splitlines()[0].split() == ["MiB", "weights", "KV", "compute", "total", "plain"]
    by_environment = run(*args, env={"LLAMA_ARG_KV_POLICY": str(policy)})
    assert by_environment.stdout == result.stdout
    assert run(*args).returncode == 1


def test_what_does_not_fit_is_one_clear_error(program, model, policy, tmp_path):
    args = (program("llama-server"), "-m", model, "-c", 1024, "--offline", "--kv-policy")
    other = json.loads(policy.read_text())
    other["model"]["architecture"] = "qwen35"
    other_file = tmp_path / "other.json"
    other_file.write_text(json.dumps(other))
    for file, message in [
        (tmp_path / "missing.json", "cannot open: No such file or directory"),
        (other_file, '$.model.architecture: found "qwen35", expected "llama" as the model has it'),
    ]:
        result = run(*args, file)
        assert result.returncode == 1
        assert message in result.stdout + result.stderr


REASONS = [
    (("--kv-policy-point", "nope"), 'found no operating point "nope", expected one of "uniform-512" or a number below 1'),
    (("--kv-policy-rollback", 1025), "found a rollback of 1025 positions, expected at most the context of a sequence, 1024"),
]


@pytest.mark.parametrize("dry", [(), ("--kv-policy-dry-run",)], ids=["load", "dry run"])
@pytest.mark.parametrize("options, reason", REASONS, ids=["point", "rollback"])
def test_what_the_policy_cannot_do_is_the_reason(program, model, policy, options, reason, dry):
    result = run_merged(program("llama-server"), "-m", model, "-c", 1024, "-np", 1, "--offline", "--kv-policy", policy, *options, *dry)
    assert result.returncode == 1
    check_last_line(result, f"KV policy {policy}: {reason}")


def run_merged(*args):
    """stdout and stderr in the order in which they are written."""
    return subprocess.run([str(a) for a in args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=120, stdin=subprocess.DEVNULL)


def check_last_line(result, reason):
    """The reason is the last line, and there only."""
    assert result.stdout.endswith(f" E {reason}\n"), result.stdout[-2000:]
    assert result.stdout.count(reason) == 1


@pytest.mark.parametrize("tool", TOOLS)
def test_the_reason_is_the_last_line(program, model, tool, tmp_path):
    file = tmp_path / "policy.json"
    file.write_text("[]\n")
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 30)
    more = {"llama-perplexity": ("-f", text), "llama-completion": ("-p", "Hi", "-n", 2)}.get(tool, ())
    result = run_merged(program(tool), "-m", model, "-c", 512, "--offline", "--kv-policy", file, *more)
    assert result.returncode == 1
    check_last_line(result, f"KV policy {file}: $: found an array, expected an object")


def test_a_locale_with_a_decimal_comma_changes_nothing(program, model):
    """llama-completion takes the user's locale, with which numbers of a policy could not be read."""
    tool = program("llama-completion")
    locales = tool.parent.parent / "tests" / "locale"
    if not (locales / "de_DE.UTF-8").exists():
        pytest.skip("no locale de_DE.UTF-8 was made: localedef or Debian's package locales is missing")
    args = (tool, "-m", model, "-p", "The capital of France is", "-n", 4, "-c", 512, "-t", 1, "--temp", 0, "-no-cnv", "--offline",
            "--kv-policy", ROOT / "policies" / "smollm2-135m-instruct-8k.json")
    plain = run(*args)
    german = run(*args, env={"LOCPATH": str(locales), "LC_ALL": "de_DE.UTF-8"})
    assert plain.returncode == german.returncode == 0, german.stderr[-2000:]
    assert "MiB, V" in german.stderr and "," in re.search(r"K +([\d.,]+) MiB", german.stderr)[1]  # the locale is in use
    assert german.stdout == plain.stdout


@pytest.mark.parametrize("slots, line", [((), True), (("-np", 3, "--kv-unified"), True), (("-np", 1), False), (("-np", 4), False)], ids=str)
def test_slots_that_share_the_cache_say_what_they_cost(program, model, policy, slots, line):
    result = run(program("llama-server"), "-m", model, "-c", 8192, *slots, "--kv-policy", policy, "--kv-policy-dry-run")
    assert result.returncode == 0
    last = result.stdout.split("\n\n")[0].splitlines()[-1]
    if line:
        n = slots[1] if slots else 4  # llama-server's own choice
        mib = 90 * 256 / 2**20  # a cell of all heads
        assert last == f"{n} slots share the cache: {n * 576 * mib:.2f} MiB instead of {576 * mib:.2f} MiB with one (-np 1)"
    else:
        assert last.split()[0] == "saved"


def test_bench_compares_policies(program, tmp_path):
    model = tmp_path / "model.gguf"
    tiny_gguf.make_model(model, "llama", seed=1)
    policy = tmp_path / "policy.json"
    run(program("llama-kv-policy"), "make", "uniform", "--window", 64, "-c", 1024, "-m", model, "-o", policy)
    result = run(program("llama-bench"), "-m", model, "-kvp", f"none,{policy}", "-p", 0, "-n", 2, "-d", 300, "-ub", 64, "-t", 1, "-r", 1,
                 "-fa", "on", "-o", "json", timeout=300)
    assert result.returncode == 0, result.stderr
    plain, windowed = json.loads(result.stdout)
    assert [plain["kv_policy"], windowed["kv_policy"]] == ["none", str(policy)]
    # 302 tokens are 512 cells; the window takes 64 + 64 to take back
    assert plain["kv_mib"] == pytest.approx(512 * 8 * 256 / 2**20)
    assert windowed["kv_mib"] == pytest.approx(128 * 8 * 256 / 2**20)


def test_perplexity_takes_it(program, model, policy, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 30)
    result = run(program("llama-perplexity"), "-m", model, "-f", text, "-c", 128, "-t", 1, "--kv-policy", policy, timeout=300)
    assert result.returncode == 0
    assert "Final estimate" in result.stdout + result.stderr
