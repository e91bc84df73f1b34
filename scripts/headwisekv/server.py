"""A llama-server of our own that ends with us, and plain HTTP to it. Nothing but Python's own library."""

import json
import os
import resource
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

from .core import Failure, say
from .programs import ending_with_us

START_SECONDS = 600
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Ended(Failure):
    """The server is gone; with what it wrote and the exit code of its process."""

    def __init__(self, text, log, exit_code):
        super().__init__(text)
        self.log, self.exit_code = log, exit_code


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def is_ready(url):
    """Whether the server there has loaded its model."""
    try:
        with OPENER.open(url + "/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


class Server:
    """Runs while its block does, and ends with this process even when that is killed.

    `limit` is a bound on its address space in bytes (RLIMIT_AS). With more than `resident` bytes in memory it is killed, as by a
    system without swap; `over` is then what it had.
    """

    def __init__(self, program, arguments, log_path, name, limit=None, resident=None):
        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.name, self.limit, self.resident, self.log_path = name, limit, resident, Path(log_path)
        self.over = None
        self.command = [program, *arguments, "--host", "127.0.0.1", "--port", port, "--offline"]
        self.process = None

    def __enter__(self):
        command = ending_with_us(self.command)
        env = dict(os.environ, GGML_NO_BACKTRACE="1")  # a debugger that starts with a crash takes long and needs memory itself
        bound = None
        if self.limit is not None:
            env["MALLOC_ARENA_MAX"] = "1"  # else every thread reserves address space that it does not use

            def bound():
                resource.setrlimit(resource.RLIMIT_AS, (self.limit, self.limit))
        try:
            with open(self.log_path, "wb") as log:
                # a session of its own: Ctrl-C is for us
                self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=env,
                                                start_new_session=True, preexec_fn=bound)
        except OSError as error:
            raise Failure(f"cannot run {command[0]}: {error.strerror}") from None
        if self.resident is not None:
            threading.Thread(target=self.watch, daemon=True).start()
        try:
            self.wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def wait_until_ready(self):
        start = time.monotonic()
        while not is_ready(self.url):
            if self.process.poll() is not None:
                raise Ended(f"llama-server ({self.name}) did not start, see {self.log_path}", self.log(), self.process.returncode)
            if time.monotonic() - start > START_SECONDS:
                raise Failure(f"llama-server ({self.name}) was not ready after {START_SECONDS} s, see {self.log_path}")
            time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def log(self):
        return self.log_path.read_text(errors="replace")

    def ask(self, path, body=None, timeout=3600):
        """JSON of an answer. Ended if the server dies over it."""
        data = None if body is None else json.dumps(body).encode()
        try:
            with OPENER.open(urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}), timeout=timeout) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            text = " ".join(error.read().decode(errors="replace").split())[:300]
            raise Failure(f"llama-server ({self.name}): {path}: {error.code}: {text}") from None
        except (urllib.error.URLError, OSError, ValueError) as error:
            try:
                code = self.process.wait(5)  # a process that dies closes its connections first
            except subprocess.TimeoutExpired:
                raise Failure(f"llama-server ({self.name}): {path}: no answer ({error})") from None
            raise Ended(f"llama-server ({self.name}) ended with code {code} over {path}, see {self.log_path}", self.log(), code) from None

    def watch(self):
        page = os.sysconf("SC_PAGE_SIZE")
        while self.process.poll() is None:
            try:
                found = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * page
            except (OSError, IndexError):
                return
            if found > self.resident:
                self.over = found
                self.process.kill()
                return
            time.sleep(0.01)

    def peak_rss(self):
        """Bytes, of its whole life; None where the system does not tell."""
        try:
            for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    return int(line.split()[1]) * 1024
        except OSError:
            pass
        return None


def base_arguments(model, n_ctx, threads):
    """One slot, and no copies of earlier prompts in memory: a prompt shares only what it has in common with the last one."""
    return ["-m", model, "-a", Path(model).stem, "-c", n_ctx, "-np", 1, "-t", threads, "--cache-ram", 0]


def start(program, arguments, log_path, name):
    """A server without any limit, announced."""
    say(f"starting llama-server: {name}")
    return Server(program, arguments, log_path, name)
