"""scripts/eval all: the plan of a long run, what it is made of, and a short version of it with a tiny model."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from eval_data import make_data, make_tiny
from server_process import ROOT, need_program

from headwisekv import stats
from headwisekv.core import Failure
from headwisekv.evaluate import __main__ as cli
from headwisekv.evaluate import caches, perplexity, plan, run_all
from headwisekv.evaluate.rivals import Config
from headwisekv.texts import of_folder


@pytest.mark.unit
@pytest.mark.parametrize("df, expected", [(1, 12.706), (2, 4.303), (7, 2.365), (30, 2.042), (1000, 1.962)])
def test_quantiles_of_student(df, expected):
    assert stats.t95(df) == pytest.approx(expected, abs=2e-3)


@pytest.mark.unit
def test_differences_are_paired():
    ours, theirs = {0: 1.0, 1: 5.0, 2: 9.0, 3: 7.0}, {0: 2.0, 1: 6.0, 2: 10.0, 9: 100.0}
    assert stats.difference(ours, theirs) == {"mean": 1.0, "half": 0.0, "n": 3}
    assert stats.half_width([4.0]) is None
    assert stats.half_width([0.0, 2.0]) == pytest.approx(12.706, abs=2e-3)


@pytest.mark.unit
def test_figures_of_llama_perplexity():
    text = ("Mean PPL(Q)                   :  29.5 ±   3.9\nMean PPL(base)                :  29.0 ±   3.9\nMean    KLD:  -0.000001 ±   0.000001\n"
            "99.0%   KLD:   0.000036\nSame top p: 98.500 ± 0.100 %\n")
    assert perplexity.read_figures(text) == {"perplexity": 29.5, "perplexity_full": 29.0, "kl": -1e-6, "kl_99": 3.6e-5, "same_top": pytest.approx(0.985)}
    with pytest.raises(Failure, match="gave no same_top"):
        perplexity.read_figures(text.split("Same")[0])
    with pytest.raises(Failure, match="gave no kl,"):
        perplexity.read_figures(text.replace("-0.000001 ±", "nan ±"))


@pytest.mark.unit
def test_chunks_are_apart_and_short_texts_are_said(tmp_path):
    setup = caches.Setup(tmp_path, __file__, 128, 1, of_folder(tmp_path), 1, tmp_path / "out")
    texts = [tmp_path / "a.txt", tmp_path / "b.txt"]
    for i, path in enumerate(texts):
        path.write_text("".join(f"line {i} {n}\n" for n in range(1000)))
    chunks, found = caches.cut_chunks(setup, 4, texts)
    pieces = [path.read_text() for path in chunks]
    assert [piece.split("\n")[0][:6] for piece in pieces] == ["line 0", "line 1"] * 2 and len(set(pieces)) == 4
    assert caches.cut_chunks(setup, 4, texts)[1] == found != caches.cut_chunks(setup, 2, texts)[1]
    with pytest.raises(Failure, match=r"a.txt has \d+ characters, expected 15360 for 10 chunks"):
        caches.cut_chunks(setup, 20, texts)
    texts[0].write_text("no line ends here " * 1000)
    pieces = [path.read_text() for path in caches.cut_chunks(setup, 4, texts[:1])[0]]
    assert [len(piece) for piece in pieces] == [2 * 128 * 6] * 4


#
# the plan
#

def some_plan(**changes):
    made = dict(points=["big", "small"], all_points=["big", "mid", "small"], lengths=[512, 4096], depths=[0, 50, 100], context=4096, ruler_examples=10, needle_examples=10,
                verify_context=8192, verify_chunks=4, systems_contexts=[2048, 4096, 8192], repetitions=3)
    return plan.Plan(**{**made, **changes})


SPEED = plan.Speed(0.002, 1e-7, 0.01, 1e-6)


def seconds(made):
    return sum(plan.estimate(made, SPEED, SPEED).values())


@pytest.mark.unit
def test_speed_goes_through_both_measurements():
    speed = plan.Speed.fit((256, SPEED.prefill(256), SPEED.decode(1, 256)), (4096, SPEED.prefill(4096), SPEED.decode(1, 4096)))
    assert vars(speed) == pytest.approx(vars(SPEED))
    slower_start = plan.Speed.fit((256, 5.0, 0.2), (4096, 10.0, 0.1))  # a cold machine: nothing may become negative
    assert slower_start.prefill(4096) == pytest.approx(10.0) and min(vars(slower_start).values()) >= 0


@pytest.mark.unit
def test_what_does_not_fit_is_left_out_and_named(capsys):
    made = some_plan()
    whole = seconds(made)
    plan.replan(made, some_plan(), 2 * whole, seconds)
    assert made == some_plan() and capsys.readouterr().err == ""
    plan.replan(made, some_plan(), whole * 0.9, seconds)
    assert seconds(made) <= whole * 0.9 and len(made.dropped) >= 1
    stage, text = made.dropped[0]
    assert (stage, text, made.verify_chunks) == ("verify", "llama-kv-verify on 2 chunks", 2)
    assert made.ruler_examples == 10  # the last to go
    assert capsys.readouterr().err.splitlines() == [f"left out to stay within the limit: {text}" for _, text in made.dropped]
    # there is time after all
    plan.replan(made, some_plan(), 2 * whole, seconds)
    assert made == some_plan() and f"not left out after all: {text}" in capsys.readouterr().err

    least = some_plan()
    plan.replan(least, some_plan(), 1.0, seconds)
    assert least.ruler_examples == 3 and least.needle_examples == 2 and "capacity" in least.skipped
    assert "are left to do, more than the 0.0 min of the limit" in capsys.readouterr().err


@pytest.mark.unit
def test_stages_that_began_stay_as_they_are():
    made = some_plan(needle_examples=3, dropped=[["needle", "some"], ["ruler", "others"]], ruler_examples=5)
    plan.replan(made, some_plan(), 1e9, seconds, began=["needle"])
    assert (made.needle_examples, made.ruler_examples, made.dropped) == (3, 10, [["needle", "some"]])
    plan.replan(made, some_plan(), 1.0, seconds, began=["verify", "needle"])
    assert (made.needle_examples, made.verify_chunks, made.ruler_examples) == (3, 4, 3)
    assert plan.from_json(json.loads(json.dumps(plan.to_json(made)))) == made


@pytest.mark.unit
def test_time_that_is_left_makes_up_for_what_was_left_out(monkeypatch):
    ran = []

    def left_out():
        return SimpleNamespace(
            plan=some_plan(ruler_examples=5, systems_contexts=[2048], dropped=[["systems", "a"], ["verify", "b"], ["ruler", "c"]]),
            data={"done": ["ruler", "verify", "systems"], "spent": {"ruler": 100.0, "systems": 100.0, "verify": 10.0}}, speeds=lambda: (SPEED, SPEED))

    def run_stage(stage, options, state, maker):
        ran.append(stage)
        state.data["done"].append(stage)
        state.data["spent"][stage] *= 2

    monkeypatch.setattr(run_all, "new_plan", lambda options, maker: some_plan())
    monkeypatch.setattr(run_all, "run_stage", run_stage)
    monkeypatch.setattr(run_all.results_page, "write", lambda *arguments: None)

    state = left_out()
    run_all.make_up(None, state, None, 1e9)
    assert ran == ["ruler", "systems"] and (state.plan.ruler_examples, state.plan.systems_contexts) == (10, [2048, 4096, 8192])
    assert state.plan.dropped == [["verify", "b"]]
    ran.clear()
    run_all.make_up(None, state, None, 1e9)
    assert ran == []

    state = left_out()
    run_all.make_up(None, state, None, 210.0 + 110.0)  # enough for one
    assert ran == ["ruler"] and state.plan.dropped == [["systems", "a"], ["verify", "b"]]
    assert plan.restored(some_plan(needle_examples=2), some_plan(), "needle").needle_examples == 10


#
# with programs
#

@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return make_tiny(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return make_data(tmp_path_factory.mktemp("data"))


def all_command(tiny, data, out):
    return ["all", "--model-file", tiny / "tiny.gguf", "--policy", tiny / "policy.json", "--programs", need_program("llama-server").parent, "--data", data,
            "--out", out, "--page", out / "page.md", "--threads", "1", "--lengths", "1024", "--depths", "0,100", "--needle-examples", "2",
            "--verify-chunks", "2", "--skip", "systems,capacity,ruler"]


@pytest.mark.bridge
@pytest.mark.timeout(240)
def test_everything_survives_a_kill(tiny, data, tmp_path, capsys):
    out = tmp_path / "out"
    command = list(map(str, all_command(tiny, data, out)))
    env = dict(os.environ, PYTHONPATH=str(ROOT / "scripts"))
    process = subprocess.Popen([sys.executable, "-m", "headwisekv.evaluate", *command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    needles = out / "needle" / "needle.jsonl"
    deadline = time.monotonic() + 120
    while not (needles.exists() and needles.read_text().count("\n") >= 3) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL, errors
    assert re.search(r"estimate: [\d.]+ min in all, limit 120 min: verify .*, needle", errors)
    assert "Not finished" not in (out / "page.md").read_text() and "## Needle likelihood\n\nNot measured yet." in (out / "page.md").read_text()
    before = needles.read_text().splitlines()

    assert cli.main(command) == 0
    errors = capsys.readouterr().err
    assert f"needle: {len(before) - 1} of 8 are done already" in errors and "going on in" in errors
    assert needles.read_text().splitlines()[:len(before)] == before
    page = (out / "page.md").read_text()
    assert page.count("Left out.") == 3 and "failed" not in page.replace("| failed |", "") and "(results-rivals.md)" in page
    results = json.loads((out / "page" / "results.json").read_text())
    lengths = results["sections"]["needle"]["lengths"]
    assert (lengths["all"]["n"], lengths["all"]["failed"]) == (4, 0) and lengths["all"]["full"]["logprob"] < 0
    assert {path.name for path in (out / "page").iterdir()} == {"results.json", "needle.png"}
    assert (out / "page" / "needle.png").read_bytes()[:4] == b"\x89PNG"
    verify = results["sections"]["verify"]["points"][0]
    assert verify["kv_bytes"] > 0 and verify["kl"]["mean"] > 0 and verify["kl"]["n"] == 2

    assert cli.main([*command, "--verify-chunks", "3"]) == 1
    assert "is of another run: asked is" in capsys.readouterr().err


@pytest.mark.bridge
def test_a_cache_that_cannot_be_served_counts_as_failed(tiny, data, tmp_path):
    setup = caches.Setup(need_program("llama-server").parent, tiny / "tiny.gguf", 1024, 1, of_folder(data), 42, tmp_path)
    broken = Config("broken", "ours", 1, policy=str(tmp_path / "none.json"))
    found = caches.measure_needles(setup, [broken], "x", [(1024, 0, 0), (1024, 100, 0)])
    assert [record["error"] for record in found["broken"].values()] == [f"llama-server (broken) did not start, see {tmp_path / 'server.log'}"] * 2
    with caches.Divergences(setup, "x", 1) as divergences:
        failed = []
        divergences.measure(0, [broken, Config("full", "full", 1)], failed.append)
        assert failed == [True, False] and not divergences.has(broken, 0)
        assert "llama-perplexity ended with code 1" in divergences.records(broken)[0]["error"]
    assert not (tmp_path / "logits.bin").exists()


@pytest.mark.bridge
def test_kl_is_measured_with_weights_in_f32(tiny, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HWKV_CACHE_DIR", str(tmp_path / "cache"))
    programs = need_program("llama-quantize").parent
    model = tmp_path / "small.gguf"
    subprocess.run([programs / "llama-quantize", tiny / "tiny.gguf", model, "Q8_0"], check=True, capture_output=True)
    setup = caches.Setup(programs, model, 1024, 1, of_folder(data), 42, tmp_path)
    exact = setup.f32()
    assert exact.is_f32 and exact.model.parent == tmp_path / "cache" and exact.model.stat().st_size > 2 * model.stat().st_size
    assert exact.identity("x") != setup.identity("x")  # results are never mixed
    made = exact.model.stat().st_mtime_ns
    assert setup.f32().model.stat().st_mtime_ns == made and len(list((tmp_path / "cache").iterdir())) == 1
    assert not setup.f32(wanted=False).is_f32
    assert setup.f32(wanted=False).model == model
    # what is F32 is taken as it is; what would be too large is not made
    assert caches.Setup(programs, tiny / "tiny.gguf", 1024, 1, of_folder(data), 42, tmp_path).f32().model == tiny / "tiny.gguf"
    monkeypatch.setattr("headwisekv.f32.MIB_MAX", 0)
    assert not setup.f32().is_f32
    assert "more than 0: KL is measured with those of the file" in capsys.readouterr().err


@pytest.mark.unit
def test_a_stage_with_failures_is_not_done():
    run_all.check_complete([{"kl": 1}, {"kl": 2}])
    with pytest.raises(Failure, match="2 of 3 failed, such as: too slow"):
        run_all.check_complete([{"kl": 1}, {"error": "too slow"}, {"error": "gone"}])


@pytest.mark.unit
def test_all_says_what_is_missing(tmp_path, capsys):
    for arguments, text in ((["--programs", tmp_path], "there is no"), (["--data", tmp_path, "--programs", tmp_path / "bin"], "found no essay-*.txt")):
        (tmp_path / "bin").mkdir(exist_ok=True)
        for name in ("llama-server", "llama-kv-policy", "llama-kv-verify", "llama-perplexity", "llama-quantize"):
            (tmp_path / "bin" / name).touch()
        assert cli.main(list(map(str, ["all", "--model-file", __file__, "--policy", __file__, "--out", tmp_path / "out", *arguments]))) == 1
        assert text in capsys.readouterr().err
    with pytest.raises(SystemExit) as usage:
        cli.main(["all", "--model-file", "x", "--policy", "y", "--skip", "rulers"])
    assert usage.value.code == 2 and "found stage 'rulers', expected some of capacity,verify" in capsys.readouterr().err
