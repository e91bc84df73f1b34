"""llama-seqcalib on tiny models: runs, texts and what follows from a policy's numbers."""

import json
import random
import subprocess
from pathlib import Path

import more_archs
import pytest
import tiny_gguf
from test_headwise_archs import ARCHS

from headwisekv import policy as policies

CONTEXT = 256
WINDOWS = (16, 32, 64, 128)
TAUS = (0.5, 0.65, 0.8)  # among the scores of random weights, so that every window is chosen by some head
SHORT = ("-c", CONTEXT, "-ub", 48, "-t", 1)
CHOICE = ("--windows", ",".join(map(str, WINDOWS)), "--types", "cache", "--tau", ",".join(map(str, TAUS)))
TYPED = ("--types", "f16,q8_0,q4_0")
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
        """A short run with the usual windows and floors, in the types of the cache; args come later and win. The result and the policy."""
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


def letters_as_tokens(text, n_seq, context):
    """The sequences that a calibration on letters has."""
    ids = {token: i for i, token in enumerate(tiny_gguf._vocab()[0])}
    space = ids["\u2581".encode()]
    tokens = [space, *(ids[c.encode()] for c in text)]
    assert set(text) <= set(LETTERS)
    n = context - 1  # and BOS
    return [[1, *tokens[i * n:(i + 1) * n]] for i in range(n_seq)]


def agreement(result):
    """The lowest one of replay and trace, from the last line of a run."""
    line = result.stderr.splitlines()[-1]
    start, end = "replay and traced attention agree to ", " or better"
    assert line.startswith(start) and line.endswith(end), result.stderr
    return float(line[len(start):-len(end)])


def units(policy, point):
    """(layer, entry, scores) of every KV head; the entry as the file spells it."""
    layers = policy["model"]["layers"]
    found = policies.scores(policy, point)
    assert len(policies.matrix(point)) == len(found) == len(layers)
    for layer, entries, scores in zip(layers, policies.matrix(point), found):
        assert len(entries) == len(scores) == layer["n_head_kv"]
        for entry, row in zip(entries, scores):
            yield layer, entry, row


def reference(policy):
    """Its place in the codebook: full, in the types of the cache."""
    types = policy["cache_types"]
    found = [ie for ie, entry in enumerate(policy["codebook"]) if policies.parts(entry, types) == ("full", types["k"], types["v"])]
    assert len(found) == 1
    return found[0]


def check_order(policy):
    """From cheap to dear, if all heads have an entry."""
    layers, types = policy["model"]["layers"], policy["cache_types"]
    cost = [sum(layer["n_head_kv"] * policies.position_bytes(layer, entry, types) for layer in layers) * policies.kept(entry, policy["context"])
            for entry in policy["codebook"]]
    assert cost == sorted(cost)
    assert len(set(policy["codebook"])) == len(cost)


def check_numbers(policy):
    """Everything in a point that follows from its scores and its floor."""
    codebook, types, context = policy["codebook"], policy["cache_types"], policy["context"]
    ir = reference(policy)
    check_order(policy)

    for point in policy["operating_points"]:
        kept = plain = 0
        chosen = []
        for layer, entry, scores in units(policy, point):
            assert len(scores) == len(codebook)
            assert scores[ir] == 1
            assert all(-1 <= score <= 1 for score in scores)
            # the cheapest entry that clears the floor: no cheaper one does
            assert entry == next(e for e, score in zip(codebook, scores) if score >= point["tau"])
            chosen.append(scores[codebook.index(entry)])
            kept += policies.position_bytes(layer, entry, types) * policies.kept(entry, context)
            plain += policies.position_bytes(layer, codebook[ir], types) * context
        assert point["min_score"] == min(chosen)
        assert point["bytes"] == kept
        assert point["retention"] == pytest.approx(kept / plain, rel=1e-12)


def validated(policy, n_seq, n_chat=0):
    """What the held-out check leaves in every point."""
    context, types = policy["context"], policy["cache_types"]
    for point in policy["operating_points"]:
        found = point["validation"]
        assert (found["context"], found["n_seq"], found["n_chat"]) == (context, n_seq, n_chat)
        assert found["n_positions"] == n_seq * (context // 4 - 1)
        full, change = found["perplexity"]["full"], found["perplexity"]["change"]
        assert full > 1 and found["perplexity"]["policy"] == pytest.approx(full * (1 + change), rel=1e-6)
        assert 0 <= found["kl"]["mean"] <= found["kl"]["max"] and found["kl"]["p99"] <= found["kl"]["max"]
        assert 0 <= found["same_top"] <= 1

        cosines = found["head_cosine"]["layers"]
        assert [len(row) for row in cosines] == [layer["n_head_kv"] for layer in policy["model"]["layers"]]
        flat = [cosine for row in cosines for cosine in row]
        assert all(-1 <= cosine <= 1 for cosine in flat)
        assert found["head_cosine"]["min"] == min(flat)
        assert found["head_cosine"]["mean"] == pytest.approx(sum(flat) / len(flat), rel=1e-6)
        # nothing below the first layer has windows: there both are the score
        assert found["min_score"] <= min(cosines[0]) + 1e-9
        # the same text but other pieces of it: alike
        assert found["min_score"] == pytest.approx(point["min_score"], abs=0.2)

        bounds = found["bounds"]
        assert [row["layer"] for row in bounds] == [layer["layer"] for layer in policy["model"]["layers"]]
        for row, entries in zip(bounds, point["entries"]):
            entries = [policies.parts(entry, types) for entry in entries]
            whole, plain = all(entry[0] == "full" for entry in entries), all(entry[1:] == (types["k"], types["v"]) for entry in entries)
            assert 0 <= row["omitted_mass"] <= 1 and (row["omitted_mass"] == 0) == whole
            # theorems, up to rounding; the first knows nothing of other types than the reference's
            assert ("mass_bound" in row) == plain
            assert not plain or row["output_error"] <= row["mass_bound"] * (1 + 1e-5) + 1e-6
            assert row["trace_error"] <= row["trace_bound"] * (1 + 1e-5) + 1e-6
            assert (row["output_error"] == row["trace_error"] == 0) == (whole and plain)


def select(records, budget):
    """The paper's rule on (retention, min_score) pairs; None if no point fits."""
    feasible = [i for i, (retention, _) in enumerate(records) if retention <= budget]
    best = [i for i in feasible if records[i][1] == max(records[j][1] for j in feasible)]
    return next((i for i in best if records[i][0] == min(records[j][0] for j in best)), None)
