"""scripts/eval: results that survive a kill, and the needle tasks against a scripted endpoint."""

import asyncio
import hashlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from eval_stub import Stub
from server_process import ROOT

from headwisekv.core import Failure
from headwisekv.evaluate import __main__ as cli
from headwisekv.evaluate import local, report, ruler, run_ruler
from headwisekv.evaluate.client import Endpoint
from headwisekv.evaluate.haystack import NOISE, Haystack, split_sentences
from headwisekv.store import Store
from headwisekv.texts import of_folder

pytestmark = pytest.mark.unit
SHARED = ROOT.parent / "shared" / "data"


@pytest.fixture
def data(tmp_path):
    """A small data folder of our own: sentences of eight words, two lists."""
    folder = tmp_path / "data"
    (folder / "books").mkdir(parents=True)
    (folder / "ruler").mkdir()
    rng = random.Random(1)
    words = ["river", "stone", "quiet", "morning", "walks", "under", "light", "seven", "birds", "often"]
    sentences = [" ".join(rng.choice(words) for _ in range(8)).capitalize() + "." for _ in range(400)]
    (folder / "books" / "essay-1.txt").write_text("\n".join(sentences[:200]))
    (folder / "books" / "essay-2.txt").write_text("\n".join(sentences[200:]))
    (folder / "ruler" / "adjectivelist.txt").write_text("warm\ncold\nad hoc\nplain\n")
    (folder / "ruler" / "nounlist.txt").write_text("lamp\nmother-in-law\nhill\nroof\n")
    return folder


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Tries again at once."""
    monkeypatch.setattr(Endpoint, "BACKOFF", 0.001)


@pytest.fixture
def no_plots(monkeypatch):
    """Drawing takes longer than all the rest."""
    monkeypatch.setattr(report, "heat_maps", lambda *_: b"")


def read_needles(prompt):
    """The perfect model: every value of the keys that the question asks for."""
    asked = prompt.split("special magic number")[-1]
    return ", ".join(value for key, value in re.findall(r"numbers for ([\w -]+?) is: (\d{7})\.", prompt) if key in asked)


def run(stub, data, out, *args):
    return cli.main(["ruler", "--base-url", stub.url, "--data", str(data), "--out", str(out), *args])


#
# results on disk
#

def test_store_goes_on_and_drops_a_torn_line(tmp_path, capsys):
    path = tmp_path / "a" / "results.jsonl"
    store = Store(path, {"seed": 1})
    store.add({"id": "x", "score": 1})
    store.add({"id": "y", "error": "too slow"})
    store.close()
    with path.open("ab") as file:
        file.write(b'{"id":"z","sco')
    store = Store(path, {"seed": 1})
    assert "half-written" in capsys.readouterr().err
    assert store.has("x") and not store.has("y") and not store.has("z")
    store.add({"id": "y", "score": 0})
    store.close()
    store = Store(path, {"seed": 1})
    assert [record.get("score") for record in store.pick(["y", "x", "z"])] == [0, 1, None]
    assert [json.loads(line).get("id") for line in path.read_text().splitlines()] == [None, "x", "y", "y"]
    store.close()


def test_store_refuses_other_runs_and_broken_files(tmp_path):
    path = tmp_path / "results.jsonl"
    store = Store(path, {"seed": 1, "model": "a"})
    with pytest.raises(Failure, match="in use"):
        Store(path, {"seed": 1, "model": "a"})
    store.close()
    with pytest.raises(Failure, match="model is 'a' there and 'b' now"):
        Store(path, {"seed": 1, "model": "b"})
    path.write_text(path.read_text() + "nonsense\n" + '{"id":"x"}\n')
    with pytest.raises(Failure, match="line 2"):
        Store(path, {"seed": 1, "model": "a"})


#
# samples
#

def test_shuffle_is_rulers_permutation():
    assert ruler.shuffled([0, 1, 2, 3], 42) == [2, 1, 3, 0]


def test_depth_grid_is_rulers():
    assert ruler.DEPTHS == [0, 3, 5, 8, 10, 13, 15, 18, 21, 23, 26, 28, 31, 33, 36, 38, 41, 44, 46, 49, 51, 54, 56, 59, 62, 64, 67, 69, 72, 74,
                            77, 79, 82, 85, 87, 90, 92, 95, 97, 100]


def test_sentences_end_where_people_end_them():
    text = 'He came at 5.30 today. "Why?" she said. (Nobody knew.) No. 7 was shut! the end'
    assert split_sentences(text) == ["He came at 5.30 today.", '"Why?" she said.', "(Nobody knew.)", "No.", "7 was shut! the end"]


def test_noise_sample(data):
    sample = ruler.make_sample("niah_single_1", Haystack(of_folder(data)), 20, random.Random(5), 42)
    head, *lines, question = sample.user.split("\n")
    assert head == ("A special magic number is hidden within the following text. Make sure to memorize it. "
                    "I will quiz you about the number afterwards.")
    needles = [(i, line) for i, line in enumerate(lines) if line != NOISE]
    assert len(lines) == 21 and len(needles) == 1 and sample.depths == (needles[0][0] / 20,)
    key, value = re.fullmatch(r"One of the special magic numbers for (.+) is: (\d{7})\.", needles[0][1]).groups()
    assert sample.answers == (value,)
    assert question == f"What is the special magic number for {key} mentioned in the provided text?"
    assert sample.prefix == f" The special magic number for {key} mentioned in the provided text is"


@pytest.mark.parametrize("name, n_needles, n_answers", [("niah_single_2", 1, 1), ("niah_multikey_1", 4, 1), ("niah_multivalue", 4, 4),
                                                         ("niah_multiquery", 4, 4)])
def test_essay_sample(data, name, n_needles, n_answers):
    haystack = Haystack(of_folder(data))
    sample = ruler.make_sample(name, haystack, 400, random.Random(5), 42)
    head, context, question = sample.user.split("\n")
    needles = re.findall(r"One of the special magic numbers for ([\w -]+?) is: (\d{7})\. ?", context)
    assert len(needles) == n_needles and len(sample.answers) == n_answers
    assert set(sample.answers) <= {value for _, value in needles}
    # without the needles the haystack is the beginning of the text
    assert re.sub(r"One of the special magic numbers for [\w -]+? is: \d{7}\. ?", "", context).split() == haystack.words[:400]
    for answer, depth in zip(sample.answers, sample.depths):
        before = re.sub(r"One of .+? is: \d{7}\. ?", "", context[:context.index(answer)].rsplit("One of", 1)[0])
        assert len(before.split()) == pytest.approx(8 * int(50 * depth), abs=0.1)  # 50 sentences of eight words
    assert (", and " in question) == (name == "niah_multiquery")
    assert head.startswith("Some special magic numbers are" if n_answers > 1 else "A special magic number is")
    assert sample.prefix.endswith(" are" if n_answers > 1 else " is")
    if name == "niah_multiquery":
        asked = re.search("numbers for (.+) mentioned", question)[1].replace(", and ", ", ").split(", ")
        assert [dict(needles)[key] for key in asked] == list(sample.answers)


def test_given_depth_places_the_needle(data):
    for depth, where in ((0, 1), (100, -1)):
        sample = ruler.make_sample("niah_single_2", Haystack(of_folder(data)), 80, random.Random(1), 42, [depth])
        context = sample.user.split("\n")[1]
        assert (context.startswith if where == 1 else context.rsplit(". ", 1)[1].startswith)("One of the special magic numbers")


def test_samples_are_the_same_for_ever():
    """Golden hashes over the shared data: a change here makes old results incomparable."""
    if not SHARED.exists():
        pytest.skip(f"{SHARED} is missing: the essays and word lists are not part of the repository")
    haystack = Haystack(of_folder(SHARED))
    assert len(haystack.words) == 452919 and len(haystack.adjectives) == 910 and len(haystack.nouns) == 6782
    text = "".join(repr(ruler.make_sample(name, haystack, 300, random.Random(f"42 {name}"), 42)) for name in ruler.TASKS)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "439f6707a451f629"


@pytest.mark.parametrize("name", ruler.TASKS)
@pytest.mark.parametrize("length", [400, 2000, 4500])
def test_samples_fill_their_length(data, name, length):
    async def measure(sample):
        return len(re.findall(r"\w+|[^\w\s]", sample.user + sample.prefix))

    maker = ruler.Maker(Haystack(of_folder(data)), 42, measure)
    sizes = [asyncio.run(maker.make(name, length, index)) for index in range(4)]
    assert all(tokens == asyncio.run(measure(sample)) + 128 <= length for sample, tokens in sizes)
    assert max(tokens for _, tokens in sizes) > length - 60
    assert len({sample.answers for sample, _ in sizes}) == 4
    assert sizes[0] == asyncio.run(ruler.Maker(Haystack(of_folder(data)), 42, measure).make(name, length, 0))


def test_too_short_a_length_is_said(data):
    async def measure(sample):
        return 300
    with pytest.raises(Failure, match="length 400 is too small for niah_single_1: its smallest sample has 428 tokens"):
        asyncio.run(ruler.Maker(Haystack(of_folder(data)), 42, measure).fit("niah_single_1", 400))


@pytest.mark.parametrize("text, answers, found", [
    (" 1234567.", ["1234567"], [True]),
    ("12345678 and\x007654321", ["1234567", "7654321", "1111111"], [True, True, False]),
    ("12345\x0067", ["1234567"], [False]),
    ("ABC-def", ["abc-DEF"], [True]),
    ("", ["1"], [False]),
])
def test_string_match(text, answers, found):
    assert ruler.found_answers(text, answers) == found


#
# the whole path
#

def test_perfect_model_has_100(data, tmp_path, capsys):
    with Stub(read_needles, delay=0.02) as stub:
        assert run(stub, data, tmp_path / "out", "--lengths", "500", "--examples", "2", "--parallel", "3", "--name", "full") == 0
        assert stub.most_busy in (2, 3)
        assert len(stub.prompts) == 10 and all(len(stub.tokens(prompt)) + 128 <= 500 for prompt in stub.prompts)
        assert all(body["temperature"] == 0 and body["max_tokens"] == 128 and body["seed"] == 42 for body in stub.bodies)
        assert all(re.fullmatch(r"<user>.*\?\n<assistant> The special .* (is|are)", prompt, re.DOTALL) for prompt in stub.prompts)
    out = capsys.readouterr().out
    assert "| all | 100.00 (10) | 100.00 (10) |" in out
    assert (tmp_path / "out" / "results.md").read_text() == out
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["cells"]["niah_multivalue"]["500"] == {"score": 100.0, "n": 2, "failed": 0}
    assert {value for row in results["heat"]["found"] for value in row} <= {100.0, None}
    assert (tmp_path / "out" / "heatmap.png").read_bytes()[:4] == b"\x89PNG"


def test_partial_answers_count_in_quarters_and_by_depth(data, tmp_path, no_plots):
    with Stub(lambda prompt: read_needles(prompt).split(", ")[0]) as stub:
        assert run(stub, data, tmp_path, "--lengths", "800", "--examples", "4", "--tasks", "niah_multivalue", "--depth-bins", "2") == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["cells"]["all"]["all"]["score"] == 25.0
    upper, lower = (row[0] for row in results["heat"]["found"])
    assert upper > 0 and lower in (0, None)  # the stub reads only the first one in the text


def test_errors_are_tried_again_and_counted(data, tmp_path, capsys, no_plots):
    arguments = ("--lengths", "400", "--examples", "3", "--tasks", "niah_single_1")
    with Stub(read_needles) as stub:
        stub.faults = [503, 500, 429, 400]
        assert run(stub, data, tmp_path, *arguments) == 1
        text = capsys.readouterr().out
        assert "| all | 100.00 (2, 1 failed) |" in text and "- 1 failed: /v1/completions: 400: fault 400" in text
        assert run(stub, data, tmp_path, *arguments) == 0  # only the failed one again
        assert len(stub.prompts) == 3


@pytest.mark.parametrize("prompt", ["raw", "messages"])
def test_other_prompts(data, tmp_path, prompt, no_plots):
    with Stub(read_needles) as stub:
        assert run(stub, data, tmp_path, "--lengths", "400", "--examples", "1", "--tasks", "niah_single_2", "--prompt", prompt) == 0
        pattern = {"raw": r"A special .*\? The special .* is", "messages": "<user>.*<assistant> The special .* is\n<assistant>"}[prompt]
        assert re.fullmatch(pattern, stub.prompts[0], re.DOTALL)


def test_another_server_counts_tokens_and_sees_no_key(data, tmp_path, monkeypatch, no_plots):
    monkeypatch.setenv("EVAL_TEST_KEY", "right")
    with Stub(read_needles, key="right", native=False) as stub, Stub(key="none") as counter:
        arguments = ["--lengths", "400", "--examples", "1", "--tasks", "niah_single_1", "--api-key-env", "EVAL_TEST_KEY"]
        assert run(stub, data, tmp_path / "a", *arguments) == 1
        assert run(stub, data, tmp_path / "b", *arguments, "--tokenize-url", counter.url.removesuffix("/v1")) == 0


def one_line(capsys):
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("error: ")
    return lines[0]


def test_bad_input_is_one_line(data, tmp_path, capsys, monkeypatch):
    with Stub(read_needles, n_ctx=1024, key="right") as stub:
        assert run(stub, data, tmp_path) == 1
        assert "refused the key (401)" in one_line(capsys)
        assert run(stub, data, tmp_path, "--api-key-env", "EVAL_NOT_SET") == 1
        assert "EVAL_NOT_SET is not set" in one_line(capsys)
        monkeypatch.setenv("EVAL_TEST_KEY", "right")
        assert run(stub, data, tmp_path, "--api-key-env", "EVAL_TEST_KEY") == 1
        assert "length 4096 needs a context of 4096 tokens" in one_line(capsys)
        assert run(stub, tmp_path / "no", tmp_path, "--api-key-env", "EVAL_TEST_KEY", "--lengths", "512") == 1
        assert "found no essay-*.txt" in one_line(capsys)
        stub.faults = [404]
        assert run(stub, data, tmp_path / "x", "--api-key-env", "EVAL_TEST_KEY", "--lengths", "400", "--tasks", "niah_single_1") == 1
        assert "/v1/completions: 404: fault 404" in capsys.readouterr().err.splitlines()[-1]
    assert run(stub, data, tmp_path) == 1
    assert "cannot reach" in one_line(capsys)
    for command in ("ruler", "local"):  # before any server is started
        with pytest.raises(SystemExit) as usage:
            cli.main([command, "--tasks", "niah"])
        assert usage.value.code == 2
        assert "found task 'niah', expected some of niah_single_1," in capsys.readouterr().err
    for arguments in (["--parallel", "0"], ["--lengths", "4K"], ["--timeout", "nan"], []):
        with pytest.raises(SystemExit) as usage:
            cli.main(["ruler", *arguments] if arguments else ["needle", "--depths", "101"])
        assert usage.value.code == 2


def test_paper_protocol():
    options = cli.read_options(["ruler", "--paper"])
    run_ruler.check_options(options)
    assert (options.lengths, options.examples, options.seed) == ([4096, 8192, 16384, 32768, 65536, 131072], 40, 42)
    assert len(options.tasks) * len(options.lengths) * options.examples == 1200


def stop_after(stub, n_more, how, command):
    """Runs the command until it has had some more answers; returns its exit code."""
    env = dict(os.environ, PYTHONPATH=str(ROOT / "scripts"))
    enough = len(stub.prompts) + n_more
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while len(stub.prompts) < enough and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(how)
    _, errors = process.communicate(timeout=30)
    return process.returncode, errors


def test_a_stopped_run_goes_on(data, tmp_path, no_plots):
    arguments = ("--lengths", "400", "--examples", "120", "--tasks", "niah_single_1")
    path = tmp_path / "out" / "results.jsonl"
    with Stub(read_needles, delay=0.05) as stub:
        command = [sys.executable, "-m", "headwisekv.evaluate", "ruler", "--base-url", stub.url, "--data", data, "--out", tmp_path / "out", *arguments]
        assert stop_after(stub, 5, signal.SIGKILL, command)[0] == -signal.SIGKILL
        kept = len(path.read_text().splitlines()) - 1
        assert 4 <= kept < 110
        with path.open("a") as file:
            file.write('{"id":"niah_single_1/400/119","score":')
        code, errors = stop_after(stub, 5, signal.SIGINT, command)
        assert code == 130 and "dropped a half-written last line" in errors and "interrupted: what is done is in" in errors
        kept_more = len(path.read_text().splitlines()) - 1
        assert kept + 4 <= kept_more < 120
        stub.delay = 0
        before = len(stub.prompts)
        assert run(stub, data, tmp_path / "out", *arguments) == 0
        assert len(stub.prompts) - before == 120 - kept_more
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["cells"]["all"]["all"] == {"score": 100.0, "n": 120, "failed": 0}


#
# servers of its own
#

POLICY = {"format": "headwisekv-policy", "selected": "b", "operating_points": [{"name": "a", "bytes": 3}, {"name": "b", "bytes": 2}, {"name": "c", "bytes": 1}]}


def make_server(path):
    """A program with llama-server's options that serves the stub; with a policy it forgets, and it does not start with the point `a`."""
    path.write_text(textwrap.dedent(f"""\
        #!{sys.executable}
        import signal, sys
        from eval_stub import Stub
        option = lambda name: sys.argv[sys.argv.index(name) + 1] if name in sys.argv else None
        point = option("--kv-policy-point")
        if point == "a":
            sys.exit("cannot")
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        with Stub(logprob=lambda prompt: -2.0 if point else -0.5, n_ctx=int(option("-c")), port=int(option("--port"))):
            signal.sigwait([signal.SIGTERM])
        """))
    path.chmod(0o755)
    return path


@pytest.fixture
def server_path(monkeypatch):
    """Where the program of make_server() finds the stub."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests" / "py"))


def run_local(data, folder, *args):
    (folder / "policy.json").write_text(json.dumps(POLICY))
    (folder / "model.gguf").write_bytes(b"GGUF")
    return cli.main(["local", "--model-file", str(folder / "model.gguf"), "--server", str(make_server(folder / "server")), "--policy",
                     str(folder / "policy.json"), "--data", str(data), "--out", str(folder / "out"), "--lengths", "400", "--depths", "50",
                     "--examples", "1", "--tasks", "niah_single_1", *args])


def test_local_measures_full_and_points(data, tmp_path, capsys, no_plots, server_path):
    assert run_local(data, tmp_path, "--points", "c") == 0
    summary = (tmp_path / "out" / "summary.md").read_text()
    assert "| full | 0.00 | 0.00 | 1 | 0 |" in summary and "| c | 0.00 | 0.00 | 1 | 0 |" in summary
    tokens = json.loads((tmp_path / "out" / "needle" / "results.jsonl").read_text().splitlines()[1])["full"]["n_tokens"]
    assert f"| full | {-0.5 * tokens:.3f} |" in summary and f"| c | {-2 * tokens:.3f} |" in summary
    done = capsys.readouterr()
    assert done.out.endswith(summary) and "minutes in all" in done.err


def test_local_says_what_cannot_be(data, tmp_path, capsys, server_path):
    assert run_local(data, tmp_path, "--points", "a") == 1
    assert f"error: llama-server (a) did not start, see {tmp_path / 'out' / 'server-a.log'}" in capsys.readouterr().err
    assert run_local(data, tmp_path, "--points", "z") == 3
    assert one_line(capsys).endswith("has no operating point 'z', expected one of: a, b, c")
    assert run_local(data, tmp_path, "--model-file", str(tmp_path / "none")) == 1
    assert "there is no file" in one_line(capsys)


def test_local_takes_the_selected_point_and_the_smallest(tmp_path):
    (tmp_path / "policy.json").write_text(json.dumps(POLICY))
    options = cli.read_options(["local", "--model-file", "x", "--policy", str(tmp_path / "policy.json")])
    assert local.choose_points(options) == ["b", "c"]
