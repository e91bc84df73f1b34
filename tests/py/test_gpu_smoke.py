"""scripts/gpu-smoke: what it prints and how it ends, on the CPU and on a device."""

import re

import pytest
import tiny_gguf

from headwisekv import smoke


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Stands for a trained one; its sliding windows are in the cache and not in the plan."""
    path = tmp_path_factory.mktemp("smoke") / "gemma.gguf"
    tiny_gguf.make_model(path, "gemma3", seed=3)
    return path


def fake_build(folder, script):
    (folder / "bin").mkdir(parents=True)
    for name in smoke.PROGRAMS:
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (folder / "bin" / name).chmod(0o755)
    return folder


@pytest.mark.unit
def test_usage(tmp_path, capsys):
    assert smoke.main(["--build", str(tmp_path), "--model", "none"]) == 2
    assert re.search(r"found no bin/ with bridge-test.* in .*; docs/building.md", capsys.readouterr().err)
    for wrong in ([], ["--model", "m", "--context", "10"], ["--model"], ["--model", "m", "more"]):
        with pytest.raises(SystemExit) as usage:
            smoke.main(wrong)
        assert usage.value.code == 2


@pytest.mark.unit
def test_the_first_build_with_programs_is_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(smoke, "ROOT", tmp_path)
    fake_build(tmp_path / "build", "exit 0")
    (tmp_path / "build-cuda" / "bin").mkdir(parents=True)
    assert smoke.find_programs(None) == tmp_path / "build" / "bin"
    fake_build(tmp_path / "build-vulkan", "exit 0")
    assert smoke.find_programs(None) == tmp_path / "build-vulkan" / "bin"


@pytest.mark.unit
def test_a_device_that_fails_is_in_the_table(tmp_path, capsys):
    """Every check says how it failed, and the others go on."""
    build = fake_build(tmp_path / "build", 'echo "no kernel image is available" >&2; exit 9')
    assert smoke.main(["--build", str(build), "--quick", "--model", __file__]) == 1
    out = capsys.readouterr().out
    assert "| llama, f16 | llama-kv-policy ended with code 9: no kernel image is available | no error | failed |" in out
    assert "| bench | not run: there is no trained model | no error | failed |" in out
    assert re.search(r"^0 of \d+ checks are good, \d+ failed$", out, re.MULTILINE)


@pytest.mark.bridge
def test_on_this_build(program, model, capsys):
    command = ["--build", str(program("bridge-test").parents[1]), "--quick", "--model", str(model), "--context", "1024"]
    assert smoke.main(command) == 0
    out = capsys.readouterr().out
    assert out.count("| failed |") == 0 and re.search(r"^(\d+) of \1 checks are good$", out, re.MULTILINE)
    for row in (r"\| exact: random qwen35, q8_0 \| largest KL \S+ \| at most 2e-05 \| ok \|", r"\| exact: trained model, f16 \|",
                r"\| cache allocated \| ([\d.]+) MiB \| \1 MiB predicted; plain [\d.]+ \| ok \|", r"\| decode of 8 at 0, windows \| [\d.]+ \+-"):
        assert re.search(row, out), row
    assert "none: all of this ran on the CPU" in out or "| device |" in out


@pytest.mark.bridge
def test_what_is_not_exact_fails(program, model, monkeypatch, capsys):
    monkeypatch.setattr(smoke, "ROUNDING", {"f16": 0.0, "q8_0": 1.0})
    monkeypatch.setattr(smoke, "ONE_KEY", 1.0)
    command = ["--build", str(program("bridge-test").parents[1]), "--quick", "--model", str(model), "--context", "1024"]
    assert smoke.main(command) == 1
    out = capsys.readouterr().out
    assert out.count("| failed |") == 3 and "3 failed" in out.splitlines()[-1]


@pytest.mark.bridge
def test_what_was_checked_until_the_end_is_printed(program, model, monkeypatch, capsys):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(smoke.Smoke, "notices", interrupted)
    assert smoke.main(["--build", str(program("bridge-test").parents[1]), "--quick", "--model", str(model), "--context", "1024"]) == 130
    done = capsys.readouterr()
    assert "| exact: random llama, f16 |" in done.out and "interrupted: the table has" in done.err


@pytest.mark.gpu
@pytest.mark.timeout(1800)
def test_on_the_device(program, model, capsys):
    """With a small model for the trained one, which takes ten minutes on a device in software."""
    assert smoke.main(["--build", str(program("bridge-test").parents[1]), "--quick", "--model", str(model), "--context", "1024"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"\| device \| (\w+): ", out) and "ran on the CPU" not in out
    assert re.search(r"\| the cache is on \| (\w+) \| \1 \| ok \|", out)
