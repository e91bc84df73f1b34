"""Child processes that a signal to us ends too, every one of them and once."""

import os
import signal
import subprocess

from . import core
from .core import say

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

sessions = []  # running children that lead a session of their own
starting = False  # a child is being started: who ended that halfway would lose it
pending = 0       # the signal that came meanwhile


class Interrupted(Exception):
    """A signal asked for the end; args[0] is its number. exit_code() ends the children."""


def on_signal(number, frame):
    # make passes on what a terminal has sent us already, so the second one must not disturb the end
    global pending
    for other in SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    if starting:
        pending = number
    else:
        raise Interrupted(number)


def catch_signals():
    for number in SIGNALS:
        signal.signal(number, on_signal)


def start(command, env=None, stdout=None):
    """Starts a command in its own session: signals reach it and its children through us only. None if it cannot be started."""
    global starting
    child = None
    starting = True
    try:
        child = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=stdout, text=True, start_new_session=True)
        sessions.append(child)
    except OSError as error:
        say(f"error: cannot run {command[0]}: {error.strerror}")
    finally:
        starting = False
    if pending:
        raise Interrupted(pending)
    return child


def finish(child):
    """Waits for a child of start(); returns (code, stdout if that is a pipe)."""
    if child is None:
        return 127, ""
    out, _ = child.communicate()
    sessions.remove(child)
    return child.returncode, out or ""


def run(command, env=None, capture=False):
    return finish(start(command, env, subprocess.PIPE if capture else None))


def stop_sessions():
    """SIGINT lets pytest and ctest tear down what they started; what is left after that is killed."""
    for number, seconds in ((signal.SIGINT, 20), (signal.SIGTERM, 5), (signal.SIGKILL, 5)):
        for child in sessions:
            try:
                os.killpg(child.pid, number)
            except ProcessLookupError:
                pass
        for child in sessions:
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                pass
    sessions.clear()


def setup(*arguments):
    """What scripts/setup prints; it says itself what went wrong, and then nothing else is worth saying."""
    code, out = run([str(core.ROOT / "scripts" / "setup"), *arguments], capture=True)
    if code != 0:
        raise SystemExit(code)
    return out.strip()


def exit_code(work, interrupted=None):
    """Of a command that starts children: what work() returns, or that of what ended it. No child outlives it."""
    catch_signals()
    try:
        return core.exit_code(work)
    except Interrupted as signalled:
        number = signalled.args[0]
    finally:
        stop_sessions()
    if interrupted:
        say(interrupted)
    return 128 + number
