"""llama-kv-policy and real architectures in miniature: which layers, which bytes, does it fit."""

import json
import re
import subprocess

import pytest
import tiny_gguf
from kv_policy_cli import MIB, SERVED, layers_of, run, scores_file, tiny, uniform  # noqa: F401

pytestmark = pytest.mark.bridge


#
# the layers llama.cpp finds
#


@pytest.mark.parametrize("arch", SERVED)
def test_full_attention_layers_are_the_right_ones(run, tiny, uniform, arch):
    config = tiny_gguf.DEFAULTS[arch]
    model = json.loads(uniform(arch).read_text())["model"]
    assert [layer["layer"] for layer in model["layers"]] == tiny_gguf.full_layers(arch)
    assert model["n_layer"] == config.n_layer
    assert model["architecture"] == arch
    for layer in model["layers"]:
        assert (layer["n_head"], layer["n_head_kv"], layer["head_dim_k"], layer["head_dim_v"]) == (4, 2, 64, 64)


def test_expected_layers_by_hand():
    # so that the test above can't agree with a mistake of tiny_gguf
    assert tiny_gguf.full_layers("gemma3") == [2, 5]
    assert tiny_gguf.full_layers("gemma4") == [1, 3]
    assert tiny_gguf.full_layers("qwen35") == [2, 5]


def test_mtp_layers_are_left_out(run, tiny, uniform):
    with_mtp = uniform("qwen35", n_nextn=1)
    model = json.loads(with_mtp.read_text())["model"]
    assert (model["n_layer"], layers_of(with_mtp)) == (6, [2, 5])
    # the same trunk converted without its MTP layer: the policy fits
    run("check", with_mtp, "-m", tiny("qwen35"), "--strict")


def test_real_model(run, model, tmp_path):
    out = tmp_path / "smollm2.json"
    run("make", "uniform", "--window", 1024, "-c", 8192, "-m", model, "-o", out)
    found = json.loads(out.read_text())
    assert found["model"]["n_layer"] == 30
    assert layers_of(out) == list(range(30))
    assert all((layer["n_head"], layer["n_head_kv"], layer["head_dim_k"]) == (9, 3, 64) for layer in found["model"]["layers"])
    assert found["operating_points"][0]["bytes"] == 30 * 3 * 1024 * 256
    assert found["operating_points"][0]["retention"] == 1024 / 8192

    report = json.loads(run("check", out, "-m", model, "--json").stdout)
    assert report["bytes_plain"] == 180 * MIB  # 30 layers x 3 heads x 8192 cells x 256 bytes
    assert report["bytes"] == sum(group["k_bytes"] + group["v_bytes"] for group in report["groups"])
    assert report["bytes_saved"] == report["bytes_plain"] - report["bytes"]
    assert report["warnings"] == []


@pytest.mark.parametrize("arch", SERVED)
def test_fingerprints_do_not_depend_on_loading(program, tiny, arch, tmp_path):
    result = subprocess.run([program("test-bridge-model"), tiny(arch)], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_fingerprints_do_not_depend_on_loading_mtp(program, tiny, tmp_path):
    result = subprocess.run([program("test-bridge-model"), tiny("qwen35", n_nextn=1)], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


def test_fingerprints_of_the_real_model_do_not_depend_on_loading(program, model, tmp_path):
    result = subprocess.run([program("test-bridge-model"), model], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("arch", tiny_gguf.ARCHS)
def test_tiny_models_run(program, tiny, arch):
    # the output itself is not looked at: llama-completion may exit before its log thread has printed the last words
    result = subprocess.run([program("llama-completion"), "-m", tiny(arch), "-p", "the cat", "-n", "1", "-c", "256", "-t", "1", "--temp", "0",
                             "-no-cnv", "--no-warmup"], capture_output=True, stdin=subprocess.DEVNULL, timeout=60)
    assert result.returncode == 0, result.stderr


def test_tiny_models_are_the_same_for_the_same_seed(tmp_path):
    files = [tmp_path / f"{i}.gguf" for i in range(3)]
    for file, seed in zip(files, (5, 5, 6)):
        tiny_gguf.make_model(file, "qwen35", seed)
    assert files[0].read_bytes() == files[1].read_bytes()
    assert files[0].read_bytes() != files[2].read_bytes()


#
# check
#


def test_check_by_hand(run, uniform, tiny):
    # 4 layers x 2 heads, 64+64 elements of 2 bytes: 256 bytes per head and cell
    # cells: 128 + 64 (rollback)
    file = uniform()
    report = json.loads(run("check", file, "-m", tiny("llama"), "--json").stdout)
    assert report["fits"] is True
    assert report["groups"] == [{"entry": 0, "window": 128, "type_k": "f16", "type_v": "f16", "n_layer": 4, "n_head": 8, "n_cells": 192,
                                 "k_bytes": 8 * 192 * 128, "v_bytes": 8 * 192 * 128}]
    assert (report["bytes"], report["bytes_plain"], report["bytes_saved"]) == (8 * 192 * 256, 8 * 1024 * 256, 8 * 832 * 256)

    text = run("check", file, "-m", tiny("llama")).stdout.splitlines()
    assert text[0] == f"{file}: point uniform-128 fits {tiny('llama')} (llama)"
    assert text[3:8] == [
        "      window  layers   heads        cells          MiB            bytes",
        "         128       4       8          192         0.38           393216",
        "       total               8                      0.38           393216",
        "       plain                                      2.00          2097152",
        "       saved                       81.25%         1.62          1703936",
    ]
    # the rest is tested in test_memory.py
    assert text[8] == ""
    assert text[9].split() == ["MiB", "weights", "KV", "compute", "total", "plain"]


def test_check_settings_by_hand(run, uniform):
    file = uniform()
    # 7 positions to take back, no padding: 128 + 7 cells; 4 streams of 1024 cells each
    report = json.loads(run("check", file, "--json", "-c", 4096, "-np", 4, "--no-kv-unified", "--rollback", 7, "--pad", 1).stdout)
    assert (report["n_stream"], report["n_ctx_seq"]) == (4, 1024)
    assert report["groups"][0]["n_cells"] == 135
    assert report["bytes"] == 4 * 8 * 135 * 256
    assert report["bytes_plain"] == 4 * 8 * 1024 * 256
    # q8_0: 34 bytes for 32 elements
    report = json.loads(run("check", file, "--json", "-ctk", "q8_0", "--pad", 256).stdout)
    assert report["groups"][0]["n_cells"] == 256
    assert report["groups"][0]["k_bytes"] == 8 * 256 * 68
    assert report["groups"][0]["v_bytes"] == 8 * 256 * 128


def test_check_rollback_beyond_the_context(run, uniform):
    file = uniform()
    result = run("check", file, "--rollback", 1025, code=1)
    assert result.stderr == f"llama-kv-policy: {file}: found a rollback of 1025 positions, expected at most the context of a sequence, 1024\n"
    run("check", file, "--rollback", 1024)


def test_check_without_flash_attention_pads_v_to_the_widest_layer(run, tiny, uniform):
    # gemma4's sliding-window heads made wider than the full ones: 2 heads x 128 instead of 2 x 64 elements of V
    file = uniform("gemma4", head_dim_swa=128)
    model = tiny("gemma4", head_dim_swa=128)
    on = json.loads(run("check", file, "-m", model, "--json").stdout)
    off = json.loads(run("check", file, "-m", model, "--json", "-fa", "off").stdout)
    assert on["bytes_plain"] == 2 * 1024 * (128 + 128) * 2
    assert off["bytes_plain"] == 2 * 1024 * (128 + 256) * 2


def test_check_without_a_model_uses_the_policy(run, scores_file):
    lines = run("check", scores_file).stdout.splitlines()
    assert lines[0] == f"{scores_file}: point base is valid; not compared with a model (-m)"
    report = json.loads(run("check", scores_file, "--json").stdout)
    assert [group["window"] for group in report["groups"]] == ["full", 256, 1024]
    assert [group["n_head"] for group in report["groups"]] == [1, 2, 1]
    assert report["model"] is None


def test_check_warns(run, uniform, tiny):
    file = uniform()
    result = run("check", file, "-m", tiny("llama"), "-c", 8192, "-ctv", "f32")
    assert result.stderr.splitlines() == [
        f"llama-kv-policy: warning: {file}: cache types are f16/f32, the windows were chosen with f16/f16",
        f"llama-kv-policy: warning: {file}: context is 8192, the windows were chosen for 1024",
        f"llama-kv-policy: warning: {file}: context per sequence is 8192, the model was trained for 4096",
    ]
    assert run("check", file, "-m", tiny("llama")).stderr == ""


def test_check_other_quantisation_is_a_warning_or_an_error(run, uniform, tiny):
    file = uniform()
    other = tiny("llama", dtype="f16")
    assert run("check", file, "-m", other).stderr.startswith(f"llama-kv-policy: warning: {file}: ")
    assert "warning" not in run("check", file, "-m", other, "--strict", code=1).stderr


def test_check_other_model_is_code_1(run, uniform, tiny):
    file = uniform()
    result = run("check", file, "-m", tiny("qwen3"), code=1)
    assert result.stderr == f'llama-kv-policy: {file}: $.model.architecture: found "llama", expected "qwen3" as the model has it\n'
    assert result.stdout == ""

    result = run("check", file, "-m", tiny("llama", n_head_kv=4), code=1)
    assert "$.model.layers[0].n_head_kv: found 2, expected 4" in result.stderr
    # the same heads, but another network: only the fingerprint tells
    result = run("check", file, "-m", tiny("llama", n_ff=512), "--json", code=1)
    report = json.loads(result.stdout)
    assert report["fits"] is False
    assert "fingerprint" in report["error"]


def test_check_log_only_when_asked(run, uniform, tiny):
    file = uniform()
    assert "llama_model_loader" in run("check", file, "-m", tiny("llama"), "-v").stderr


#
# all together
#


@pytest.mark.parametrize("arch", SERVED)
def test_make_check_show_diff(run, tiny, uniform, tmp_path, arch):
    one = uniform(arch)
    two = tmp_path / "two.json"
    n_full = len(tiny_gguf.full_layers(arch))
    run("make", "layers", "--windows", ",".join(["full"] * (n_full - 1) + ["128"]), "-c", 1024, "-m", tiny(arch), "-o", two)

    report = json.loads(run("check", two, "-m", tiny(arch), "--json", "--strict").stdout)
    assert [(group["window"], group["n_head"]) for group in report["groups"]] == [("full", 2 * (n_full - 1)), (128, 2)]

    out = run("show", two).stdout
    for il in tiny_gguf.full_layers(arch)[:-1]:
        assert re.search(rf"^ +{il}  F F$", out, re.MULTILINE)
    assert re.search(rf"^ +{tiny_gguf.full_layers(arch)[-1]}  1 1$", out, re.MULTILINE)

    result = run("diff", one, two, code=1)
    assert result.stdout.splitlines()[-1] == f"{2 * (n_full - 1)} of {2 * n_full} heads differ: {2 * (n_full - 1)} longer, 0 shorter in the second"
    run("diff", one, one)
