"""Serves a model on this machine, as `make run` does.

Checks the settings, installs and builds what is missing, fetches the model, starts llama-server, and stops it
on Ctrl-C or SIGTERM. Settings come from the environment:
  PORT (8080)  MODEL (smollm2-135m; a file or a name of models/README.md)  POLICY (the shipped one; none: plain cache)  CTX (8192)  NP (1)
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from . import models, process
from .core import ROOT, Failure, say
from .programs import ending_with_us
from .server import is_ready

HOST = "127.0.0.1"
SERVER = "build/bin/llama-server"
POLICY_TOOL = "build/bin/llama-kv-policy"
DEFAULT_MODEL = "smollm2-135m"
SHIPPED_POLICY = "policies/smollm2-135m-instruct-8k.json"
STOP_SECONDS = 10


#
# settings
#

def read_number(name, default, high, expected):
    text = os.environ.get(name) or default
    if not re.fullmatch(r"[1-9][0-9]{0,8}", text) or int(text) > high:
        raise Failure(f"{name} is '{text}', expected {expected}")
    return int(text)


def check_file(name, path, hint=""):
    if not os.path.isfile(path):
        raise Failure(f"{name} is '{path}', but there is no such file{hint}")
    try:
        with open(path, "rb") as file:
            return file.read(4)
    except OSError as error:
        raise Failure(f"{name} is '{path}', but it cannot be read: {error.strerror}") from None


def check_model(value):
    """(path, name): one of them is None."""
    if value is None:
        return None, DEFAULT_MODEL
    if os.sep not in value and not os.path.exists(value):
        names = models.pin_files()
        if value in names:
            return None, value
        if not value.endswith(".gguf"):
            raise Failure(f"MODEL is '{value}', but there is no such file, and no such name among {', '.join(names)}")
    if check_file("MODEL", value) != b"GGUF":
        raise Failure(f"MODEL is '{value}', but the file is not a GGUF model")
    return value, None


def check_port(port):
    with socket.socket() as probe:
        # as the server does: a port that only waits for old connections to time out is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except PermissionError:
            raise Failure(f"port {port} needs root rights; choose one above 1023, e.g. make run PORT=8080") from None
        except OSError:
            other = port + 1 if port < 65535 else 8080
            raise Failure(f"port {port} on {HOST} is taken by another program; choose another, e.g. make run PORT={other}") from None


class Settings:
    def __init__(self):
        self.port = read_number("PORT", "8080", 65535, "a number from 1 to 65535")
        self.ctx = read_number("CTX", "8192", 999999999, "a number of tokens such as 8192")
        self.np = read_number("NP", "1", 256, "a number of slots from 1 to 256")
        self.model, self.name = check_model(os.environ.get("MODEL") or None)
        self.policy = os.environ.get("POLICY") or None
        self.url = f"http://{HOST}:{self.port}"
        self.log = f"build/llama-server-{self.port}.log"
        if self.policy and self.policy != "none":
            check_file("POLICY", self.policy, " (POLICY=none serves without one)")
        check_port(self.port)


#
# what the server needs
#

def choose_policy(settings):
    """The policy file to use or None. The shipped one fits the default model only."""
    if settings.policy == "none":
        return None
    if settings.policy:
        return settings.policy
    if settings.name != DEFAULT_MODEL:
        say("no POLICY given for this model: serving with the plain KV cache")
        return None
    return SHIPPED_POLICY


def fetch_model(name):
    code, out = process.run([sys.executable, "scripts/fetch", name], capture=True)
    if code != 0:
        raise SystemExit(code)  # it has said itself what went wrong
    return out.strip()


def check_policy(policy, settings):
    """The server would refuse a policy that does not fit as well, but somewhere in its log."""
    command = [POLICY_TOOL, "check", policy, "-m", settings.model, "-c", str(settings.ctx), "-np", str(settings.np)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"{POLICY_TOOL} ended with code {done.returncode}"]
        raise Failure(f"the policy cannot be used: {lines[-1]}")


#
# the server
#

class Terminal:
    """Makes this process the one that Ctrl-C reaches; make's own answer to it would be an error."""

    def __enter__(self):
        self.tty = None
        try:
            tty = os.open("/dev/tty", os.O_RDWR)
        except OSError:
            return
        group = os.getpgrp()
        if os.tcgetpgrp(tty) != group or group == os.getpid():  # in the background, or already on our own
            os.close(tty)
            return
        self.tty, self.group = tty, group
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        signal.signal(signal.SIGTSTP, signal.SIG_IGN)  # the shell watches make's group and would not notice Ctrl-Z in ours
        os.setpgid(0, 0)
        os.tcsetpgrp(tty, os.getpid())

    def __exit__(self, *_):
        if self.tty is not None:
            os.tcsetpgrp(self.tty, self.group)
            os.close(self.tty)


def start_server(settings, policy):
    command = [SERVER, "-m", settings.model, "-a", Path(settings.model).stem, "--host", HOST, "--port", str(settings.port),
               "-c", str(settings.ctx), "-np", str(settings.np), "--offline",
               "--cors-origins", settings.url,  # pages of others can't read answers; our own needs no leave, under any name of this host
               *(["--kv-policy", policy] if policy else [])]
    with open(settings.log, "wb") as log:
        # a session of its own: the server takes a second signal for an order to drop everything, so it gets ours only
        return subprocess.Popen(ending_with_us(command), stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)


def stop_server(server):
    server.terminate()
    try:
        server.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()
        raise Failure(f"llama-server did not stop within {STOP_SECONDS} seconds and was killed") from None


def explain_end(server, settings, when):
    code = server.returncode
    say(f"error: llama-server ended with {f'code {code}' if code >= 0 else f'signal {-code}'} {when}; the end of {settings.log}:")
    with open(settings.log, encoding="utf-8", errors="replace") as log:
        say("".join(log.readlines()[-15:]).rstrip())
    return 1


def wait_until_ready(server, settings):
    """False when the server ended instead."""
    start = time.monotonic()
    say_at = 3
    while not is_ready(settings.url):
        if server.poll() is not None:
            return False
        if time.monotonic() - start > say_at:
            say(f"loading the model: {say_at} s")
            say_at += 10
        time.sleep(0.05)
    return server.poll() is None


def serve(settings, policy):
    server = None
    try:
        server = start_server(settings, policy)
        if not wait_until_ready(server, settings):
            return explain_end(server, settings, "before it was ready")
        body = '{"messages": [{"role": "user", "content": "What color is the sky?"}], "temperature": 0, "max_tokens": 64}'
        what = Path(settings.model).name + (f" with {policy}" if policy else "")
        print(f"Serving {what}: open {settings.url} in a browser (OpenAI base URL: {settings.url}/v1)\n"
              f"Log: {settings.log}   Ctrl-C stops the server.   Try:\n"
              f"curl {settings.url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'", flush=True)
        server.wait()
        return explain_end(server, settings, "while serving")
    except process.Interrupted:
        if server:
            stop_server(server)
        say("stopped")
        return 0


def run():
    os.chdir(ROOT)
    settings = Settings()
    if subprocess.run(["scripts/setup", "packages"]).returncode != 0:  # in our session: sudo may ask for a password
        return 1
    process.setup("build", "cpu", "llama-server", "llama-kv-policy")
    policy = choose_policy(settings)
    if settings.name:
        settings.model = process.setup("model") if settings.name == DEFAULT_MODEL else fetch_model(settings.name)
    if policy:
        check_policy(policy, settings)
    check_port(settings.port)  # the build may have taken minutes
    with Terminal():
        return serve(settings, policy)


def main():
    return process.exit_code(run)
