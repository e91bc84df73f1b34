"""llama-server as a process: its version, its end, and starts that cannot work."""

import re
import signal
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest
import requests
import tiny_gguf
from kv_policy_server import complete, make_policy, words
from server_process import ROOT, ServerProcess, need_program
from tiny_model import SHIPPED_POLICY

pytestmark = pytest.mark.server


def test_version_names_headwisekv():
    version = re.search(r'HWKV_VERSION\s+"([^"]+)"', (ROOT / "src" / "policy" / "hwkv.h").read_text()).group(1)
    done = subprocess.run([need_program("llama-server"), "--version"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert f"HeadWiseKV {version} " in done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_cleanly(model, tmp_path, number):
    with ServerProcess(model, tmp_path / "server.log") as server:
        server.post("/completion", {"prompt": "One", "n_predict": 1})
        server.process.send_signal(number)
        assert server.process.wait(10) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_in_the_middle_of_a_prompt(model, tmp_path, number):
    """One batch of 2048 tokens takes this model several seconds; it is given up."""
    body = {"prompt": "All is one and one is all. " * 1000, "n_predict": 4}
    with ServerProcess(model, tmp_path / "server.log", "--kv-policy", str(SHIPPED_POLICY), "-b", "2048", "-ub", "2048", ctx=8192) as server, \
            ThreadPoolExecutor(1) as pool:
        answer = pool.submit(server.post, "/completion", body)
        while not server.get("/slots").json()[0]["is_processing"]:
            assert not answer.done()
        server.process.send_signal(number)
        assert server.process.wait(5) == 0
        assert answer.result().status_code in (500, 503)
        assert "stopping" in answer.result().json()["error"]["message"]


def test_signal_in_the_middle_of_a_save(tmp_path):
    model = tmp_path / "llama.gguf"
    tiny_gguf.make_model(model, "llama", seed=2)
    policy = make_policy(tmp_path, model, (16, 48, 130), 2048)
    slots = tmp_path / "slots"
    slots.mkdir()
    args = ("--kv-policy", str(policy), "--slot-save-path", str(slots))
    with ServerProcess(model, tmp_path / "server.log", *args) as server, ThreadPoolExecutor(1) as pool:
        complete(server, words(1, 1500))

        def save_on():
            try:
                while True:
                    server.post("/slots/0?action=save", {"filename": "talk.bin"})
            except requests.RequestException:
                pass

        saving = pool.submit(save_on)
        while not (slots / "talk.bin").exists():
            assert not saving.done()
        server.process.terminate()
        assert server.process.wait(5) == 0
    assert [path.name for path in slots.iterdir()] == ["talk.bin"]
    with ServerProcess(model, tmp_path / "server.log", *args) as server:
        assert server.post("/slots/0?action=restore", {"filename": "talk.bin"}).status_code == 200


def test_signal_while_it_loads(model, tmp_path):
    server = ServerProcess(model, tmp_path / "server.log")
    with server.log_path.open("wb") as log:
        server.process = subprocess.Popen(server.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
    while "loading model" not in server.log():
        assert server.process.poll() is None
    assert server.stop() == 0


def test_taken_port_is_an_error(model, tmp_path):
    server = ServerProcess(model, tmp_path / "server.log")
    with socket.socket() as other:
        other.bind(("127.0.0.1", server.port))
        other.listen()
        with pytest.raises(RuntimeError, match="(?s)ended with code 1.*couldn't bind"):
            server.start()


def test_missing_model_is_an_error(tmp_path):
    server = ServerProcess(tmp_path / "none.gguf", tmp_path / "server.log")
    with pytest.raises(RuntimeError, match="(?s)ended with code 1.*none.gguf"):
        server.start()


def test_truncated_model_is_an_error(model, tmp_path):
    broken = tmp_path / "broken.gguf"
    with model.open("rb") as source:
        broken.write_bytes(source.read(1 << 20))
    server = ServerProcess(broken, tmp_path / "server.log")
    with pytest.raises(RuntimeError, match="ended with code 1"):
        server.start()
