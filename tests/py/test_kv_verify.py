"""llama-kv-verify: perplexity and KL divergence of a policy against the full cache, and what it refuses.

llama-perplexity is the independent witness: it saves the log-probabilities of the second half of each chunk, 16 bits each,
from which numpy computes the same numbers.
"""

import json
import os
import pty
import random
import signal
import struct
import subprocess

import gguf
import numpy as np
import pytest
import tiny_gguf
from mixed_policy import full_policy, mixed_policy

pytestmark = pytest.mark.bridge

CTX = 1024
WORDS = ("the", "of", "and", "to", "in", "a", "is", "that", "it", "for", "cat", "dog", "house", "tree", "river", "stone")


def make_text(n_words, seed=0):
    rng = random.Random(seed)
    return "".join(rng.choice(WORDS) + ("\n" if rng.random() < 0.1 else " ") for _ in range(n_words))


@pytest.fixture(scope="session")
def bench(program, tmp_path_factory):
    return Bench(tmp_path_factory.mktemp("verify"), program)


class Bench:
    def __init__(self, folder, program):
        self.folder = folder
        self.program = program
        self.text = self.write("text.txt", make_text(2500))

    def write(self, name, content):
        file = self.folder / name
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
        return file

    def model(self, arch="llama"):
        file = self.folder / f"{arch}.gguf"
        if not file.exists():
            tiny_gguf.make_model(file, arch, seed=2)
        return file

    def policy(self, windows, model=None, name="uniform", context=CTX):
        """One point per window: every head gets it."""
        file = self.folder / f"{name}-{'-'.join(map(str, windows))}.json"
        points = []
        for window in windows:
            subprocess.run([self.program("llama-kv-policy"), "make", "streaming", "--window", str(window), "-c", str(context), "-m",
                            model or self.model(), "-o", file, "--name", f"w{window}"], check=True, capture_output=True, timeout=60)
            policy = json.loads(file.read_text())
            points += policy["operating_points"]
        policy |= {"codebook": [*sorted(windows), "full"], "operating_points": points, "selected": points[0]["name"]}
        file.write_text(json.dumps(policy))
        return file

    def mixed(self, arch="llama"):
        return mixed_policy(self.policy([64], self.model(arch), arch), self.folder / f"{arch}-mixed.json", (64, 200, 500), 1, 4)

    def command(self, *args, model=None, text=None):
        files = [arg for file in text or [self.text] for arg in ("-f", file)]
        return [str(x) for x in (self.program("llama-kv-verify"), "-m", model or self.model(), *files, "-t", 1, *args)]

    def run(self, *args, code=0, **options):
        result = subprocess.run(self.command(*args, **options), capture_output=True, text=True, timeout=200)
        assert result.returncode == code, result.stderr
        return result

    def measure(self, policy, *args, **options):
        """The points of the JSON document."""
        return json.loads(self.run("--kv-policy", policy, "--json", "-", *args, **options).stdout)["points"]


#
# the numbers
#


@pytest.mark.parametrize("arch", ["llama", "gemma3", "qwen35"])
def test_full_windows_cost_nothing(bench, arch):
    policy = full_policy(bench.policy([64], bench.model(arch), arch), bench.folder / f"{arch}-full.json")
    [point] = bench.measure(policy, "--n-seq", 1, model=bench.model(arch))
    result = point["validation"]
    assert result["kl"] == {"mean": 0, "p99": 0, "max": 0}
    assert result["perplexity"]["full"] == result["perplexity"]["policy"]
    assert result["same_top"] == 1
    assert point["retention"] == 1


def saved_log_probs(bench, *args):
    """Tokens and log-probabilities of the last quarter of the first chunk, by llama-perplexity."""
    file = bench.folder / "logits.bin"
    subprocess.run([str(x) for x in (bench.program("llama-perplexity"), "-m", bench.model(), "-f", bench.text, "-c", CTX, "-b", CTX, "-ub", 512,
                                     "-t", 1, "--chunks", 1, "--save-all-logits", file, *args)], check=True, capture_output=True, timeout=60)
    data = file.read_bytes()
    n_ctx, n_vocab, n_chunk = struct.unpack_from("<3i", data, 8)
    assert (data[:8], n_ctx, n_chunk) == (b"_logits_", CTX, 1)
    tokens = np.frombuffer(data, "<i4", n_ctx, 20)
    width = 2 * ((n_vocab + 1) // 2) + 4
    rows = np.frombuffer(data, "<u2", offset=20 + 4 * n_ctx).reshape(-1, width)
    scale, lowest = np.ascontiguousarray(rows[:, :4]).view("<f4").T[:, :, None].astype(np.float64)
    log_probs = scale * rows[:, 4:4 + n_vocab] + lowest
    return tokens[-CTX // 4 + 1:], log_probs[-(CTX // 4 - 1):]


def test_numbers_agree_with_llama_perplexity(bench):
    policy = bench.mixed()
    [point] = bench.measure(policy, "--n-seq", 1)
    result = point["validation"]
    tokens, full = saved_log_probs(bench)
    _, windowed = saved_log_probs(bench, "--kv-policy", policy)
    rows = np.arange(len(tokens))
    assert result["n_positions"] == len(rows) == CTX // 4 - 1
    assert result["perplexity"]["full"] == pytest.approx(np.exp(-full[rows, tokens].mean()), rel=1e-4)
    assert result["perplexity"]["policy"] == pytest.approx(np.exp(-windowed[rows, tokens].mean()), rel=1e-4)
    kl = (np.exp(full) * (full - windowed)).sum(axis=1)
    assert kl.mean() > 1e-3
    # log-probabilities of 16 bits are within 1e-4
    assert result["kl"]["mean"] == pytest.approx(kl.mean(), abs=1e-4)
    assert result["kl"]["max"] == pytest.approx(kl.max(), abs=1e-3)
    assert result["kl"]["p99"] == pytest.approx(np.sort(kl)[-(len(kl) // 100) - 1], abs=1e-3)
    assert result["same_top"] == pytest.approx((full.argmax(axis=1) == windowed.argmax(axis=1)).mean(), abs=0.01)


def test_tighter_windows_cost_more(bench):
    policy = bench.policy([32, 128, 512])
    points = bench.measure(policy, "--all-points", "--n-seq", 2)
    assert [point["name"] for point in points] == ["w32", "w128", "w512"]
    kl = [point["validation"]["kl"]["mean"] for point in points]
    assert kl[0] > kl[1] > kl[2] > 0
    assert [point["retention"] for point in points] == [32 / CTX, 128 / CTX, 512 / CTX]
    assert points[0]["kv_bytes"] <= points[1]["kv_bytes"] <= points[2]["kv_bytes"]
    # a point alone gives what it gives beside others, and the full cache is one for all
    assert bench.measure(policy, "--kv-policy-point", "w128", "--n-seq", 2) == [points[1]]
    assert len({point["validation"]["perplexity"]["full"] for point in points}) == 1


@pytest.mark.slow
def test_default_model(bench, model):
    text = bench.write("prose.txt", "".join(f"{i}. The river ran past the house of stone, and nobody asked why.\n" for i in range(300)))
    policy = bench.policy([64], model, "smollm2")
    [point] = bench.measure(policy, "--n-seq", 1, model=model, text=[text])
    result = point["validation"]
    # a text that repeats itself is easy; counting needs no more than the line before
    assert 1 < result["perplexity"]["full"] < 2
    assert result["perplexity"]["policy"] < 3
    assert 0 < result["kl"]["mean"] < 1
    assert result["same_top"] > 0.7


#
# chunks
#


def test_chunks_alternate_between_files(bench):
    policy = bench.mixed()
    texts = [bench.write(f"{i}.txt", make_text(1100, i)) for i in range(2)]
    [both] = bench.measure(policy, "--n-seq", 3, text=texts)
    alone = [bench.measure(policy, "--n-seq", 2, text=[text])[0]["chunks"] for text in texts]
    assert both["chunks"] == [alone[0][0], alone[1][0], alone[0][1]]
    assert both["validation"]["source"] == "0.txt,1.txt"
    mean = [chunk["kl"]["mean"] for chunk in both["chunks"]]
    assert both["validation"]["kl"]["mean"] == pytest.approx(np.mean(mean))
    assert both["kl_mean_error"] == pytest.approx(np.std(mean, ddof=1) / np.sqrt(3))


def test_only_the_beginning_of_a_large_file_matters(bench):
    policy = bench.mixed()
    text = make_text(1000)
    [short] = bench.measure(policy, "--n-seq", 1, text=[bench.write("short.txt", text)])
    [long] = bench.measure(policy, "--n-seq", 1, text=[bench.write("long.txt", text + make_text(200000, 1))])
    assert short["chunks"] == long["chunks"]
    assert short["validation"]["text_sha256"] != long["validation"]["text_sha256"]


def test_special_tokens_are_text_unless_asked_for(bench):
    text = bench.write("chat.txt", "<s>" + make_text(100) + "</s>" + make_text(900))
    plain, chat = (bench.measure(bench.mixed(), "--n-seq", 2, *args, text=[text])[0] for args in [(), ("--parse-special",)])
    assert plain["validation"]["n_chat"] == 0
    assert chat["validation"]["n_chat"] == 1
    assert plain["chunks"] != chat["chunks"]


#
# output
#


def test_table_and_json(bench):
    file = bench.folder / "result.json"
    out = bench.run("--kv-policy", bench.policy([32, 128]), "--all-points", "--json", file, "--n-seq", 2).stdout
    lines = [line for line in out.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells[0] == ["point", "R_C", "KV MiB", "PPL full", "PPL policy", "change %", "KL mean", "+-", "KL 99%", "same top %"]
    result = json.loads(file.read_text())
    assert result["complete"] is True
    for row, point in zip(cells[2:], result["points"], strict=True):
        assert row[0] == point["name"]
        assert float(row[2]) == pytest.approx(point["kv_bytes"] / 2**20, abs=0.01)
        assert float(row[6]) == pytest.approx(point["validation"]["kl"]["mean"], abs=1e-6)
        assert float(row[5]) == pytest.approx(100 * point["validation"]["perplexity"]["change"], abs=1e-3)
    assert "+-" not in bench.run("--kv-policy", bench.mixed(), "--n-seq", 1).stdout
    assert not file.with_name(file.name + ".part").exists()


def test_progress_for_programs(bench):
    lines = [json.loads(line) for line in bench.run("--kv-policy", bench.mixed(), "--n-seq", 2, "--json-progress").stderr.splitlines()]
    assert [line["message"][:9] for line in lines if "message" in line] == ["chunk 1/2", "chunk 2/2"]
    assert lines[0]["stage"] == "loading the model"
    steps = [line for line in lines if line.get("stage", "").startswith("chunk")]
    assert all(line.keys() == {"stage", "layer", "done", "total", "elapsed_s", "eta_s"} for line in steps)
    assert [line["done"] for line in steps] == sorted(line["done"] for line in steps)
    # two contexts, every token but the last of a chunk
    assert steps[-1]["done"] == steps[-1]["total"] == 2 * 2 * (CTX - 1)
    assert steps[-1]["eta_s"] == 0


def test_progress_on_a_terminal(bench):
    leader, follower = pty.openpty()
    process = subprocess.Popen(bench.command("--kv-policy", bench.mixed(), "--n-seq", 1), stdout=subprocess.DEVNULL, stderr=follower,
                               env={**os.environ, "TERM": "xterm"})
    os.close(follower)
    shown = b""
    while True:
        try:
            data = os.read(leader, 4096)
        except OSError:  # what Linux says when the other end has closed
            break
        if not data:
            break
        shown += data
    os.close(leader)
    assert process.wait(timeout=60) == 0
    assert b"\r\x1b[K[" in shown and b"chunk 1/1" in shown
    assert shown.endswith(b"\r\x1b[K")  # the bar is gone


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGTERM])
def test_stop_keeps_what_is_finished(bench, sig):
    n_seq = 400
    text = bench.write("endless.txt", make_text(130 * n_seq * 2))
    file = bench.folder / f"stopped-{sig}.json"
    process = subprocess.Popen(bench.command("--kv-policy", bench.mixed(), "--n-seq", n_seq, "--json-progress", "--json", file, text=[text]),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if "message" in json.loads(line):
            process.send_signal(sig)
            break
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + sig
    result = json.loads(file.read_text())
    assert result["complete"] is False
    assert 1 <= result["points"][0]["validation"]["n_seq"] < n_seq
    assert len(result["points"][0]["chunks"]) == result["points"][0]["validation"]["n_seq"]
    assert "(stopped)" in out and "| mixed" in out


#
# what is refused
#


def test_help_and_usage(bench):
    binary = bench.program("llama-kv-verify")

    def call(*args):
        result = subprocess.run([binary, *map(str, args)], capture_output=True, text=True, timeout=60)
        return result.returncode, result.stdout, result.stderr

    assert call("-h")[:2] == call("--help")[:2]
    code, out, err = call("--help")
    assert (code, err) == (0, "") and out.startswith("usage: llama-kv-verify -m MODEL")
    assert call("--version")[1].startswith("llama-kv-verify: HeadWiseKV")
    given = ["-m", "m", "-f", "t", "--kv-policy", "p"]
    for args, message in [
        ([], "found no -m MODEL"),
        (given[:2] + given[4:], "found no -f TEXT"),
        (given[:4], "found no --kv-policy FILE"),
        ([*given, "-f"], "-f needs a value"),
        ([*given, "--nonsense"], "unknown option '--nonsense'"),
        ([*given, "word"], "unexpected argument 'word'"),
        ([*given, "-c", 512], "-c: found '512', expected a whole number from 1024"),
        ([*given, "--n-seq", 0], "--n-seq: found '0', expected"),
        ([*given, "-ctk", "q1"], "-ctk: found 'q1', expected one of"),
        ([*given, "--all-points", "--kv-policy-point", "0"], "found both --kv-policy-point and --all-points"),
    ]:
        code, out, err = call(*args)
        assert (code, out) == (2, "") and message in err and err.count("\n") == 1, err


def test_bad_files(bench):
    policy = bench.mixed()

    def refused(message, *args, code=1, **options):
        result = bench.run("--kv-policy", options.pop("policy", policy), *args, code=code, **options)
        lines = [line for line in result.stderr.splitlines() if "warning" not in line]
        assert len(lines) == 1 and message in lines[0], result.stderr
        assert result.stdout == ""

    def text_refused(message, content):
        refused(f"bad.txt: {message}", text=[bench.text, bench.write("bad.txt", content)])

    text_refused("the file is empty", "")
    text_refused("found a binary file (a zero at byte 5)", b"hello\0world")
    text_refused("found 0xFF at byte 6, which is no UTF-8", b"hello \xff world")
    text_refused("found 0xC3 at byte 5, which is no UTF-8", b"hello\xc3")
    refused("No such file", text=[bench.folder / "missing.txt"])
    refused("Is a directory", text=[bench.folder])
    refused('found no operating point "9", expected one of "', "--kv-policy-point", 9, code=3)
    refused("No such file", model=bench.folder / "missing.gguf")
    refused("not a model that llama.cpp can load", model=bench.text)
    refused("cannot open", policy=bench.folder / "missing.json")
    refused("$.model.architecture", model=bench.model("qwen35"))
    refused("cannot write", "--json", bench.folder / "missing" / "x.json")
    refused("the text is too short: found", text=[bench.write("few.txt", "a few words")])
    refused("expected 90 chunks (92070 tokens)", "--n-seq", 90)
    wide = bench.policy([1024], context=4096, name="wide")
    refused("a chunk of 1024 tokens never leaves a window of 1024", "-c", CTX, policy=wide)
    short = bench.policy([64], context=512, name="short")
    refused("found a policy for a context of 512, expected -c of at least 1024", policy=short)


def test_logits_that_are_no_numbers(bench):
    broken = bench.folder / "nan.gguf"
    broken.write_bytes(bench.model().read_bytes())
    reader = gguf.GGUFReader(broken, "r+")
    next(tensor for tensor in reader.tensors if tensor.name == "output.weight").data[7] = np.nan
    reader.data.flush()
    result = bench.run("--kv-policy", bench.mixed(), model=broken, code=1)
    assert "found logits that are not finite at position 768 of chunk 1 (full cache)" in result.stderr
