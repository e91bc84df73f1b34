"""--kv-policy in the tools: help, environment, dry run, clear refusals."""

import json
import os
import re
import subprocess

import pytest
import tiny_gguf
from server_process import ServerProcess

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

#
# cache types: of the whole cache, or of the entries
#


@pytest.fixture(scope="module")
def typed(program, model, policy):
    """q8_0 for every head, written in the policy."""
    file = policy.parent / "typed.json"
    subprocess.run([program("llama-kv-policy"), "make", "retype", "--policy", policy, "--types", "q8_0", "-o", file], check=True, timeout=60)
    return file


def refused(option, file, entry="512:q8_0"):
    return (f"KV policy {file}: $.codebook: found {option} beside entries with types of their own such as {entry}, expected no types for the whole cache "
            "(llama-kv-policy make retype gives a policy other types)")


def short_run(tool, text):
    """Options for a run that ends by itself."""
    text.write_text("The quick brown fox jumps over the lazy dog. " * 30)
    return {"llama-perplexity": ("-f", text), "llama-completion": ("-p", "Hi", "-n", 2, "-no-cnv"), "llama-cli": ("-p", "Hi", "-n", 2, "-st"),
            "llama-server": ("--kv-policy-dry-run",)}[tool]


@pytest.mark.parametrize("args, env, option", [
    (("-ctk", "q8_0"), {}, "-ctk"),
    (("--cache-type-v", "f16"), {}, "-ctv"),  # the default too, if somebody asks for it
    ((), {"LLAMA_ARG_CACHE_TYPE_K": "f16"}, "-ctk"),
    ((), {"LLAMA_ARG_CACHE_TYPE_V": "q4_0"}, "-ctv"),
], ids=["k", "v", "environment k", "environment v"])
@pytest.mark.parametrize("tool", TOOLS)
def test_types_of_the_whole_cache_are_refused_beside_those_of_entries(program, model, typed, tool, args, env, option, tmp_path, monkeypatch):
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    more = tuple(word for word in short_run(tool, tmp_path / "text.txt") if word != "--kv-policy-dry-run")
    result = run_merged(program(tool), "-m", model, "-c", 512, "--offline", "--kv-policy", typed, *more, *args)
    assert result.returncode == 1
    check_last_line(result, refused(option, typed))


@pytest.mark.parametrize("tool", TOOLS)
def test_types_of_entries_are_used(program, model, typed, tool, tmp_path):
    result = run_merged(program(tool), "-m", model, "-c", 8192, "-np", 1, "-t", 1, "--offline", "--kv-policy", typed, *short_run(tool, tmp_path / "text.txt"))
    assert result.returncode == 0, result.stdout[-2000:]
    mib = 576 * 90 * 136 / 2**20  # 34 bytes for 32 elements
    if tool == "llama-server":
        assert ["512", "30", "90", "576", f"{mib:.2f}", "CPU", "q8_0"] in [line.split() for line in result.stdout.splitlines()]
    else:
        assert re.search(rf"KV window +512:q8_0: +30 layers, +90 heads, +576 cells, K +{mib / 2:.2f} MiB, V +{mib / 2:.2f} MiB", result.stdout) or tool == "llama-cli"
    assert "used with" not in result.stdout  # whatever the default is, it is not for these heads


def test_types_of_the_whole_cache_are_taken_under_windows_alone(program, model, policy):
    args = (program("llama-server"), "-m", model, "-c", 8192, "-np", 1, "--kv-policy-dry-run", "--kv-policy", policy)
    mib = 576 * 90 * 136 / 2**20
    for more, env in [(("-ctk", "q8_0", "-ctv", "q8_0"), {}), ((), {"LLAMA_ARG_CACHE_TYPE_K": "q8_0", "LLAMA_ARG_CACHE_TYPE_V": "q8_0"})]:
        result = run(*args, *more, env=env)
        assert ["512", "30", "90", "576", f"{mib:.2f}", "CPU"] in [line.split() for line in result.stdout.splitlines()], result.stdout


def test_types_of_a_draft_are_its_own(program, model, typed, tmp_path):
    """The draft's options are others, and the policy does not speak to it."""
    log = tmp_path / "log"
    with ServerProcess(model, log, "--kv-policy", str(typed), "-md", str(model), "-ctkd", "q8_0", "-ctvd", "q8_0", "--spec-draft-n-max", "4", ctx=1024) as server:
        answer = server.post("/completion", {"prompt": "The capital of France is", "n_predict": 8, "temperature": 0}, timeout=300)
        assert answer.status_code == 200 and answer.json()["content"]
    assert re.search("KV window +512:q8_0", log.read_text())


def test_bench_refuses_types_of_the_whole_cache(program, tmp_path):
    model, windows, typed = tmp_path / "model.gguf", tmp_path / "windows.json", tmp_path / "typed.json"
    tiny_gguf.make_model(model, "llama", seed=1)
    make = (program("llama-kv-policy"), "make")
    run(*make, "uniform", "--window", 64, "-c", 1024, "-m", model, "-o", windows)
    run(*make, "retype", "--policy", windows, "--types", "q8_0", "-o", typed)
    args = (program("llama-bench"), "-m", model, "-p", 0, "-n", 2, "-d", 300, "-ub", 64, "-t", 1, "-r", 1, "-fa", "on", "-o", "json")
    for option in ("-ctk", "-ctv"):
        result = run(*args, "-kvp", f"none,{typed}", option, "f16", timeout=300)
        assert result.returncode == 1 and "failed to create context" in result.stderr
        assert result.stderr.splitlines()[-1].endswith(refused(option, typed, "64:q8_0"))  # without -v, too
    plain, q8_0 = json.loads(run(*args, "-kvp", f"none,{typed}", timeout=300).stdout)
    assert q8_0["kv_mib"] == pytest.approx(128 * 8 * 136 / 2**20, abs=1e-5) and plain["kv_mib"] == pytest.approx(512 * 8 * 256 / 2**20)
    # under windows alone they are taken
    (again,) = json.loads(run(*args, "-kvp", windows, "-ctk", "q8_0", "-ctv", "q8_0", timeout=300).stdout)
    assert again["kv_mib"] == q8_0["kv_mib"]


def test_verify_refuses_types_of_the_whole_cache(program, model, typed, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 30)
    result = run(program("llama-kv-verify"), "-m", model, "-f", text, "--kv-policy", typed, "-ctv", "f16")
    assert result.returncode == 1
    assert result.stderr == f"llama-kv-verify: {refused('-ctv', typed).removeprefix('KV policy ')}\n"


@pytest.mark.parametrize("dry", [(), ("--kv-policy-dry-run",)], ids=["load", "dry run"])
def test_values_in_blocks_need_flash_attention(program, model, typed, dry):
    result = run_merged(program("llama-server"), "-m", model, "-c", 1024, "-np", 1, "--offline", "--kv-policy", typed, "-fa", "off", *dry)
    assert result.returncode == 1
    check_last_line(result, f"KV policy {typed}: $.codebook[0]: found V cache type q8_0 without flash attention, expected f32, f16 or bf16")


def test_a_context_shift_that_ggml_cannot_do_is_left_out(program, model, policy):
    """It has no RoPE for bf16: the tool says so and stops at the end of the context, where it would abort."""
    file = policy.parent / "bf16.json"
    subprocess.run([program("llama-kv-policy"), "make", "retype", "--policy", policy, "--types", "bf16", "-o", file], check=True, timeout=60)
    args = (program("llama-completion"), "-m", model, "-c", 64, "-n", 100, "-t", 1, "--temp", 0, "-p", "Once upon a time", "-no-cnv", "--offline", "--context-shift",
            "--ignore-eos")
    shifted = run(*args, "--kv-policy", policy, timeout=300)
    assert shifted.returncode == 0
    result = run(*args, "--kv-policy", file, timeout=300)
    assert result.returncode in (0, 1), result.stderr[-2000:]  # not by a signal
    assert "KV cache shifting is not supported for this context" in result.stderr
    assert "KV cache shifting is not supported" not in shifted.stderr
