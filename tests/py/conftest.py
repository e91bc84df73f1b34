import socket
import subprocess
import time
from pathlib import Path

import pytest

from server_process import ROOT, free_port, need_model, need_program


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def model() -> Path:
    """The default model as a file; skips where it has not been fetched."""
    return need_model()


@pytest.fixture(scope="session")
def program():
    """program("llama-kv-policy") is the path of a built program; skips where it has not been built."""
    return need_program


@pytest.fixture
def rpc_servers(program):
    """Two rpc-server processes on this machine, which compute on its CPU."""
    started = []
    for _ in range(2):
        port = free_port()
        process = subprocess.Popen([program("rpc-server"), "-H", "127.0.0.1", "-p", str(port), "-t", "1", "-d", "CPU"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        started.append((process, port))
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
    yield [f"127.0.0.1:{port}" for _, port in started]
    for process, _ in started:
        process.kill()
        process.wait()


def pytest_collection_modifyitems(items):
    """Tests that may take longest, by their time limit, begin first: at the end nobody should wait for one."""
    items.sort(key=lambda item: -max((mark.args[0] for mark in item.iter_markers("timeout")), default=0))
