"""Where the programs and the model are, and a llama-server that a test can start and stop."""

import os
import subprocess
import time
from pathlib import Path

import pytest
import requests

from headwisekv.core import ROOT
from headwisekv.fetch import cache_dir
from headwisekv.server import free_port

MODEL_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
TIMEOUT = 60  # seconds for any one request; a chat of some tokens takes about one


def need(path, hint):
    """Skips the test when the file is missing; `make test` has made everything, so there it is a failure."""
    if path.exists():
        return path
    reason = f"{path} is missing: {hint}"
    if os.environ.get("HWKV_TEST_STRICT"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def need_program(name):
    return need(Path(os.environ.get("HWKV_BIN") or ROOT / "build" / "bin") / name, "run make build")


def need_model():
    return need(Path(os.environ.get("HWKV_TEST_MODEL") or cache_dir() / MODEL_NAME), "run scripts/setup model")


class ServerProcess:
    """llama-server on a free port of this machine, one thread, no network. Use it as a context manager."""

    def __init__(self, model, log_path, *args, ctx=2048, slots=1, program=None):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_path = Path(log_path)
        self.command = [str(program or need_program("llama-server")), "-m", str(model), "--host", "127.0.0.1", "--port", str(self.port),
                        "-t", "1", "-c", str(ctx), "-np", str(slots), "--offline", *args]
        self.process = None

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self, seconds=60):
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + seconds
        while not self.is_healthy():
            code = self.process.poll()
            if code is not None:
                raise RuntimeError(f"llama-server ended with code {code} at start:\n{self.log()[-2000:]}")
            if time.monotonic() > deadline:
                self.stop()
                raise RuntimeError(f"llama-server was not ready after {seconds} s:\n{self.log()[-2000:]}")
            time.sleep(0.05)

    def is_healthy(self):
        try:
            return requests.get(self.url + "/health", timeout=2).status_code == 200
        except requests.RequestException:
            return False

    def stop(self):
        """Returns the exit code."""
        if self.process.poll() is None:
            self.process.terminate()
        try:
            return self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise

    def log(self):
        return self.log_path.read_text(errors="replace")

    def get(self, path):
        return requests.get(self.url + path, timeout=TIMEOUT)

    def post(self, path, json=None, data=None, timeout=TIMEOUT):
        return requests.post(self.url + path, json=json, data=data, headers={"Content-Type": "application/json"}, timeout=timeout)
