"""scripts/eval: caches of equal bytes, the plan of a long run, and a short version of all of it with a tiny model."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import tiny_gguf
from server_process import ROOT, need_program

from headwisekv import programs, stats
from headwisekv.core import Failure
from headwisekv.evaluate import __main__ as cli
from headwisekv.evaluate import caches, perplexity, plan, rivals, run_all, run_rivals
from headwisekv.texts import of_folder

LAYERS = [{"head_dim_k": 64, "head_dim_v": 64, "n_head_kv": 3}] * 4
GEOMETRY = rivals.Geometry(LAYERS, 4096, 64, 64)
CELL = 2 * 128  # bytes of a head's K and V


#
# equal bytes
#

@pytest.mark.unit
def test_cells_are_the_runtimes():
    assert [GEOMETRY.cells(window) for window in (1, 64, 65, 4000, 4096, "full")] == [128, 128, 192, 4096, 4096, 4096]
    assert GEOMETRY.bytes([[64, "full", 256]] * 4) == 4 * CELL * (128 + 4096 + 320)


@pytest.mark.unit
@pytest.mark.parametrize("share", [0.05, 0.2, 0.31, 0.5, 0.77])
def test_a_rival_has_the_bytes_and_less_than_a_step_more(share):
    target = int(share * GEOMETRY.bytes([["full"] * 3] * 4))
    window = rivals.match_uniform(GEOMETRY, target)
    taken = GEOMETRY.bytes([[window] * 3] * 4)
    assert target <= taken < target + 12 * 64 * CELL
    assert GEOMETRY.cells(window + 1) > GEOMETRY.cells(window)  # no longer one fits into these cells

    scores = [[0.5 + 0.1 * il + 0.05 * i for i in range(3)] + [1.0] for il in range(4)]
    windows = rivals.match_layers(GEOMETRY, rivals.choices_of_scores(scores, [256, 1024, 2048, "full"]), target)
    assert target <= GEOMETRY.bytes(GEOMETRY.layer_rows(windows)) < target + 3 * 64 * CELL or set(windows) == {256}
    in_order = [GEOMETRY.cells(window) for window in windows]
    assert in_order == sorted(in_order, reverse=True)  # the layer with the lowest scores needs most

    n_full = rivals.match_duo(GEOMETRY, 256, target)
    rows = [256] * (12 - n_full) + ["full"] * n_full
    taken = GEOMETRY.bytes([rows[:3], rows[3:6], rows[6:9], rows[9:]])
    assert target <= taken < target + (4096 - 320) * CELL or n_full == 0


@pytest.mark.unit
def test_too_many_bytes_for_a_window_is_full():
    assert rivals.match_uniform(GEOMETRY, GEOMETRY.bytes([["full"] * 3] * 4)) == "full"


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
def test_verdict_needs_an_interval_that_leaves_out_zero():
    def found(mean, half):
        return {"mean": mean, "half": half, "n": 8}
    row = {"kl_to_ours": found(0.02, 0.01), "needle_to_ours": found(0.5, 0.6)}
    assert run_rivals.verdict(row) == "KL: ours, needle: undecided"
    row = {"kl_to_ours": found(-0.02, 0.01), "needle_to_ours": found(-0.7, 0.6)}
    assert run_rivals.verdict(row) == "KL: it, needle: ours"
    row = {"kl_to_ours": {"mean": None, "half": None, "n": 0}, "needle_to_ours": {"mean": 0.3, "half": None, "n": 1}}
    assert run_rivals.verdict(row) == "KL: undecided, needle: undecided"


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
    made = dict(points=["big", "small"], all_points=["big", "mid", "small"], lengths=[512, 4096], depths=[0, 50, 100], context=4096, chunks=8, ruler_examples=10,
                needle_examples=10, rival_depths=[0, 50, 100], rival_examples=4, kl_targets=["big", "mid", "small"], needle_targets=["big", "mid", "small"], verify_context=8192,
                verify_chunks=4, systems_contexts=[2048, 4096, 8192], repetitions=3)
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
    assert stage == "needle" and "needle likelihood of rivals at big and small only" in text and made.needle_targets == ["big", "small"]
    assert made.ruler_examples == 10  # the last to go
    assert capsys.readouterr().err.splitlines() == [f"left out to stay within the limit: {text}" for _, text in made.dropped]
    # there is time after all
    plan.replan(made, some_plan(), 2 * whole, seconds)
    assert made == some_plan() and f"not left out after all: {text}" in capsys.readouterr().err

    least = some_plan()
    plan.replan(least, some_plan(), 1.0, seconds)
    assert least.ruler_examples == 3 and least.chunks == 8 and least.rival_depths == [0, 50] and "capacity" in least.skipped
    assert "are left to do, more than the 0.0 min of the limit" in capsys.readouterr().err


@pytest.mark.unit
def test_stages_that_began_stay_as_they_are():
    made = some_plan(needle_examples=3, dropped=[["needle", "some"], ["ruler", "others"]], ruler_examples=5)
    plan.replan(made, some_plan(), 1e9, seconds, began=["needle"])
    assert (made.needle_examples, made.ruler_examples, made.dropped) == (3, 10, [["needle", "some"]])
    plan.replan(made, some_plan(), 1.0, seconds, began=["rivals", "needle"])
    assert (made.needle_examples, made.kl_targets, made.needle_targets) == (3, ["big", "mid", "small"], ["big", "mid", "small"])
    assert plan.from_json(json.loads(json.dumps(plan.to_json(made)))) == made


@pytest.mark.unit
def test_time_that_is_left_makes_up_for_what_was_left_out(monkeypatch):
    ran = []

    def left_out():
        return SimpleNamespace(
            plan=some_plan(ruler_examples=5, systems_contexts=[2048], dropped=[["systems", "a"], ["rivals", "b"], ["ruler", "c"]], kl_targets=["big"], needle_targets=["big"]),
            data={"done": ["ruler", "rivals", "systems"], "spent": {"ruler": 100.0, "systems": 100.0, "rivals": 10.0}}, speeds=lambda: (SPEED, SPEED))

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
    assert state.plan.dropped == [["rivals", "b"]] and state.plan.kl_targets == ["big"]
    ran.clear()
    run_all.make_up(None, state, None, 1e9)
    assert ran == []

    state = left_out()
    run_all.make_up(None, state, None, 210.0 + 110.0)  # enough for one
    assert ran == ["ruler"] and state.plan.dropped == [["systems", "a"], ["rivals", "b"]]
    assert plan.restored(some_plan(kl_targets=["big"]), some_plan(), "needle").needle_targets == ["big"]


#
# with programs
#

@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A tiny model and a policy with scores for it."""
    folder = tmp_path_factory.mktemp("rivals")
    tiny_gguf.make_model(folder / "tiny.gguf", "llama", seed=1)
    text = folder / "text.txt"
    text.write_text("".join(f"In the year {n} the river rose to {n * 7 % 90} feet, and the town of mill {n % 13} was under water again.\n" for n in range(600)))
    subprocess.run([need_program("llama-seqcalib"), "-m", folder / "tiny.gguf", "-f", text, "-c", "1024", "--windows", "128,256", "--tau", "0.7", "-t", "1",
                    "-o", folder / "policy.json"], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A data folder of our own with the names of the shared one."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "books").mkdir()
    (folder / "ruler").mkdir()
    for name in ("essay-1", "sherlock-holmes", "pride-and-prejudice"):
        (folder / "books" / f"{name}.txt").write_text("".join(f"The {name} said on day {n} that birds often walk under light stones.\n" for n in range(1200)))
    (folder / "ruler" / "adjectivelist.txt").write_text("warm\ncold\n")
    (folder / "ruler" / "nounlist.txt").write_text("lamp\nhill\n")
    return folder


@pytest.mark.bridge
def test_allocated_bytes_of_rivals(tiny, tmp_path):
    maker = rivals.Maker(need_program("llama-kv-policy").parent, tiny / "tiny.gguf", tiny / "policy.json", 1024, tmp_path)
    configs = {config.series: config for config in maker.all(["tau-0.7"])}
    assert list(configs) == ["full", "ours", "q8_0", "q4_0", "uniform", "streaming", "layers", "duo", "ours-q8_0"]
    ours = configs["ours"]
    assert ours.bytes < configs["full"].bytes == maker.plain
    for series in ("uniform", "streaming", "layers", "duo"):
        policy = json.loads(open(configs[series].policy).read())
        rows = policy["operating_points"][0]["entries"]
        # what llama-kv-policy predicts is what the matching counted with
        assert configs[series].bytes == maker.geometry.bytes(rows) >= ours.bytes
        assert configs[series].over == configs[series].bytes / ours.bytes - 1 < 0.5
        assert policy["sinks"] == (0 if series == "uniform" else 4)
    assert configs["q8_0"].bytes == configs["full"].bytes * 34 // 64 and configs["q4_0"].bytes == configs["full"].bytes * 18 // 64
    assert configs["ours-q8_0"].bytes == ours.bytes * 34 // 64
    assert configs["ours-q8_0"].arguments()[:4] == ["-ctk", "q8_0", "-ctv", "q8_0"] and configs["full"].arguments() == []


@pytest.mark.bridge
def test_a_calibration_by_layers_is_used(tiny, tmp_path):
    tool = need_program("llama-kv-policy")
    windows = ["128", "512", "full", "256"]
    programs.run(tool, "make", "layers", "-o", tmp_path / "layers.json", "-m", tiny / "tiny.gguf", "-c", 1024, "--windows", ",".join(windows), "--sinks", 4)

    def layers(**more):
        maker = rivals.Maker(tool.parent, tiny / "tiny.gguf", tiny / "policy.json", 1024, tmp_path, **more)
        return maker, next(config for config in maker.all(["tau-0.7"]) if config.series == "layers")

    plain, by_scores = layers()
    maker, found = layers(layers=tmp_path / "layers.json")
    assert (by_scores.note, found.note) == ("mean scores of tau-0.7", "calibrated by layers")
    assert plain.identity == plain.hash != maker.identity
    rows = json.loads(open(found.policy).read())["operating_points"][0]["entries"]
    # widened or cut to the same bytes, the layers that need most still have most
    cells = [maker.geometry.cells(row[0]) for row in rows]
    assert cells[0] <= cells[3] <= cells[1] <= cells[2]
    by_heads = json.loads((tiny / "policy.json").read_text())
    by_heads["operating_points"][0]["entries"][0][:2] = [128, "full"]
    (tmp_path / "heads.json").write_text(json.dumps(by_heads))
    with pytest.raises(Failure, match="no operating point with one window a layer"):
        layers(layers=tmp_path / "heads.json")


def all_command(tiny, data, out):
    return ["all", "--model-file", tiny / "tiny.gguf", "--policy", tiny / "policy.json", "--programs", need_program("llama-server").parent, "--data", data,
            "--out", out, "--page", out / "page.md", "--threads", "1", "--lengths", "1024", "--depths", "0,100", "--needle-examples", "1",
            "--rival-examples", "1", "--chunks", "2", "--verify-chunks", "1", "--skip", "systems,capacity,ruler"]


@pytest.mark.bridge
@pytest.mark.timeout(240)
def test_everything_survives_a_kill(tiny, data, tmp_path, capsys):
    out = tmp_path / "out"
    command = list(map(str, all_command(tiny, data, out)))
    env = dict(os.environ, PYTHONPATH=str(ROOT / "scripts"))
    process = subprocess.Popen([sys.executable, "-m", "headwisekv.evaluate", *command], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    kl = out / "rivals" / "kl.jsonl"
    deadline = time.monotonic() + 120
    while not (kl.exists() and kl.read_text().count("\n") >= 4) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL, errors
    assert re.search(r"estimate: [\d.]+ min in all, limit 120 min: verify .*, rivals .*, needle", errors)
    assert "Not finished" not in (out / "page.md").read_text() and "## Equal bytes\n\nNot measured yet." in (out / "page.md").read_text()
    before = kl.read_text().splitlines()

    assert cli.main(command) == 0
    errors = capsys.readouterr().err
    assert f"KL: {len(before) - 1} of 18 are done already" in errors and "going on in" in errors
    assert kl.read_text().splitlines()[:len(before)] == before
    page = (out / "page.md").read_text()
    assert page.count("Left out.") == 3 and "failed" not in page.replace("| failed |", "")
    assert re.search(r"\| full \|  \| [\d.]+ \| -?0\.00000 ± ", page)  # the full cache from itself
    assert re.search(r"\| tau-0\.7 \| StreamingLLM \| \+[\d.]+% \| -?[\d.]+ ± [\d.]+ \| -?[\d.]+ ± [\d.]+ \|", page)
    assert "AdaKV" in page and "HeadKV-R2" in page and "![Loss against bytes](page/rivals.png)" in page
    results = json.loads((out / "page" / "results.json").read_text())
    rows = {row["series"]: row for row in results["sections"]["rivals"]["rows"]}
    assert all(row["kl"]["n"] == 2 and row["needle"]["n"] == 2 and row["kl_failed"] == row["needle_failed"] == 0 for row in rows.values())
    assert 0 <= rows["q8_0"]["kl"]["mean"] < rows["q4_0"]["kl"]["mean"] < rows["ours"]["kl"]["mean"]
    assert {path.name for path in (out / "page").iterdir()} == {"results.json", "rivals.png", "needle.png"}
    assert all(path.read_bytes()[:4] == b"\x89PNG" for path in (out / "page").glob("*.png"))
    # llama-kv-verify and llama-perplexity look at other positions of other chunks, but at the same cache
    verify = results["sections"]["verify"]["points"][0]
    assert verify["kv_bytes"] == rows["ours"]["bytes"] and verify["kl"]["mean"] > 0

    assert cli.main([*command, "--chunks", "3"]) == 1
    assert "is of another run: asked is" in capsys.readouterr().err


@pytest.mark.bridge
def test_a_cache_that_cannot_be_served_counts_as_failed(tiny, data, tmp_path):
    setup = caches.Setup(need_program("llama-server").parent, tiny / "tiny.gguf", 1024, 1, of_folder(data), 42, tmp_path)
    broken = rivals.Config("broken", "ours", 1, policy=str(tmp_path / "none.json"))
    found = caches.measure_needles(setup, [broken], "x", lambda config: [(1024, 0, 0), (1024, 100, 0)])
    assert [record["error"] for record in found["broken"].values()] == [f"llama-server (broken) did not start, see {tmp_path / 'server.log'}"] * 2
    found = caches.measure_kl(setup, [broken], "x", 1)
    assert "llama-perplexity ended with code 1" in found["broken"][0]["error"]


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
