"""scripts/bench: the arithmetic of the speed bench, its policies, and a short run. How fast anything is is not tested."""

import json
import math
import re
import signal
import subprocess
import sys
import time

import pytest
import tiny_gguf
from server_process import ROOT, need, need_program

from headwisekv import stats
from headwisekv.bench import policies, speed_report, speed_stats

BENCH = ROOT / "scripts" / "bench"

pytestmark = pytest.mark.bridge


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "tiny.gguf"
    tiny_gguf.make_model(path, "llama", seed=1)
    return path


@pytest.fixture
def speed(tiny, tmp_path):
    """Starts the bench on a tiny model; what it writes is in tmp_path."""
    need_program("speed-run")
    need(ROOT / "build" / "pristine" / "bin" / "speed-run", "run scripts/setup build cpu bench-programs")

    def start(*args):
        command = [sys.executable, BENCH, "speed", "--model", tiny, "--out", tmp_path, "--wait", "0", "--threads", "1",
                   "--n-prefill", "16", "--n-decode", "4", *args]
        return subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def run(*args, code=0):
        child = start(*args)
        out, err = child.communicate(timeout=120)
        assert child.returncode == code, err
        return out, err

    run.start = start
    return run


def data_of(folder):
    return json.loads((folder / "speed.json").read_text())


def sample(n, row, depth, prefill, decode):
    return {"round": n, "row": row, "depth": depth, "prefill_s": prefill, "decode_s": decode, "others_cpus": 0.0}


#
# arithmetic
#

def test_interval_of_made_up_ratios():
    # logarithms -a, 0, a: mean 0, deviation a, t(2) = 4.303
    a = 0.01
    found = speed_stats.estimate([math.exp(-a), 1.0, math.exp(a)])
    assert found.ratio == pytest.approx(1.0)
    assert found.half == pytest.approx(math.exp(4.303 * a / math.sqrt(3)) - 1)
    assert found.n == 3
    assert found.decided(3) and not found.decided(4)
    assert not speed_stats.estimate([math.exp(-2 * a), 1.0, math.exp(2 * a)]).decided(3)


def test_interval_is_the_same_for_a_ratio_and_its_inverse():
    ratios = [1.9, 2.2, 2.0, 2.4]
    up, down = speed_stats.estimate(ratios), speed_stats.estimate([1 / r for r in ratios])
    assert up.ratio == pytest.approx(1 / down.ratio)
    assert up.half == pytest.approx(down.half)


def test_single_wild_rounds_do_not_count():
    ratios = [2.0, 2.02, 1.98, 2.01, 1.99, 2.0, 2.02, 1.98]
    calm, wild = speed_stats.estimate([*ratios, 2.0, 2.0]), speed_stats.estimate([*ratios, 9.0, 0.3])
    assert wild.ratio == pytest.approx(calm.ratio, rel=0.01)
    assert wild.half < 0.03
    # logarithms -2, -1, 0, 1, 2 (times a): the outer two are cut, -1, -1, 0, 1, 1 has the squares 4, t(2) = 4.303
    a = 0.01
    found = speed_stats.estimate([math.exp(i * a) for i in (2, -2, 0, 1, -1)])
    assert found.ratio == pytest.approx(1.0)
    assert found.half == pytest.approx(math.exp(4.303 * a * math.sqrt(4 / (3 * 2))) - 1)


def test_one_round_has_no_interval_and_decides_nothing():
    found = speed_stats.estimate([1.5])
    assert (found.ratio, found.half, found.n) == (pytest.approx(1.5), None, 1)
    assert not found.decided(1)
    assert speed_stats.estimate([]) is None


def test_quantiles_go_on_smoothly_after_the_table():
    values = [stats.t95(df) for df in range(1, 200)]
    assert values == sorted(values, reverse=True)
    assert stats.t95(31) == pytest.approx(2.0395, abs=2e-4)  # from a table of t
    assert stats.t95(120) == pytest.approx(1.9799, abs=2e-4)


def test_ratio_uses_only_rounds_that_have_both_rows():
    samples = speed_stats.Samples([sample(1, "pristine", 0, 4.0, 2.0), sample(1, "plain", 0, 2.0, 1.0),
                                   sample(2, "pristine", 0, 4.0, 3.0), sample(3, "plain", 0, 0.1, 0.1)])
    found = samples.ratio("plain", "pristine", 0, "decode")
    assert (found.ratio, found.n) == (pytest.approx(2.0), 1)
    assert samples.ratio("plain", "pristine", 512, "decode") is None
    assert samples.last_round() == 3


def test_more_noise_needs_more_rounds():
    found = speed_stats.Estimate(1.0, 2 * speed_stats.BOUND, 5)
    assert speed_stats.rounds_needed(found) == 20
    assert speed_stats.rounds_needed(None) == 0


def made_up_data(spread):
    """Three rounds in which `plain` decodes twice as fast, give or take."""
    rows = {name: {"title": name, "policy": "none", "kernel": True, "kv_mib": 1.0, "n_nodes": n, "n_layer": 4, "peak_rss_mib": 9.0, "ideal": {"0": 1.0}}
            for name, n in (("pristine", 40), ("plain", 60))}
    samples = []
    for n, factor in enumerate((1 - spread, 1.0, 1 + spread), start=1):
        samples += [sample(n, "pristine", 0, 2.0, 2.0), sample(n, "plain", 0, 2.0, factor)]
    data = {"base": "pristine", "depths": [0], "min_rounds": 3, "noise_limit": 0.15, "rows": rows, "samples": samples, "ended": "round limit",
            "setting": {"model": "m", "threads": 2, "context": 512, "n_prefill": 16, "n_decode": 4}, "machine": {"cpu": "c", "n_cpus": 2}}
    data["results"] = speed_report.results_of(data)
    return data


def test_report_tells_decided_from_not_decided():
    quiet, noisy = speed_report.markdown(made_up_data(0.001)), speed_report.markdown(made_up_data(0.2))
    assert "| plain | 2.00 +-0.2% |" in quiet
    assert "not decided" not in quiet
    assert re.search(r"\| plain \| 2\.0\d \+-\d+\.\d% not decided \|", noisy)
    assert "1 of 2 ratios are not decided" in noisy
    assert "| plain | 1.0 | 9 | 60 | +5.0 |" in quiet
    assert "bytes alone" not in quiet  # no row has a policy
    assert "too noisy" not in noisy


def test_report_blames_other_programs_where_they_ran():
    for spread, blamed in ((0.001, False), (0.2, True)):
        data = made_up_data(spread)
        for taken in data["samples"]:
            taken["others_cpus"] = 0.5
        text = speed_report.markdown(data)
        assert "other programs used 0.50 CPUs" in text
        assert ("too noisy" in text) == blamed


def test_report_goes_between_the_marks_of_a_document(tmp_path):
    (tmp_path / "speed.json").write_text(json.dumps(made_up_data(0.001)))
    document = tmp_path / "doc.md"
    command = [sys.executable, BENCH, "report", tmp_path / "speed.json", "--into", document]
    document.write_text("before\n{}\nold\n{}\nafter\n".format(*speed_report.MARKS))
    assert subprocess.run(command, timeout=60).returncode == 0
    text = document.read_text()
    assert "| plain | 2.00 +-0.2% |" in text and "old" not in text
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert subprocess.run(command, timeout=60).returncode == 0
    assert document.read_text() == text

    document.write_text("no marks\n")
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 1 and "found no lines <!-- speed: begin -->" in done.stderr
    assert document.read_text() == "no marks\n"


#
# policies
#

def test_bench_policy_keeps_half(model, tmp_path):
    need_program("llama-kv-policy")
    policy = policies.make("bench", model, tmp_path / "a.json", program=need_program("llama-kv-policy"))
    point = policy["operating_points"][0]
    assert policy["context"] == 8192 and policy["sinks"] == 4
    assert abs(point["retention"] - 0.5) <= 0.01
    assert {window for row in point["entries"] for window in row} == {256, 1024, 4096, "full"}
    policies.make("bench", model, tmp_path / "b.json", program=need_program("llama-kv-policy"))
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_split_policy_has_a_window_for_each_head(tiny, tmp_path):
    policy = policies.make("split", tiny, tmp_path / "split.json", context=1024, program=need_program("llama-kv-policy"))
    assert policy["operating_points"][0]["entries"] == [[1023, 1022]] * 4


#
# runs
#

def test_smoke_run(speed, tmp_path):
    out, _ = speed("--smoke")
    assert out == (tmp_path / "speed.md").read_text()
    data = data_of(tmp_path)
    assert list(data["rows"]) == ["pristine", "bench"]
    assert data["depths"] == [0, 64] and data["ended"] == "round limit"
    assert {(s["round"], s["row"], s["depth"]) for s in data["samples"]} == {(1, row, depth) for row in data["rows"] for depth in (0, 64)}
    assert all(s["prefill_s"] > 0 and s["decode_s"] > 0 for s in data["samples"])
    assert {(r["row"], r["metric"], r["depth"], r["rounds"], r["decided"]) for r in data["results"]} == {
        ("bench", metric, depth, 1, False) for metric in ("prefill", "decode") for depth in (0, 64)}
    pristine, bench = data["rows"]["pristine"], data["rows"]["bench"]
    assert pristine["kv_mib"] == 16.0  # 4 layers x 2 heads x (64 + 64) x 2 bytes x 8192
    assert bench["kv_mib"] < pristine["kv_mib"]
    assert bench["n_nodes"] > pristine["n_nodes"] > 0
    assert all(row["peak_rss_mib"] > row["kv_mib"] for row in data["rows"].values())
    assert out.count("| depth 0 | depth 64 |") == 3  # decode, prefill, the ideal
    assert len(re.findall(r"^\| bench policy \| \d+\.\d\d not decided \| \d+\.\d\d not decided \|$", out, re.MULTILINE)) == 2
    assert "4 of 4 ratios are not decided" in out


def test_resume_adds_rounds_to_the_same_thing_only(speed, tmp_path):
    args = ("--rows", "plain", "--depths", "0", "--context", "512")
    speed(*args, "--rounds", "1")
    out, _ = speed(*args, "--rounds", "2", "--resume")
    assert [s["round"] for s in data_of(tmp_path)["samples"]] == [1, 1, 2, 2, 3, 3]
    assert "3 rounds" in out
    before = (tmp_path / "speed.json").read_bytes()
    _, err = speed("--rows", "plain", "--depths", "0", "--context", "768", "--rounds", "1", "--resume", code=1)
    assert "found context 512, expected 768" in err
    assert (tmp_path / "speed.json").read_bytes() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_keeps_finished_rounds(speed, tmp_path, number):
    child = speed.start("--rows", "plain", "--depths", "0", "--context", "512", "--rounds", "1000000", "--min-rounds", "1000000")
    while child.poll() is None and not (tmp_path / "speed.json").exists():
        time.sleep(0.02)
    assert child.poll() is None, child.communicate()
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 128 + number, err
    assert "interrupted" in err and "ended by: interrupted" in out
    data = data_of(tmp_path)
    by_row = [[s["round"] for s in data["samples"] if s["row"] == row] for row in ("pristine", "plain")]
    assert by_row[0] == by_row[1] == list(range(1, len(by_row[0]) + 1))
    assert len(by_row[0]) >= 1


@pytest.mark.parametrize("args, expected", [
    (("--rows", "plain,other"), "found row 'other', expected some of pristine,plain"),
    (("--threads", "100000"), "--threads is 100000, expected 1 to "),
    (("--depths", "500", "--context", "512"), "--context is 512, expected a multiple of 256 above"),
])
def test_wrong_usage_is_named(speed, args, expected):
    assert expected in speed(*args, code=2)[1]


def test_model_that_cannot_be_loaded_is_named(speed, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    _, err = speed("--model", path, "--rows", "plain", "--context", "512", "--depths", "0", code=1)
    assert err.splitlines()[-1].startswith("error: row pristine: speed-run ended with code 1: speed-run: cannot load the model")


@pytest.mark.parametrize("arguments, code", [([], 2), (["spead"], 2), (["--help"], 0), (["speed", "--help"], 0)])
def test_commands_of_the_bench(arguments, code):
    done = subprocess.run([BENCH, *arguments], capture_output=True, text=True, timeout=30)
    assert done.returncode == code and "speed" in done.stdout + done.stderr
