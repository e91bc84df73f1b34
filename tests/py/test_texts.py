"""Which text is used for what, and a clone with no data folder beside it that calibrates and measures all the same."""

import json
import os
import shutil
import subprocess
import sys
from types import SimpleNamespace

import pytest
from eval_stub import Stub
from fake_debian import prepare_cache, prose
from server_process import ROOT
from test_fetch import sha256

from headwisekv import texts
from headwisekv.bench import systems_run
from headwisekv.core import Failure

pytestmark = pytest.mark.unit


#
# the choice
#

@pytest.fixture
def lone(tmp_path, monkeypatch):
    """The module as if its clone were alone in a folder, with a fetched text in the cache; the clone's folder."""
    clone = tmp_path / "alone" / "clone"
    clone.mkdir(parents=True)
    prepare_cache(tmp_path / "cache")
    monkeypatch.setattr(texts, "ROOT", clone)
    monkeypatch.setenv("HWKV_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("TEXT", "DATA"):
        monkeypatch.delenv(name, raising=False)
    texts.of_debian.cache_clear()
    yield clone
    texts.of_debian.cache_clear()


def write_text(path, n=300):
    path.write_text("\n\n".join(prose("own text", n)) + "\n")
    return path


def test_parts_are_apart_and_in_order():
    whole = "\n\n".join(prose("text", 200)) + "\n"
    parts = texts.cut(whole)
    assert list(parts) == ["calibration", "held-out-1", "held-out-2", "essays"] and "".join(parts.values()) == whole
    lines = {name: set(part.split("\n\n")) for name, part in parts.items()}
    assert all(not lines[a] & lines[b] - {""} for a in lines for b in lines if a != b)
    assert all(part.startswith("The text says") for part in parts.values())
    assert [round(len(part) / len(whole), 1) for part in parts.values()] == [0.3, 0.2, 0.2, 0.3]
    for whole in ("no line ends here " * 2000, "x" * 20000):
        assert "".join(texts.cut(whole).values()) == whole and min(map(len, texts.cut(whole).values())) > 0.19 * len(whole)


def test_a_text_of_ones_own_comes_first(lone, tmp_path, monkeypatch):
    path = write_text(tmp_path / "my own text.txt")
    (tmp_path / "alone" / "shared" / "data").mkdir(parents=True)
    monkeypatch.setenv("TEXT", str(path))
    found = texts.choose()
    assert found.calibration == lone / "build" / "texts" / f"my-own-text-{sha256(path.read_bytes())[:12]}" / "my-own-text-calibration.txt"
    assert "".join(part.read_text() for part in (found.calibration, *found.held_out, *found.essays)) == path.read_text()
    record = found.record()
    assert (record["source"], record["sha256"], record["packages"]) == ("my own text.txt", sha256(path.read_bytes()), [])
    assert [len(record[use]) for use in ("calibration", "held_out", "essays")] == [1, 2, 1]
    assert record["essays"][0] == {"file": "my-own-text-essays.txt", "sha256": sha256(found.essays[0].read_bytes())}


def test_data_folders_come_before_debian(lone, tmp_path, monkeypatch):
    beside = tmp_path / "alone" / "shared" / "data"
    (beside / "books").mkdir(parents=True)
    (beside / "books" / "essay-1.txt").write_text("x")
    assert texts.choose().folder == beside and texts.choose().essays == (beside / "books" / "essay-1.txt",)
    monkeypatch.setenv("DATA", str(tmp_path / "other"))
    assert texts.choose().folder == tmp_path / "other" and texts.choose(data=beside).folder == beside
    monkeypatch.setenv("TEXT", "x")
    assert texts.choose(data=beside).folder == beside  # what is on the command line counts
    with pytest.raises(Failure, match="found a text .* and a data folder .* expected one of them"):
        texts.choose()


def test_debian_is_the_last_and_is_named_once(lone, capsys):
    found = texts.choose()
    assert texts.choose() is found
    assert capsys.readouterr().err.splitlines() == [
        f"no data folder beside this clone: the text is from Debian's hwkv-book 7.5 (sha256 {found.sha256[:12]})"]
    assert found.record()["packages"][0]["version"] == "7.5" and found.essays[0].read_text().startswith("The book says")


def test_texts_that_are_none(lone, tmp_path):
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 100)
    for path, message in ((tmp_path / "short.txt", "has 9 characters, expected at least 10000"), (tmp_path / "binary", "is not UTF-8 text"),
                          (tmp_path / "none", "cannot read .*none: No such file"), (tmp_path, "cannot read")):
        with pytest.raises(Failure, match=message):
            texts.choose(text=path)


def test_the_bench_begins_with_the_essays(lone, tmp_path):
    options = SimpleNamespace(server=__file__, model=tmp_path / "model", policy=None, points=None, text=None)
    options.model.touch()
    systems_run.check_options(options)
    assert options.text[0] == texts.choose().essays[0] and len({path.read_text() for path in options.text}) == 4
    assert systems_run.text_record(options)["source"] == "Debian's hwkv-book 7.5"


#
# a lone clone
#

@pytest.fixture
def clone(tmp_path):
    """A copy of scripts/ with stand-ins for setup, the calibrator and .venv; nothing is beside it but a cache with a text."""
    folder = tmp_path / "alone" / "clone"
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in {"scripts/setup": '[ "$1" != model ] || echo model.gguf\n',
                       "build/bin/llama-seqcalib": 'printf "%s\\n" "$*" >> calls.txt; [ ! -e fail ] || exit 3\n',
                       ".venv/bin/python": 'printf "%s\\n" "$*" >> calls.txt\n'}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("#!/bin/sh\n" + text)
        (folder / name).chmod(0o755)
    prepare_cache(tmp_path / "cache")
    return folder


def run_in(clone, *command, **env):
    clean = {name: value for name, value in os.environ.items() if name not in ("TEXT", "DATA", "CTX", "OUT", "THREADS")}
    clean.update(HWKV_CACHE_DIR=str(clone.parent.parent / "cache"), **env)
    return subprocess.run([sys.executable, *command], cwd=clone, env=clean, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120)


def calibrate(clone, **env):
    done = run_in(clone, "scripts/calibrate", **env)
    path = clone / "calls.txt"
    return done, path.read_text().splitlines() if path.exists() else []


def values(call, option):
    words = call.split()
    return [words[i + 1] for i, word in enumerate(words) if word == option]


def test_a_lone_clone_calibrates_on_debians_text(clone):
    done, calls = calibrate(clone)
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines()[0].startswith("no data folder beside this clone: the text is from Debian's hwkv-book 7.5")
    assert [values(call, "-o") for call in calls] == [[f"build/policies/smollm2-135m-instruct-8k{end}.json"] for end in ("", "-sinks0", "-layers")] + [["build/policies/head-map.png"]]
    for call in calls[:3]:
        assert values(call, "-c") == ["8192"] and values(call, "--windows") == ["256,512,1024,2048,4096"] and values(call, "--n-seq") == ["4"]
        assert values(call, "-f")[0].endswith("/debian-books-calibration.txt")
    assert [path.rpartition("/")[2] for path in values(calls[0], "--holdout-file")] == ["debian-books-held-out-1.txt", "debian-books-held-out-2.txt"]
    assert values(calls[2], "--holdout-file") == []
    record = json.loads((clone / "build" / "policies" / "texts.json").read_text())
    assert record["packages"][0]["package"] == "hwkv-book" and record["calibration"][0]["file"] == "debian-books-calibration.txt"
    assert not (clone / "policies").exists() and not (clone / "docs").exists()


def test_short_calibrations_with_a_text_of_ones_own(clone, tmp_path):
    text = write_text(tmp_path / "mine.txt")
    done, calls = calibrate(clone, TEXT=str(text), CTX="512", OUT="out/here", THREADS="1")
    assert done.returncode == 0, done.stderr
    assert values(calls[0], "-o") == ["out/here/smollm2-135m-instruct-512.json"] and values(calls[0], "-t") == ["1"]
    assert values(calls[0], "--windows") == ["16,32,64,128,256"] and values(calls[0], "-f")[0].endswith("/mine-calibration.txt")
    assert "no data folder" not in done.stderr and done.stderr.splitlines()[-1].endswith("make run POLICY=out/here/smollm2-135m-instruct-512.json CTX=512")
    work = values(calls[0], "--work")
    _, calls = calibrate(clone, TEXT=str(write_text(tmp_path / "mine.txt", 310)), CTX="512", OUT="out/here")
    assert values(calls[-4], "--work") != work  # of another text


def test_a_budget_that_no_point_meets_ends_nothing(clone):
    (clone / "fail").touch()
    done, calls = calibrate(clone, CTX="256")
    assert done.returncode == 0 and len(calls) == 4


def test_the_shipped_policies_need_their_own_text(clone):
    beside = clone.parent / "shared" / "data" / "calibration"
    beside.mkdir(parents=True)
    done, calls = calibrate(clone)
    assert (done.returncode, calls) == (1, []) and "but there is no calibration/wiki.valid.raw in it" in done.stderr
    (beside / "wiki.valid.raw").write_text("other words")
    done, calls = calibrate(clone)
    assert (done.returncode, calls) == (1, []) and f"found sha256 {sha256(b'other words')}, expected 4cd0f6876d07a413" in done.stderr


@pytest.mark.parametrize("env, expected", [
    ({"CTX": "100"}, "CTX is '100', expected a multiple of 32 tokens from 256 on"),
    ({"CTX": "1000"}, "CTX is '1000'"),
    ({"CTX": "8k"}, "CTX is '8k'"),
    ({"TEXT": "no/such.txt"}, "cannot read no/such.txt: No such file"),
    ({"TEXT": "a", "DATA": "b"}, "expected one of them"),
])
def test_settings_that_cannot_work(clone, env, expected):
    done, calls = calibrate(clone, **env)
    assert done.returncode in (1, 2) and calls == [] and len(done.stderr.splitlines()) == 1 and expected in done.stderr


def test_no_text_and_no_apt_is_one_line(clone, tmp_path):
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "bin").mkdir()
    done, calls = calibrate(clone, PATH=str(tmp_path / "bin"))
    assert (done.returncode, calls) == (1, [])
    assert done.stderr.splitlines() == ["error: there is no apt-get here to fetch English text with (Debian's packages): give a text of your own with TEXT=file, "
                                        "or a data folder with DATA=folder"]


def give_words(clone, cache):
    """Word lists as an earlier run has left them in the cache, with a pin of their own."""
    blocks = []
    for name, words in (("adjectivelist.txt", "warm\ncold\n"), ("nounlist.txt", "lamp\nhill\n")):
        (cache / name).write_text(words)
        blocks.append(f"kind wheel\npackage w\nversion 1\nfile w.whl\nsha256 {'0' * 64}\nmember w/{name}\nmember_sha256 {sha256(words.encode())}\n")
    (clone / "scripts" / "headwisekv" / "evaluate" / "data" / "words.PIN").write_text("\n".join(blocks))


def test_a_lone_clone_measures_with_debians_text(clone, tmp_path):
    give_words(clone, tmp_path / "cache")
    with Stub(lambda prompt: "7") as stub:
        command = ["-m", "headwisekv.evaluate", "ruler", "--base-url", stub.url, "--lengths", "600", "--examples", "1", "--tasks", "niah_single_2", "--out", str(tmp_path / "out")]
        done = run_in(clone, *command, PYTHONPATH="scripts")
        assert done.returncode == 0, done.stderr
        assert "The book says in its paragraph number" in stub.prompts[0] and ("warm-" in stub.prompts[0] or "cold-" in stub.prompts[0])
    assert "the text is from Debian's hwkv-book 7.5" in done.stderr and "not comparable with its own: Debian's hwkv-book 7.5." in done.stdout
    record = json.loads((tmp_path / "out" / "results.json").read_text())["texts"]
    assert record["packages"][0]["version"] == "7.5" and len(record["sha256"]) == 64 and record["essays"][0]["file"] == "debian-books-essays.txt"
    text = write_text(tmp_path / "mine.txt")
    with Stub(lambda prompt: "7") as stub:
        command[4:5] = [stub.url]
        done = run_in(clone, *command, "--text", str(text), PYTHONPATH="scripts")
        assert done.returncode == 1 and "holds results of another run: data is" in done.stderr
        done = run_in(clone, *command[:-1], str(tmp_path / "out2"), PYTHONPATH="scripts", TEXT=str(text))
        assert done.returncode == 0 and "The own text says" in stub.prompts[0]


def test_locomo_says_why_it_is_skipped(clone, tmp_path):
    with Stub() as stub:
        done = run_in(clone, "-m", "headwisekv.evaluate", "locomo", "--base-url", stub.url, "--out", str(tmp_path / "out"), PYTHONPATH="scripts")
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith("error: skipped: there is no data folder with restricted/locomo10.json; it is CC BY-NC 4.0")
