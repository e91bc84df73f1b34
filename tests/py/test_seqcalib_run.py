"""llama-seqcalib: interrupted and resumed runs, the held-out check, outputs, and what it says about bad input."""

import fcntl
import json
import random
import re
import signal
import subprocess
import sys

import gguf
import pytest
from seqcalib_tool import CHOICE, CONTEXT, SHORT, TAUS, check_numbers, tool, units, validated  # noqa: F401 (fixture)

pytestmark = pytest.mark.bridge

PREFIX = "llama-seqcalib: "


#
# interrupted runs
#

# all that is kept in a work file: layers of floors that part, and the held-out check
RUN = (*SHORT, *CHOICE, "--holdout", 1)


@pytest.fixture(scope="module")
def finished(tool):
    """The policy of an undisturbed run, and the work file of one that failed at the very end."""
    out = tool.folder / "finished.json"
    tool.run("-m", tool.model("llama"), "-f", tool.text(), *RUN, "-o", out)
    assert not out.with_suffix(".json.work").exists()

    work = tool.folder / "finished.work"
    with open("/dev/full", "w") as full:
        result = tool.run("-m", tool.model("llama"), "-f", tool.text(), *RUN, "-o", "-", "--work", work, code=1, stdout=full)
    assert result.stderr.endswith(f"{PREFIX}stdout: No space left on device\n")
    return out.read_bytes(), work.read_bytes()


def resume(tool, out, *args, code=0, model="llama"):
    return tool.run("-m", tool.model(model), "-f", tool.text(), *RUN, "-o", out, "--resume", *args, code=code)


def layer_lines(result):
    return [line for line in result.stderr.splitlines() if ", layer " in line]


def test_resume_at_any_line(tool, finished, tmp_path):
    policy, work = finished
    lines = work.splitlines(keepends=True)
    kinds = [line[:2] for line in lines]
    assert kinds[0] == b"he" and kinds.count(b"L ") > 4 and kinds[-3:] == [b"V "] * 3
    assert sum(line.startswith(b"L 1 ") for line in lines) > 1  # floors have parted

    for n in (1, 3, 4, kinds.index(b"V "), len(lines) - 1, len(lines)):
        out = tmp_path / f"{n}.json"
        out.with_suffix(".json.work").write_bytes(b"".join(lines[:n]))
        result = resume(tool, out)
        assert out.read_bytes() == policy, n
        # no layer is traced twice
        assert len({line.split(b" ")[1] for line in lines[n:] if line[:1] == b"L"}) <= len(layer_lines(result)) <= 12
        assert bool(layer_lines(result)) == (n < kinds.index(b"V "))
        assert not out.with_suffix(".json.work").exists()


def test_resume_from_a_damaged_file(tool, finished, tmp_path):
    policy, work = finished
    ends = [i + 1 for i, byte in enumerate(work) if byte == ord("\n")]
    rng = random.Random(1)
    flipped = bytearray(work)
    flipped[ends[2] + 20] ^= 1
    cut = [0, 1, ends[0] - 1, ends[0] + 1, ends[2] - 1, ends[2] - 5, ends[-1] - 1, rng.randrange(ends[1], ends[4])]
    for i, content in enumerate([*(work[:n] for n in cut), bytes(flipped), work[:ends[3]] + b"L 3 1 8 0x1p-1"]):
        out = tmp_path / f"{i}.json"
        out.with_suffix(".json.work").write_bytes(content)
        resume(tool, out)
        assert out.read_bytes() == policy, i


def test_resume_in_the_other_mode(tool, finished, tmp_path):
    policy, work = finished
    out = tmp_path / "p.json"
    out.with_suffix(".json.work").write_bytes(b"".join(work.splitlines(keepends=True)[:6]))
    resume(tool, out, "--naive")
    assert out.read_bytes() == policy


@pytest.mark.parametrize("args", [("--tau", 0.5), ("--seed", 7), ("--sinks", 0), ("--windows", "16,32,64"), ("-c", 192), ("-ctk", "q8_0"),
                                  ("--n-query", 9), ("-ub", 32), ("--holdout", 2), ("--n-seq", 2)])
def test_resume_with_other_arguments(tool, finished, tmp_path, args):
    work = tmp_path / "p.json.work"
    work.write_bytes(finished[1])
    result = resume(tool, tmp_path / "p.json", *args, code=1)
    assert result.stderr == f"{PREFIX}{work}: work file: found another model, text or setting, expected the run that is resumed\n"
    assert work.read_bytes() == finished[1]
    assert not (tmp_path / "p.json").exists()


def test_resume_with_another_model(tool, finished, tmp_path):
    (tmp_path / "p.json.work").write_bytes(finished[1])
    assert "found another model" in resume(tool, tmp_path / "p.json", model="qwen3", code=1).stderr


def test_without_resume_it_begins_anew(tool, finished, tmp_path):
    policy, work = finished
    out = tmp_path / "p.json"
    out.with_suffix(".json.work").write_bytes(work)
    result = tool.run("-m", tool.model("llama"), "-f", tool.text(), *RUN, "-o", out)
    assert layer_lines(result)
    assert out.read_bytes() == policy


def test_one_run_at_a_time(tool, finished, tmp_path):
    work = tmp_path / "p.json.work"
    work.write_bytes(finished[1])
    with work.open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX)
        for args in ((), ("--resume",)):
            result = tool.run("-m", tool.model("llama"), "-f", tool.text(), *RUN, "-o", tmp_path / "p.json", *args, code=1)
            assert result.stderr == f"{PREFIX}{work}: work file: another run is working on it\n"
    assert work.read_bytes() == finished[1]


@pytest.mark.parametrize("resumed", [False, True])
def test_a_file_of_somebody_else_is_left_alone(tool, tmp_path, resumed):
    work = tmp_path / "notes.txt"
    work.write_text("my notes\n")
    result = tool.run("-m", tool.model("llama"), "-f", tool.text(), *RUN, "-o", tmp_path / "p.json", "--work", work,
                      *(["--resume"] if resumed else []), code=1)
    assert result.stderr == f"{PREFIX}{work}: not a work file of llama-seqcalib, expected one or none\n"
    assert work.read_text() == "my notes\n"


class Interrupted:
    """A run that is stopped after any of its layers; the same one undisturbed."""

    ARGS = ("-c", 512, "-ub", 64, "-t", 1, "--windows", "64,200", "--tau", 0.75, "--n-seq", 2)
    N_LAYER = 5

    def __init__(self, tool):
        self.tool = tool
        self.command = ("-m", tool.model("llama", n_layer=self.N_LAYER), "-f", tool.text(), *self.ARGS)
        tool.run(*self.command, "-o", tool.folder / "whole.json")
        self.policy = (tool.folder / "whole.json").read_bytes()

    def stop(self, out, n_layer, sig, *args):
        """Sends a signal once n_layer layers are done. Exit code and stderr."""
        # llama.cpp's log of the next layer's context is larger than pipe and reader hold: it waits there to be stopped
        with subprocess.Popen(self.tool.command(*self.command, *args, "-v", "-o", out), stderr=subprocess.PIPE, text=True, pipesize=4096) as process:
            lines = []
            while sum(", layer " in line for line in lines) < n_layer:
                lines.append(process.stderr.readline())
                assert lines[-1], lines
            process.send_signal(sig)
            lines.append(process.stderr.read())
        return process.returncode, "".join(lines)


@pytest.fixture(scope="module")
def interrupted(tool):
    return Interrupted(tool)


@pytest.mark.parametrize("n_layer", [1, 3])
def test_kill(interrupted, tmp_path, n_layer):
    out = tmp_path / "p.json"
    code, _ = interrupted.stop(out, n_layer, signal.SIGKILL)
    assert code == -signal.SIGKILL
    assert not out.exists()
    assert len((tmp_path / "p.json.work").read_text().splitlines()) == 1 + n_layer
    result = interrupted.tool.run(*interrupted.command, "-o", out, "--resume")
    assert len(layer_lines(result)) == interrupted.N_LAYER - n_layer
    assert out.read_bytes() == interrupted.policy


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c(interrupted, tmp_path, sig):
    out = tmp_path / "p.json"
    code, stderr = interrupted.stop(out, 2, sig)
    assert code == 130
    assert stderr.endswith(f"{PREFIX}stopped; what is done is in {out}.work, the same command with --resume goes on\n")
    assert not out.exists()
    interrupted.tool.run(*interrupted.command, "-o", out, "--resume")
    assert out.read_bytes() == interrupted.policy


def test_ctrl_c_in_the_held_out_check(interrupted, tmp_path):
    holdout = ("--holdout", 1)
    whole, out = tmp_path / "whole.json", tmp_path / "p.json"
    interrupted.tool.run(*interrupted.command, *holdout, "-o", whole)
    code, stderr = interrupted.stop(out, interrupted.N_LAYER, signal.SIGINT, *holdout)
    assert code == 130 and "--resume goes on" in stderr
    assert (tmp_path / "p.json.work").read_text().count("\nL ") == interrupted.N_LAYER
    result = interrupted.tool.run(*interrupted.command, *holdout, "-o", out, "--resume")
    assert not layer_lines(result)
    assert out.read_bytes() == whole.read_bytes()


#
# the held-out check
#


@pytest.mark.parametrize("name", ["llama", "gemma3", "qwen35", "gpt-oss", "gemma3n"])
def test_holdout(tool, tmp_path, name):
    result, policy = tool.calibrate(tmp_path / "p.json", name, "--holdout", 2)
    check_numbers(policy)
    validated(policy, 2)
    assert result.stderr.count("held out: perplexity") == len(TAUS)
    kl = [point["validation"]["kl"]["mean"] for point in policy["operating_points"]]
    assert kl[0] > kl[-1]
    # the check adds to the points and changes nothing else
    _, plain = tool.calibrate(tmp_path / "plain.json", name)
    for point in policy["operating_points"]:
        del point["validation"]
    assert policy == plain


def test_bounds_with_learned_sinks(tool, tmp_path):
    # a learned sink takes part as a value of zero: where all other values are alike and far from it, only it makes a difference
    model = tool.model("gpt-oss", n_ctx_train=1000)
    for tensor in gguf.GGUFReader(str(model), "r+").tensors:
        if tensor.name.endswith("attn_v.bias"):
            tensor.data[:] = 20.0
    tool.run("-m", model, "-f", tool.text(), *SHORT, "--windows", "16,32", "--types", "f16", "--tau", 0.1, "--holdout", 1, "-o", tmp_path / "p.json")
    policy = json.loads((tmp_path / "p.json").read_text())
    for row in policy["operating_points"][0]["validation"]["bounds"]:
        assert 0 < row["output_error"] <= row["mass_bound"] * (1 + 1e-5)
        assert 0 < row["trace_error"] <= row["trace_bound"] * (1 + 1e-5)


def test_holdout_from_other_files(tool, tmp_path):
    args = ("--holdout", 2, "--tau", 0.65)
    rest = tool.calibrate(tmp_path / "rest.json", "llama", *args)[1]["operating_points"][0]["validation"]
    _, policy = tool.calibrate(tmp_path / "p.json", "llama", *args, "--holdout-file", tool.text(5), "--holdout-file", tool.text(6))
    validated(policy, 2)
    found = policy["operating_points"][0]["validation"]
    assert found["source"] == f"{tool.text(5).name},{tool.text(6).name}"
    assert found["text_sha256"] != rest["text_sha256"]
    assert found["kl"] != rest["kl"]


def test_full_windows_lose_nothing(tool, tmp_path):
    _, policy = tool.calibrate(tmp_path / "p.json", "llama", "--tau", 1.0, "--holdout", 2)
    validated(policy, 2)
    point = policy["operating_points"][0]
    assert point["name"] == "tau-1"
    assert {w for _, w, _ in units(policy, point)} == {"full"}
    assert point["retention"] == point["min_score"] == 1
    found = point["validation"]
    assert found["kl"] == {"mean": 0, "p99": 0, "max": 0}
    assert found["perplexity"]["change"] == 0
    assert found["same_top"] == found["min_score"] == found["head_cosine"]["min"] == 1


def test_a_chat_is_among_the_held_out(tool, tmp_path):
    # of the rest of the text, if there is enough of it
    args = ("-f", tool.text(), *SHORT, *CHOICE, "--holdout", 2, "-o", tmp_path / "p.json", "--force")
    for template, n_seq, n_chat in (("chatml", 1, 1), ("chatml", 9, 0), ("a template that llama.cpp does not know", 1, 0)):
        tool.run("-m", tool.model("llama", chat_template=template), "--n-seq", n_seq, *args)
        policy = json.loads((tmp_path / "p.json").read_text())
        validated(policy, 2 + n_chat, n_chat)


@pytest.mark.slow
def test_chat_of_the_default_model(tool, model, root, tmp_path):
    tool.run("-m", model, "-f", root / "src" / "policy" / "hwkv.h", "-c", 256, "--windows", "32,64", "--tau", 0.9, "--holdout", 1, "-t", 1,
             "-o", tmp_path / "p.json")
    policy = json.loads((tmp_path / "p.json").read_text())
    check_numbers(policy)
    validated(policy, 2, 1)


#
# outputs
#


def test_policy_on_stdout(tool, tmp_path):
    tool.calibrate(tmp_path / "p.json", "llama")
    result = tool.run("-m", tool.model("llama"), "-f", tool.text(), *SHORT, *CHOICE, "-o", "-", cwd=tmp_path)
    assert result.stdout == (tmp_path / "p.json").read_text()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.json"]


def test_another_file_is_not_overwritten_by_mistake(tool, tmp_path):
    out = tmp_path / "p.json"
    out.write_text("hours of work")
    # before anything is read: the model is none
    model = tmp_path / "fake.gguf"
    model.write_text("no model")
    refused = f"{out}: found a file, expected none, or --force to overwrite it"
    for args in ((), ("--resume",), ("--resume", "--work", tmp_path / "none.work")):
        assert one_line(tool, "-m", model, "-f", tool.text(), *SHORT, "-o", out, *args, code=1) == refused
    assert out.read_text() == "hours of work"
    assert one_line(tool, "-m", model, "-f", tool.text(), *SHORT, "-o", out, "--force", code=1).startswith(f"{model}: not a model")
    tool.run("-m", tool.model("llama"), "-f", tool.text(), *SHORT, "-o", out, "--dry-run")  # writes nothing
    tool.run("-m", tool.model("llama"), "-f", tool.text(), *SHORT, *CHOICE, "-o", out, "--force")
    assert json.loads(out.read_text())["format"] == "headwisekv-policy"


def test_a_resumed_run_may_overwrite(tool, finished, tmp_path):
    # it ended after the policy, at the page
    policy, work = finished
    out = tmp_path / "p.json"
    out.write_bytes(policy)
    out.with_suffix(".json.work").write_bytes(work)
    resume(tool, out)
    assert out.read_bytes() == policy
    assert "--force to overwrite it" in resume(tool, out, code=1).stderr  # nothing is left to resume


def test_stdout_is_no_file_to_protect(tool, finished, tmp_path):
    command = ("-m", tool.model("llama"), "-f", tool.text(), *RUN, "-o", "/dev/stdout")
    assert tool.run(*command, cwd=tmp_path).stdout.encode() == finished[0]
    out = tmp_path / "p.json"
    out.write_text("old")
    with out.open("wb") as file:
        tool.run(*command, cwd=tmp_path, stdout=file)
    assert out.read_bytes() == finished[0]
    assert [file.name for file in tmp_path.iterdir()] == ["p.json"]


def test_report_and_statistics(tool, tmp_path):
    tool.calibrate(tmp_path / "p.json", "llama", "--html", tmp_path / "p.html")
    page = (tmp_path / "p.html").read_text()
    assert page.lower().startswith("<!doctype html>") and '"headwisekv-policy"' in page
    result = tool.run("--show-statistics", tmp_path / "p.json")
    assert all(f"tau-{tau}" in result.stdout for tau in TAUS)
    assert result.stderr == ""
    assert "p2.json: cannot open: No such file" in tool.run("--show-statistics", tmp_path / "p2.json", code=1).stderr


def test_dry_run(tool, tmp_path):
    result = tool.run("-m", tool.model("llama"), "-f", tool.text(), *SHORT, *CHOICE, "--holdout", 2, "--dry-run",
                      "-o", tmp_path / "p.json", cwd=tmp_path)
    lines = result.stdout.splitlines()
    assert lines[0] == f"4 full-attention layers of 4, 1 sequences of {CONTEXT} tokens, 3 floors"
    assert lines[1].startswith("time: about ") and "held-out check: " in lines[1]
    assert lines[2].startswith("memory: peak ") and "held-out check: " in lines[2]
    assert not list(tmp_path.iterdir())


# Linux counts the memory of the process that starts a program as the program's own peak: a small one starts it
PEAK = """import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"""


def peak_mib(command, cwd):
    peak = subprocess.run([sys.executable, "-c", PEAK, *command], cwd=cwd, stdout=subprocess.PIPE, check=True)
    return int(peak.stdout) / 1024


@pytest.mark.parametrize("context, more, tau, end", [
    (2048, ("--n-seq", 2), "0.01,0.02", 0),
    (2048, ("--n-seq", 2), "1,0.8", 1),
    (1024, ("--holdout", 1), "0.01,0.02", 0),
    (1024, ("--holdout", 1), "1,0.8", 1),
    (1024, ("--naive",), "1,0.8", 1),
    (2048, ("--n-seq", 2, "--types", "cache"), "0.01,0.02", 0),
    (2048, ("--n-seq", 2, "--types", "cache"), "1,0.8", 1),
], ids=["sweep, least", "sweep, most", "held-out check, least", "held-out check, most", "naive, most", "cache, least", "cache, most"])
def test_dry_run_tells_the_peak(tool, tmp_path, context, more, tau, end):
    # 16 layers whose caches are 4 or 8 MiB each, so that all together or two contexts more would be seen
    model = tool.model("llama", n_layer=16, n_head_kv=4, head_dim=256)
    args = ("-m", model, "-f", tool.text(n=9000), "-c", context, "-t", 1, "--n-query", 64, "--tau", tau, *more)
    dry = tool.run(*args, "--dry-run")
    told = re.search(r"memory: peak (\d+)(?: to (\d+))? MiB", dry.stdout)
    told = float(told[1 + end] or told[1])
    peak = peak_mib(tool.command(*args, "-o", "p.json"), tmp_path)
    assert told / 1.1 < peak < told * 1.1, dry.stdout


def json_lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_json_progress(tool, tmp_path):
    result, policy = tool.calibrate(tmp_path / "p.json", "llama", "--holdout", 1, "--json-progress", "-v")
    lines = json_lines(result.stderr)
    assert all(isinstance(line, dict) for line in lines)
    assert any("log" in line for line in lines)
    stages = [line for line in lines if "stage" in line]
    assert stages[0]["layer"] == 0 and {"done", "total", "elapsed_s", "eta_s"} <= set(stages[0])
    assert sum("kept so far" in line.get("message", "") for line in lines) >= 4
    assert [line["agreement"] for line in lines if "agreement" in line][0] >= 0.9999
    assert sum(bool(re.match(r"\W*tau-\S+ +keeps", line.get("message", ""))) for line in lines) == len(policy["operating_points"])


def test_json_errors(tool, tmp_path):
    for args, code in ((("--budget", 0.001), 3), (("--tau", 2), 2), (("-f", "missing.txt"), 1), (("--n-seq", 100), 1), (("--what",), 2)):
        result = tool.run("-m", tool.model("llama"), "-f", tool.text(), *SHORT, *CHOICE, *args, "--json-progress",
                          "-o", tmp_path / "p.json", "--force", code=code)
        assert "error" in json_lines(result.stderr)[-1]


#
# bad input: an exit code and one line
#


def one_line(tool, *args, code):
    result = tool.run(*args, code=code)
    assert result.stdout == ""
    assert result.stderr.startswith(PREFIX) and result.stderr.count("\n") == 1, result.stderr
    return result.stderr[len(PREFIX):-1]


USAGE = {
    "unknown option '--what' (--help shows all options)": ("--what", 1),
    "unexpected argument 'word' (--help shows all options)": ("word",),
    "--tau needs a value": ("--tau",),
    "--model: the value is empty": ("--model", ""),
    "--file: the value is empty": ("--file", ""),
    "--windows: found 16 after 32, expected ascending windows": ("--windows", "32,16"),
    "--windows: found 16 after 16, expected ascending windows": ("--windows", "16,16"),
    "--windows: found '16,,32', expected whole numbers separated by commas": ("--windows", "16,,32"),
    "--windows: found '16,x', expected whole numbers separated by commas": ("--windows", "16,x"),
    "--windows: found '0', expected whole numbers separated by commas": ("--windows", "0"),
    "--windows: found 256 at a context of 256, expected windows below the context": ("--windows", "16,256"),
    "--sinks: found 16 with a window of 16, expected fewer than the smallest window": ("--sinks", 16),
    "--sinks: found '-1', expected a whole number from 0 to 256": ("--sinks", -1),
    "--tau: found '0', expected numbers above 0 and at most 1, separated by commas": ("--tau", "0"),
    "--tau: found '1.1', expected numbers above 0 and at most 1, separated by commas": ("--tau", "1.1"),
    "--tau: found 'nan', expected numbers above 0 and at most 1, separated by commas": ("--tau", "nan"),
    "--tau: found '0.9,', expected numbers above 0 and at most 1, separated by commas": ("--tau", "0.9,"),
    "--tau: found 0.9 twice": ("--tau", "0.9,0.90"),
    "--tau: found 0.9 twice, as the points are named": ("--tau", "0.9,0.90000000000000002"),
    "--budget: found '0', expected a share above 0 and at most 1, or bytes such as 512MiB or 2GiB": ("--budget", "0"),
    "--budget: found '1.5', expected a share above 0 and at most 1, or bytes such as 512MiB or 2GiB": ("--budget", "1.5"),
    "--budget: found '12MB', expected a share above 0 and at most 1, or bytes such as 512MiB or 2GiB": ("--budget", "12MB"),
    "--ctx-size: found '10', expected a whole number from 64 to 268435456": ("-c", 10),
    "--cache-type-k: found 'f17', expected one of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl": ("-ctk", "f17"),
    "--holdout-file without --holdout, expected how many sequences to take from it": ("--holdout-file", "x"),
    "--html and --output: found p.json for both, expected two files": ("-o", "p.json", "--html", "p.json"),
    "--work: found p.json, which is an output too, expected a file of its own": ("-o", "p.json", "--work", "p.json"),
}


@pytest.mark.parametrize("message, args", USAGE.items())
def test_usage(tool, message, args):
    assert one_line(tool, "-m", tool.model("llama"), "-f", tool.text(), *SHORT, *CHOICE, *args, code=2) == message.split(", as the points")[0]


def test_nothing_to_work_on(tool):
    assert one_line(tool, code=2) == "no model, expected -m FILE (--help shows all options)"
    assert one_line(tool, "-m", "x.gguf", code=2) == "no text, expected -f FILE (--help shows all options)"
    assert tool.run("--help").stdout.startswith("usage: llama-seqcalib ")
    assert tool.run("--version").stdout.startswith("llama-seqcalib: HeadWiseKV ")


@pytest.mark.parametrize("arch, reason", [("mamba", "it has no attention layers"), ("deepseek2", "(MLA)"), ("mpt", "it uses ALiBi")])
def test_models_without_windows(tool, arch, reason):
    line = one_line(tool, "-m", tool.model(arch), "-f", tool.text(), *SHORT, *CHOICE, code=1)
    assert line.startswith(f"architecture {arch} can't have windows: ") and reason in line


def test_texts(tool, tmp_path):
    def line(*args, model=None):
        return one_line(tool, "-m", model or tool.model("llama"), *SHORT, *CHOICE, *args, code=1)

    short, binary, latin, empty = (tmp_path / name for name in ("short.txt", "binary.bin", "latin.txt", "empty.txt"))
    short.write_text("b" * 100)
    binary.write_bytes(b"abc\0def")
    latin.write_bytes("gar\u00e7on".encode("latin-1"))
    empty.touch()
    assert line("-f", short) == "short.txt: found 101 tokens, enough for 0 sequences of 256, expected 1"
    assert line("-f", tool.text(), "--n-seq", 12) == f"{tool.text().name}: found 3001 tokens, enough for 11 sequences of 256, expected 12"
    assert line("-f", tool.text(), "--holdout", 11) == f"{tool.text().name}: found 10 pieces of 256 tokens for the held-out check, expected 11"
    assert line("-f", binary) == f"{binary}: found a binary file (a zero at byte 3), expected text"
    assert "no UTF-8" in line("-f", latin)
    assert line("-f", empty) == f"{empty}: the file is empty, expected text"
    assert line("-f", tmp_path / "none.txt") == f"{tmp_path}/none.txt: cannot be read: No such file or directory"
    assert line("-f", tmp_path) == f"{tmp_path}: cannot be read: Is a directory"
    assert line("-f", tool.text(), "--holdout", 1, "--holdout-file", tmp_path / "no.txt").startswith(f"{tmp_path}/no.txt: cannot be read: ")
    assert line("-f", tool.text(), model=tmp_path / "none.gguf") == f"{tmp_path}/none.gguf: cannot be read: No such file or directory"
    assert line("-f", tool.text(), model=short).startswith(f"{short}: not a model that llama.cpp can load: ")


def test_outputs_are_checked_first(tool, tmp_path):
    # the model is none, but that would turn out later
    fake = tmp_path / "fake.gguf"
    fake.write_text("no model")
    missing = tmp_path / "none" / "file"
    start = ("-m", fake, "-f", tool.text())
    assert one_line(tool, *start, "-o", missing, code=1) == f"{missing}: cannot write: No such file or directory"
    assert one_line(tool, *start, "-o", tmp_path, code=1) == f"{tmp_path}: cannot write: not a regular file"
    assert one_line(tool, *start, "-o", "/dev/null", code=1) == "/dev/null: cannot write: not a regular file"
    assert one_line(tool, *start, "-o", "-", "--html", missing, code=1) == f"{missing}: cannot write: No such file or directory"
    # an existing file is not touched by the check
    old = tmp_path / "old.json"
    old.write_text("old")
    one_line(tool, *start, "-o", old, "--force", code=1)
    assert old.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["fake.gguf", "old.json"]
    # the work file comes before the work
    result = tool.run("-m", tool.model("llama"), "-f", tool.text(), *SHORT, "-o", "-", "--work", missing, code=1)
    assert result.stderr == f"{PREFIX}{missing}: work file: cannot open: No such file or directory\n"
