"""Runs llama.cpp's own server tests, as the package has them, on the pristine build and on ours without and with a policy, with our
attention kernel and without it. On the pristine build also without flash attention: a test that fails for that alone hangs on what
a model happens to write, not on the server.

The tests name models of a hub; local ones take their places: `smollm2` is the default model under every name, `tiny` are
small random models. A test that needs what a replaced model wrote fails on every build; what counts is that whatever passes
on the pristine build passes on ours. Each set of models and build is a phase. Every outcome is noted as it comes: after
Ctrl-C the same command goes on where it was. Tests with different outcomes run again in all builds, as some depend on time.

What it makes is in build/server-suite/: a copy of the tests, their own venv, logs and outcomes. The table goes into
docs/server-tests.md. One thread for each server; an hour for all.
"""

import argparse
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from .. import process
from ..arguments import number, some_of
from ..core import ROOT, Failure, say
from ..fetch import read_pin
from ..markdown import put_between
from ..provenance import commit, machine, program_hash
from ..server import free_port
from . import table

WORK = ROOT / "build" / "server-suite"
SUITE = WORK / "llama.cpp" / "tools" / "server" / "tests"
SETS = ("tiny", "smollm2")
PACKAGES = ["pytest-timeout>=2,<3"]  # beside theirs


def run(command, what, env=None):
    code, out = process.run([str(part) for part in command], env, capture=True)
    if code != 0:
        raise Failure(f"{what} failed with exit code {code}, see above")
    return out.strip()


def lock():
    """Two runs would spoil each other's files. The lock lives as long as the file that is returned."""
    WORK.mkdir(parents=True, exist_ok=True)
    file = (WORK / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Failure(f"another scripts/server-suite works in {WORK}") from None
    return file


#
# preparation
#

def prepare_builds():
    run(["scripts/setup", "build", "cpu", "llama-server", "llama-kv-policy"], "building")
    run(["scripts/setup", "build", "cpu", "pristine-tools"], "building the pristine tools")


def prepare_suite():
    """The tests as they are in the package, in a tree of their own: they write beside themselves."""
    source = ROOT / "build" / "pristine" / "llama.cpp"
    if not (source / "tools" / "server" / "tests" / "utils.py").exists():
        raise Failure(f"{source} has no server tests")
    shutil.rmtree(SUITE, ignore_errors=True)
    SUITE.parent.mkdir(parents=True, exist_ok=True)
    shutil.copytree(source / "tools" / "server" / "tests", SUITE, ignore=shutil.ignore_patterns("tmp", "__pycache__", ".pytest_cache"))
    templates = WORK / "llama.cpp" / "models"
    if not templates.is_symlink():
        templates.symlink_to(source / "models")


def prepare_venv():
    stamp = WORK / "venv" / ".installed"
    want = (SUITE / "requirements.txt").read_text() + "\n".join(PACKAGES)
    if stamp.exists() and stamp.read_text() == want:
        return
    say("installing the packages that the tests ask for")
    run([sys.executable, "-m", "venv", "--clear", WORK / "venv"], "making a venv")
    run([WORK / "venv" / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check",
         "-r", SUITE / "requirements.txt", *PACKAGES], "pip")
    stamp.write_text(want)


def prepare_models(which):
    model = run(["scripts/setup", "model"], "fetching the model")
    env = dict(os.environ, PYTHONPATH=f"{ROOT / 'scripts'}:{ROOT / 'tests'}")  # the tests make tiny models too
    out = run([".venv/bin/python", "-m", "headwisekv.suite.hub", which, WORK / which, "--model", model,
               "--policy-tool", ROOT / "build" / "bin" / "llama-kv-policy"], f"making the models of {which}", env)
    (SUITE / "tmp").mkdir(exist_ok=True)
    draft = SUITE / "tmp" / "stories15M-q4_0.gguf"
    draft.unlink(missing_ok=True)
    draft.symlink_to(WORK / which / draft.name)
    return json.loads(out.splitlines()[-1])


def programs(build):
    return ROOT / "build" / ("pristine/bin" if build.startswith("pristine") else "bin")


def fingerprint(build):
    """Of the server, its libraries and what prepares the runs: outcomes of others are of no use."""
    here = Path(__file__).parent
    return program_hash(programs(build) / "llama-server", here / "hub.py", here / "prose.py", here / "plugin.py")


#
# phases
#

def environment(which, build, outcomes, policies):
    env = {name: value for name, value in os.environ.items() if not name.startswith(("LLAMA_", "HF_", "SUITE_"))}
    env.update(
        LLAMA_SERVER_BIN_PATH=str(programs(build) / "llama-server"), LLAMA_CACHE=str(WORK / which / "hub"), LLAMA_ARG_THREADS="1",
        OMP_NUM_THREADS="1", PORT=str(free_port()), PYTHONPATH=str(ROOT / "scripts"), SUITE_OUTCOMES=str(outcomes),
        # nothing of this asks the network: what tries is refused at once
        http_proxy="http://127.0.0.1:9", https_proxy="http://127.0.0.1:9", no_proxy="127.0.0.1,localhost,::1")
    if build in ("policy", "exact-policy"):
        env["SUITE_POLICIES"] = json.dumps(policies)
    if build in table.EXACT:
        env["GGML_HWKV_FATTN"] = "0"
    if build == table.OTHER:
        env["LLAMA_ARG_FLASH_ATTN"] = "off"
    return env


def run_tests(phase, outcomes, env, options, tests=()):
    """Shows how far it is every ten seconds. Returns the number of outcomes in the file."""
    def noted():
        return sum(1 for _ in outcomes.open(encoding="utf-8")) if outcomes.exists() else 0

    def total():
        """What pytest has said in this run, once the tests are collected."""
        with log.open("rb") as file:
            file.seek(size)
            found = re.search(rb"collected (\d+) items(?:.* (\d+) selected)?", file.read(1 << 20))
        return f" of {before + int(found[2] or found[1])}" if found else ""

    log = WORK / "logs" / f"{phase}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    size = log.stat().st_size if log.exists() else 0
    before = noted()
    command = [str(WORK / "venv" / "bin" / "python"), "-m", "pytest", "-p", "headwisekv.suite.plugin", "-p", "no:cacheprovider", "-m", "not slow", "-v",
               "--timeout", str(options.timeout), *options.pytest, *tests]
    with log.open("a", encoding="utf-8") as file:
        try:
            child = subprocess.Popen(command, env=env, cwd=SUITE, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT,
                                     start_new_session=True)
        except OSError as error:
            raise Failure(f"cannot run {command[0]}: {error.strerror}") from None
        process.sessions.append(child)
        began, shown = time.monotonic(), -1
        while True:
            try:
                code = child.wait(10)
                break
            except subprocess.TimeoutExpired:
                if noted() != shown:
                    shown = noted()
                    say(f"{phase}: {shown}{total()} outcomes, {time.monotonic() - began:.0f} s")
        process.sessions.remove(child)
    if code not in (0, 1, 5):  # passed, failed, nothing left to run
        raise Failure(f"{phase}: pytest ended with exit code {code}, see {log}")
    return noted()


def run_phase(which, build, options, policies):
    phase = f"{which}-{build}"
    folder = WORK / "outcomes"
    folder.mkdir(parents=True, exist_ok=True)
    outcomes, of = folder / f"{phase}.jsonl", folder / f"{phase}.of"
    mark = fingerprint(build)
    if options.fresh or not of.exists() or of.read_text() != mark:
        if outcomes.exists():
            say(f"{phase}: beginning anew, " + ("as asked" if options.fresh else "the server has changed"))
        for path in (outcomes, *folder.glob(f"{phase}.again*")):
            path.unlink(missing_ok=True)
        of.write_text(mark)
    say(f"{phase}: {run_tests(phase, outcomes, environment(which, build, outcomes, policies), options)} outcomes")


def read_phase(phase):
    """Outcomes of the first run and of those again."""
    found = {}
    for path in sorted((WORK / "outcomes").glob(f"{phase}.*jsonl"), key=lambda path: (".again" in path.name, path.name)):
        for name, runs in table.read_outcomes(path).items():
            found.setdefault(name, []).extend(runs)
    return found


def read_all():
    return {f"{which}-{build}": read_phase(f"{which}-{build}") for which in SETS for build in table.BUILDS}


def run_again(which, options, policies):
    """Tests that differ, in every build."""
    names = table.differences(read_all(), which)
    if not names or set(options.build) != set(table.BUILDS):
        return
    for i in range(options.again):
        for build in table.BUILDS:
            phase = f"{which}-{build}"
            outcomes = WORK / "outcomes" / f"{phase}.again{i}.jsonl"
            say(f"{phase}: {len(names)} tests again, {i + 1} of {options.again}")
            run_tests(phase, outcomes, environment(which, build, outcomes, policies), options, names)


#
# the table
#

def about():
    pin = read_pin(ROOT / "ggml" / "upstream" / "PIN")
    return {"commit": commit(), "package": f"{pin['package']} {pin['version']}",
            "hardware": f"{machine()['cpu']}, {os.cpu_count()} cores, 1 thread for each server", "command": "scripts/server-suite"}


def write_table():
    phases = read_all()
    text = table.report(phases, SETS, about())
    document = ROOT / "docs" / "server-tests.md"
    try:
        document.write_text(put_between(table.MARKS, document.read_text(encoding="utf-8"), text), encoding="utf-8")
    except ValueError as error:
        raise Failure(f"{document}: {error}") from None
    say(f"wrote {document.relative_to(ROOT)}")
    return sum(len(table.lost(phases, which, table.EXACT)) for which in SETS) + \
        sum(len(table.lost(phases, which)) - len(table.lost_by_rounding(phases, which)) for which in SETS)


def parse(arguments):
    parser = argparse.ArgumentParser(prog="scripts/server-suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=some_of(SETS, "models"), default=list(SETS), metavar="SETS", help=f"{','.join(SETS)} (default) or one of them")
    parser.add_argument("--build", type=some_of(table.BUILDS, "build"), default=list(table.BUILDS), metavar="BUILDS",
                        help=f"{','.join(table.BUILDS)} (default) or some of them")
    parser.add_argument("--again", type=number(0, 9), default=2, metavar="N", help="run tests that differ N times more (2)")
    parser.add_argument("--timeout", type=number(10, 3600), default=120, metavar="S", help="seconds for one test (120)")
    parser.add_argument("--fresh", action="store_true", help="forget noted outcomes of the phases that run")
    parser.add_argument("--table", action="store_true", help="only make the table from noted outcomes")
    parser.add_argument("pytest", nargs="*", metavar="PYTEST_ARG", help="for pytest, after --: e.g. -k slot (not for the table)")
    return parser.parse_args(arguments)


def run_all(options):
    os.chdir(ROOT)
    if options.table:
        return 1 if write_table() else 0
    locked = lock()  # noqa: F841
    if not Path(".venv/bin/python").exists():
        run(["scripts/setup", "venv"], "making .venv")
    prepare_builds()
    prepare_suite()
    prepare_venv()
    for which in options.models:
        for build in options.build:
            run_phase(which, build, options, prepare_models(which))
        run_again(which, options, prepare_models(which))
    return 1 if write_table() else 0


def main(arguments=None):
    options = parse(arguments)
    return process.exit_code(lambda: run_all(options), "interrupted: the same command goes on from here")
