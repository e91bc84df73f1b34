"""llama-server as a process: its version, its end, and starts that cannot work."""

import re
import signal
import socket
import subprocess

import pytest

from server_process import ROOT, ServerProcess, need_program

pytestmark = pytest.mark.server


def test_version_names_headwisekv():
    version = re.search(r'HWKV_VERSION\s+"([^"]+)"', (ROOT / "src" / "hwkv.h").read_text()).group(1)
    done = subprocess.run([need_program("llama-server"), "--version"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    assert f"HeadWiseKV {version} " in done.stdout + done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_it_cleanly(model, tmp_path, number):
    with ServerProcess(model, tmp_path / "server.log") as server:
        server.post("/completion", {"prompt": "One", "n_predict": 1})
        server.process.send_signal(number)
        assert server.process.wait(10) == 0


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
