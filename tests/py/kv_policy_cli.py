"""Fixtures and policies for the tests of llama-kv-policy."""

import json
import subprocess

import pytest
import tiny_gguf

MIB = 1024 * 1024
SERVED = ("llama", "qwen3", "gemma3", "gemma4", "qwen35")  # architectures of tiny_gguf that can have windows


@pytest.fixture(scope="session")
def run(program):
    binary = program("llama-kv-policy")

    def call(*args, code=0, env=None, cwd=None):
        result = subprocess.run([binary, *map(str, args)], capture_output=True, text=True, timeout=60, cwd=cwd,
                                env={"PATH": "/usr/bin:/bin", "TERM": "xterm-256color", **(env or {})})
        assert result.returncode == code, result.stderr
        return result

    call.binary = binary
    return call


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")

    def path(arch, **options):
        name = "-".join([arch, *(f"{key}_{value}" for key, value in sorted(options.items()))])
        file = folder / f"{name}.gguf"
        if not file.exists():
            tiny_gguf.make_model(file, arch, **options)
        return file

    return path


@pytest.fixture
def uniform(run, tiny, tmp_path):
    """A policy for a tiny model: window 128 of 1024 everywhere."""

    def make(arch="llama", *args, **options):
        file = tmp_path / f"{arch}.json"
        run("make", "uniform", "--window", 128, "-c", 1024, "-m", tiny(arch, **options), "-o", file, *args)
        return file

    return make


def scored(windows, scores, codebook=(256, 1024, "full"), context=4096, **changes):
    """A policy with one calibrated point; head_dim 64, f16, so 256 bytes per head and position."""
    kept = {w: min(w, context) if w != "full" else context for w in codebook}
    n_unit = sum(len(row) for row in windows)
    total = sum(kept[w] for row in windows for w in row)
    chosen = [s[codebook.index(w)] for row, row_s in zip(windows, scores) for w, s in zip(row, row_s)]
    policy = {
        "format": "headwisekv-policy",
        "version": 1,
        "model": {
            "architecture": "llama", "name": "made up", "fingerprint": "", "type_fingerprint": "", "n_layer": len(windows),
            "layers": [{"layer": il, "n_head": 2 * len(row), "n_head_kv": len(row), "head_dim_k": 64, "head_dim_v": 64}
                       for il, row in enumerate(windows)],
        },
        "context": context,
        "cache_types": {"k": "f16", "v": "f16"},
        "codebook": list(codebook),
        "sinks": 4,
        "operating_points": [{
            "name": "base", "tau": 0.9, "windows": windows, "scores": scores, "retention": total / (n_unit * context),
            "min_score": min(chosen), "bytes": total * 256, "artifact_id": "0" * 64,
        }],
        "selected": "base",
        "calibration": {"text": "some text", "text_sha256": "1" * 64, "seed": 7, "n_seq": 2, "n_query": 8, "query_rule": "last-quarter",
                        "tool": "by hand"},
    }
    policy.update(changes)
    return policy


SCORES = [[[0.95, 0.97, 1.0], [0.50, 0.91, 1.0]], [[0.20, 0.30, 1.0], [0.92, 0.99, 1.0]]]
WINDOWS = [[256, 1024], ["full", 256]]


@pytest.fixture
def scores_file(tmp_path):
    file = tmp_path / "scores.json"
    file.write_text(json.dumps(scored(WINDOWS, SCORES)))
    return file


def windows_of(file, ip=0):
    return json.loads(file.read_text())["operating_points"][ip]["entries"]


def layers_of(file):
    return [layer["layer"] for layer in json.loads(file.read_text())["model"]["layers"]]
