"""llama-seqcalib on tiny models: runs, texts and what follows from a policy's numbers."""

import json
import random
import subprocess
from pathlib import Path

import more_archs
import pytest
from test_headwise_archs import ARCHS

from headwisekv import policy as policies

CONTEXT = 256
WINDOWS = (16, 32, 64, 128)
TAUS = (0.5, 0.65, 0.8)  # among the scores of random weights, so that every window is chosen by some head
SHORT = ("-c", CONTEXT, "-ub", 48, "-t", 1)
CHOICE = ("--windows", ",".join(map(str, WINDOWS)), "--types", "cache", "--tau", ",".join(map(str, TAUS)))
LETTERS = "bcdefghijklmnopqrstuvwxyz"  # tokens of their own, one each, in the vocabulary of tiny_gguf


class Tool:
    def __init__(self, folder, program):
        self.folder = folder
        self.binary = program("llama-seqcalib")
        self.kv_policy = program("llama-kv-policy")

    def model(self, name, **options):
        """A name of ARCHS or an architecture."""
        arch, more, _ = ARCHS.get(name, (name, {}, None))
        file = self.folder / ("-".join([name, *(f"{key}_{value}" for key, value in sorted(options.items()))]) + ".gguf")
        if not file.exists():
            more_archs.make_model(file, arch, seed=1, **more, **options)
        return file

    def text(self, seed=1, n=3000):
        """n letters; the tokenizer puts one token for a space before them."""
        file = self.folder / f"letters-{seed}-{n}.txt"
        if not file.exists():
            file.write_text("".join(random.Random(seed).choices(LETTERS, k=n)))
        return file

    def command(self, *args):
        return [str(arg) for arg in (self.binary, *args)]

    def run(self, *args, code=0, cwd=None, stdout=subprocess.PIPE):
        result = subprocess.run(self.command(*args), stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120, cwd=cwd or self.folder)
        assert result.returncode == code, result.stderr
        return result

    def calibrate(self, out, model, *args, code=0):
        """A short run with the usual windows and floors; args come later and win. The result and the policy."""
        result = self.run("-m", self.model(model), "-f", self.text(), *SHORT, *CHOICE, *args, "-o", out, "--force", code=code)
        return result, json.loads(Path(out).read_text())

    def check(self, policy, model, *args):
        """llama-kv-policy check, as JSON."""
        result = subprocess.run([str(x) for x in (self.kv_policy, "check", policy, "-m", model, "--json", *args)], capture_output=True, text=True,
                                timeout=60)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)


@pytest.fixture(scope="module")
def tool(program, tmp_path_factory):
    return Tool(tmp_path_factory.mktemp("seqcalib"), program)


def agreement(result):
    """The lowest one of replay and trace, from the last line of a run."""
    line = result.stderr.splitlines()[-1]
    start, end = "replay and traced attention agree to ", " or better"
    assert line.startswith(start) and line.endswith(end), result.stderr
    return float(line[len(start):-len(end)])


def units(policy, point):
    """(layer, window, scores) of every KV head."""
    layers = policy["model"]["layers"]
    found = policies.scores(policy, point)
    assert len(policies.matrix(point)) == len(found) == len(layers)
    for layer, windows, scores in zip(layers, policies.matrix(point), found):
        assert len(windows) == len(scores) == layer["n_head_kv"]
        for window, row in zip(windows, scores):
            yield layer, window, row


def check_numbers(policy):
    """Everything in a point that follows from its scores and its floor."""
    codebook, context = policy["codebook"], policy["context"]
    assert codebook[-1] == "full" and codebook[:-1] == sorted(codebook[:-1])
    size = {"f32": 4.0, "f16": 2.0, "bf16": 2.0, "q8_0": 34 / 32}
    size_k, size_v = (size[policy["cache_types"][name]] for name in "kv")

    for point in policy["operating_points"]:
        kept = plain = 0
        chosen = []
        for layer, window, scores in units(policy, point):
            assert len(scores) == len(codebook)
            assert scores[-1] == 1
            assert all(-1 <= score <= 1 for score in scores)
            # the smallest window that clears the floor: no smaller one does
            assert window == next(w for w, score in zip(codebook, scores) if score >= point["tau"])
            chosen.append(scores[codebook.index(window)])
            row = layer["head_dim_k"] * size_k + layer["head_dim_v"] * size_v
            kept += row * (context if window == "full" else window)
            plain += row * context
        assert point["min_score"] == min(chosen)
        assert point["bytes"] == kept
        assert point["retention"] == pytest.approx(kept / plain, rel=1e-12)


def select(records, budget):
    """The paper's rule on (retention, min_score) pairs; None if no point fits."""
    feasible = [i for i, (retention, _) in enumerate(records) if retention <= budget]
    best = [i for i in feasible if records[i][1] == max(records[j][1] for j in feasible)]
    return next((i for i in best if records[i][0] == min(records[j][0] for j in best)), None)
