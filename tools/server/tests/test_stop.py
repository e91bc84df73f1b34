"""SIGTERM and Ctrl-C end the server within five seconds, whatever it does: exit code 0, and files are whole."""

import json
import signal
import subprocess
import threading
import time

import psutil
import pytest
import requests
import tiny_gguf
from server_process import TIMEOUT, ServerProcess, need_program
from tiny_model import SHIPPED_POLICY

pytestmark = pytest.mark.server

LIMIT = 5  # seconds from the signal to the end of the process: what the server promises
SIGNALS = [signal.SIGTERM, signal.SIGINT]


def end(server, number, capsys):
    """Sends the signal; returns the exit code. The time it took is printed, also when all is well."""
    began = time.monotonic()
    server.process.send_signal(number)
    try:
        code = server.process.wait(LIMIT)
    except subprocess.TimeoutExpired:
        pytest.fail(f"{signal.Signals(number).name}: still there after {LIMIT} s; the end of its log:\n{server.log()[-1500:]}", pytrace=False)
    with capsys.disabled():
        print(f" [ended in {time.monotonic() - began:.2f} s]", end="")
    return code


def in_background(call):
    """A request whose answer is lost with the server."""
    def run():
        try:
            call()
        except requests.RequestException:
            pass
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def wait_for_cpu(server, seconds):
    """Until the server has computed for so long."""
    process = psutil.Process(server.process.pid)
    begun = sum(process.cpu_times()[:2])
    deadline = time.monotonic() + TIMEOUT
    while sum(process.cpu_times()[:2]) < begun + seconds:
        assert time.monotonic() < deadline, "the server does nothing"
        time.sleep(0.01)


@pytest.mark.parametrize("number", SIGNALS)
def test_idle(model, tmp_path, capsys, number):
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(SHIPPED_POLICY)) as server:
        server.post("/completion", {"prompt": "One", "n_predict": 1})
        assert end(server, number, capsys) == 0


@pytest.mark.parametrize("number, stream", [(signal.SIGTERM, True), (signal.SIGINT, False)])
def test_in_the_middle_of_a_prefill(model, tmp_path, capsys, number, stream):
    # 7000 tokens on one thread take half a minute, one batch of 2048 about ten seconds
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(SHIPPED_POLICY), ctx=8192) as server:
        body = {"prompt": list(range(1000, 8000)), "n_predict": 8, "stream": stream}
        client = in_background(lambda: requests.post(server.url + "/completion", json=body, timeout=TIMEOUT).content)
        wait_for_cpu(server, 0.7)
        assert client.is_alive(), "the prompt was processed before the signal"
        assert end(server, number, capsys) == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_in_the_middle_of_an_answer(model, tmp_path, capsys, number):
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(SHIPPED_POLICY), ctx=8192) as server:
        body = {"prompt": "Once upon a time", "n_predict": 4000, "ignore_eos": True, "stream": True}
        with requests.post(server.url + "/completion", json=body, stream=True, timeout=TIMEOUT) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith(b"data: "))
            for _ in range(3):
                assert not json.loads(next(lines)[6:])["stop"]
            assert end(server, number, capsys) == 0


def test_with_slots_busy_and_requests_waiting(model, tmp_path, capsys):
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(SHIPPED_POLICY), ctx=8192, slots=2) as server:
        for i in range(5):
            body = {"prompt": list(range(1000 + i, 3000 + i)), "n_predict": 2000, "ignore_eos": True}
            in_background(lambda body=body: requests.post(server.url + "/completion", json=body, timeout=TIMEOUT).content)
        wait_for_cpu(server, 0.7)
        assert end(server, signal.SIGTERM, capsys) == 0


@pytest.fixture(scope="module")
def bulky(tmp_path_factory):
    """A model that computes little and keeps much: 32 KiB for each token."""
    folder = tmp_path_factory.mktemp("bulky")
    path = folder / "bulky.gguf"
    tiny_gguf.make_model(path, "llama", seed=2, n_layer=8, n_head_kv=4, head_dim=128, n_ctx_train=8192)
    policy = folder / "policy.json"
    subprocess.run([need_program("llama-kv-policy"), "make", "uniform", "--window", "1024", "-c", "8192", "-m", path, "-o", policy],
                   check=True, timeout=60)
    return path, policy


@pytest.mark.parametrize("plain", [False, True], ids=["policy", "plain"])
def test_while_a_slot_is_saved(bulky, tmp_path, capsys, plain):
    """The old file or the new one is there afterwards, whole, and nothing beside it."""
    path, policy = bulky
    folder = tmp_path / "slots"
    folder.mkdir()
    args = ["-ctk", "f32", "-ctv", "f32", "--slot-save-path", str(folder)] + ([] if plain else ["--kv-policy", str(policy)])

    def fill(server, n):
        answer = server.post("/completion", {"prompt": [4 + i * i % 250 for i in range(n)], "n_predict": 1, "temperature": 0})
        assert answer.status_code == 200
        return answer.json()["tokens_evaluated"]

    def save(server):
        return requests.post(server.url + "/slots/0?action=save", json={"filename": "slot.bin"}, timeout=TIMEOUT)

    with ServerProcess(path, tmp_path / "log", *args, ctx=8192) as server:
        fill(server, 500)
        assert save(server).status_code == 200
        old = (folder / "slot.bin").read_bytes()
        fill(server, 3000)
        before = {entry.name for entry in folder.iterdir()}
        thread = in_background(lambda: save(server))
        deadline = time.monotonic() + 10
        # begun when a file appears, or the one that is there changes
        begun = False
        while thread.is_alive() and not begun:
            assert time.monotonic() < deadline
            begun = {entry.name for entry in folder.iterdir()} != before or (folder / "slot.bin").stat().st_size != len(old)
        assert begun, "saved before the signal"
        assert end(server, signal.SIGTERM, capsys) == 0
    assert [entry.name for entry in folder.iterdir()] == ["slot.bin"]

    with ServerProcess(path, tmp_path / "log", *args, ctx=8192) as server:
        answer = server.post("/slots/0?action=restore", {"filename": "slot.bin"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["n_restored"] in (500, 501, 3000, 3001)


def test_second_signal_is_for_the_impatient(model, tmp_path):
    """Upstream's way out of a server that hangs: exit code 1 at once."""
    with ServerProcess(model, tmp_path / "log", "--kv-policy", str(SHIPPED_POLICY)) as server:
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(LIMIT) in (0, 1)
