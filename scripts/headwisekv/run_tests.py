"""Builds everything and runs every test: ctest in build/ and build-asan/, pytest for the repository and the server.

A suite that fails, or cannot run, never keeps the others from running. The last line is `N passed, N failed`.
Usage: scripts/test [--slow | --asan | --gpu]    PYTEST_ARGS in the environment is added to every pytest call.
"""

import argparse
import os
import re
import shlex
import time
import xml.etree.ElementTree as ElementTree

from . import devices, process
from .core import ROOT, say

REPORTS = ROOT / "build" / "reports"
PYTEST = [".venv/bin/python", "-m", "pytest"]

# llama.cpp, bridge and server under ASan and UBSan: exactness, random operations, reuse, slot files, faults
SANITIZED = ["tests/py/test_headwise.py", "tests/py/test_headwise_archs.py", "tests/py/test_headwise_types.py", "tests/py/test_devices.py",
             "tests/py/test_seqcalib.py", "tests/py/test_seqcalib_types.py", "tests/py/test_allocate.py",
             "tools/server/tests/test_reuse.py", "tools/server/tests/test_slot_files.py", "tools/server/tests/test_slot_attack.py",
             "tools/server/tests/test_faults.py"]
SANITIZED_BUILD = ["binaries", "rpc-server", "bridge-test", "round-test", "fail-state", "llama-seqcalib", "llama-kv-policy", "llama-kv-verify"]
SANITIZED_WITHOUT = [
    # ASan reserves terabytes of addresses, and holds what was freed for a while
    "test_out_of_memory_names_the_group", "test_what_is_restored_and_what_was_there_are_not_both_in_memory",
    "test_saved_prompts_share_what_is_saved_with_the_checkpoints", "test_rows_that_checkpoints_share_are_kept_once",
    "test_no_second_copy_of_a_checkpoint_is_made",
    # minutes a prompt on the default model without optimisation
    "test_default_model", "test_default_model_greedy",
    # ggml: `assert(scale > 0)` of rms_norm ends a debug build where the rows of a file were altered to what is no number
    "test_anything",
    # llama.cpp: `assert(found)` in llama_sampler_dist_apply ends a debug build on scores that are infinite
    "test_odd_numbers_and_unknown_fields_are_taken",
]
SANITIZER_OPTIONS = {
    # leaks: a server that is told to stop leaves its end to the system
    "ASAN_OPTIONS": "abort_on_error=1:detect_leaks=0",
    "UBSAN_OPTIONS": f"halt_on_error=1:print_stacktrace=1:suppressions={ROOT / 'tests' / 'ubsan.suppress'}",
}


# for Mesa's device in software: what makes it several times faster, and Debian 12's not crash
SOFTWARE_DEVICE = {
    "LD_PRELOAD": str(ROOT / "build-vulkan" / "bin" / "libkeep-buffers.so"),
    # it takes memory for every workgroup and gives it back: malloc is to keep it
    "MALLOC_MMAP_THRESHOLD_": str(2**32), "MALLOC_TRIM_THRESHOLD_": str(2**33),
    # a fused norm takes it three times as long; test_with_fused_operations has them
    "GGML_VK_DISABLE_FUSION": "1",
}

# only these have tests that need a device
GPU_BUILD = ["binaries", "rpc-server", "bridge-test", "keep-buffers", "llama-seqcalib", "llama-kv-policy", "llama-kv-verify"]


class Suite:
    """One run of ctest or pytest, or a preparation that failed and counts as one failure."""

    def __init__(self, name, note=""):
        self.name = name
        self.passed = self.skipped = 0
        self.failed = 1 if note else 0
        self.note = note
        self.seconds = 0.0
        self.report = REPORTS / (re.sub("[ /]", "-", name) + ".xml")
        self.began = self.child = self.log = None

    def start(self, command, env, background=False):
        """In the background the output goes to a file until finish() shows it."""
        self.report.unlink(missing_ok=True)
        self.began = time.monotonic()
        if background:
            self.log = open(self.report.with_suffix(".log"), "w+", encoding="utf-8", errors="replace")
        else:
            say(f"\n== {self.name}")
        option = "--output-junit" if command[0] == "ctest" else "--junit-xml"
        self.child = process.start([*command, option, str(self.report)], env, self.log)

    def finish(self):
        if self.began is None:
            return
        code, _ = process.finish(self.child)
        self.seconds = time.monotonic() - self.began
        if self.log:
            say(f"\n== {self.name}")
            self.log.seek(0)
            print(self.log.read(), end="", flush=True)
            self.log.close()
        self.count(code)

    def count(self, code):
        """Counts the cases of the JUnit file. No file, no cases, or an exit code that the cases do not explain is a failure too."""
        try:
            cases = list(ElementTree.parse(self.report).iter("testcase"))
        except (OSError, ElementTree.ParseError):
            cases = []
        for case in cases:
            skipped = case.find("skipped")
            # ctest has `skipped` for a program or fixture that is missing as well
            broken = case.get("status") == "notrun" and not (skipped is not None and skipped.get("message", "").startswith("SKIP_"))
            if broken or case.find("failure") is not None or case.find("error") is not None:
                self.failed += 1
            elif skipped is not None or case.get("status") == "disabled":
                self.skipped += 1
            else:
                self.passed += 1
        if not cases:
            self.failed, self.note = 1, f"no test ran (exit code {code})"
        elif code != 0 and self.failed == 0:
            self.failed, self.note = 1, f"exit code {code}"


def prepare(suites, name, *arguments):
    say(f"\n== {name}")
    code, out = process.run(["scripts/setup", *arguments], capture=True)
    if code != 0:
        suites.append(Suite(name, f"failed (exit code {code})"))
    return code == 0, out.strip()


def environment(folder, model):
    """One thread per program: ggml's barriers spin, and the tests share the machine."""
    env = dict(os.environ, HWKV_BIN=str(ROOT / folder / "bin"), HWKV_TEST_STRICT="1", LLAMA_ARG_THREADS="1", OMP_NUM_THREADS="1")
    return dict(env, HWKV_TEST_MODEL=model) if model else env


def run_sanitized(suites):
    """What runs in build-server-asan/."""
    ready, _ = prepare(suites, "build server-asan", "build", "server-asan", *SANITIZED_BUILD)
    venv, _ = prepare(suites, "python packages", "venv")
    has_model, model = prepare(suites, "model", "model")
    REPORTS.mkdir(parents=True, exist_ok=True)

    ready = ready and venv and has_model
    suites.append(Suite("pytest build-server-asan", "" if ready else "did not run: see above"))
    if ready:
        without = " and ".join(f"not {name}" for name in SANITIZED_WITHOUT)
        command = [*PYTEST, "-q", "-n", "2", "--dist", "worksteal", "-m", "not slow", "-k", without, *shlex.split(os.environ.get("PYTEST_ARGS", "")), *SANITIZED]
        suites[-1].start(command, {**environment("build-server-asan", model), **SANITIZER_OPTIONS})
        suites[-1].finish()


def run_gpu(suites):
    """What runs in build-vulkan/: on the device that GGML_VK_VISIBLE_DEVICES names, else on the first, which may be software."""
    ready, _ = prepare(suites, "build vulkan", "build", "vulkan", *GPU_BUILD)
    venv, _ = prepare(suites, "python packages", "venv")
    has_model, model = prepare(suites, "model", "model")
    REPORTS.mkdir(parents=True, exist_ok=True)

    ready = ready and venv and has_model
    suites.append(Suite("pytest build-vulkan", "" if ready else "did not run: see above"))
    if ready:
        os.environ.setdefault("GGML_VK_VISIBLE_DEVICES", "0")
        software = any("llvmpipe" in device.description for device in devices.listed(ROOT / "build-vulkan" / "bin" / "llama-server"))
        command = [*PYTEST, "-q", "-n", "2", "--dist", "worksteal", "--timeout", "900", "-m", "gpu", *shlex.split(os.environ.get("PYTEST_ARGS", ""))]
        suites[-1].start(command, {**environment("build-vulkan", model), **(SOFTWARE_DEVICE if software else {})})
        suites[-1].finish()


def run_all(slow, suites):
    """Prepares what the suites need, then runs those whose needs are met; fills the list as it goes."""
    packages = process.start(["scripts/setup", "venv"])  # mostly waits, so it goes beside the build
    cpu, _ = prepare(suites, "build cpu", "build", "cpu")
    if cpu:
        prepare(suites, "build pristine", "build", "cpu", "pristine")  # ctest would build it too, but tests beside it need it
    asan, _ = prepare(suites, "build debug-asan", "build", "debug-asan")
    code, _ = process.finish(packages)
    venv = code == 0
    if not venv:
        suites.append(Suite("python packages", f"failed (exit code {code})"))
    has_model, model = prepare(suites, "model", "model")

    env = environment("build", model if has_model else None)
    ctest = ["ctest", "--timeout", "900", "--output-on-failure", *([] if slow else ["-LE", "slow"])]
    pytest = [*PYTEST, "-q", *(["-m", "not gpu"] if slow else []), *shlex.split(os.environ.get("PYTEST_ARGS", ""))]
    REPORTS.mkdir(parents=True, exist_ok=True)

    def start(name, command, ready, background=False):
        suites.append(Suite(name, "" if ready else "did not run: see above"))
        if ready:
            suites[-1].start(command, env, background)
        return suites[-1]

    # two cores, and tests that mostly wait or use one: two of pytest's at a time, the programs of ctest beside them
    beside = [
        start("ctest build", [*ctest, "--test-dir", "build"], cpu, background=True),
        start("ctest build-asan", [*ctest, "--test-dir", "build-asan"], asan, background=True),
    ]
    start("pytest tests/py", [*pytest, "-n", "2", "--dist", "worksteal", "tests/py"], cpu and venv).finish()
    for suite in beside:
        suite.finish()
    start("pytest tools/server/tests", [*pytest, "-n", "2", "--dist", "loadfile", "tools/server/tests"], cpu and venv and has_model).finish()


def print_table(suites):
    width = max(len(suite.name) for suite in suites)
    print(f"\n{'suite':<{width}}  passed  failed  skipped  seconds")
    for suite in suites:
        print(f"{suite.name:<{width}}  {suite.passed:6}  {suite.failed:6}  {suite.skipped:7}  {suite.seconds:7.1f}  {suite.note}".rstrip())
    passed, failed, skipped = (sum(getattr(suite, key) for suite in suites) for key in ("passed", "failed", "skipped"))
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return failed


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/test", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--slow", action="store_true", help="run the slow tests too, and those of --asan")
    only.add_argument("--asan", action="store_true", help="run llama.cpp, bridge and server under ASan and UBSan, and nothing else")
    only.add_argument("--gpu", action="store_true", help="run what needs a GPU, on Vulkan, and nothing else")
    options = parser.parse_args(arguments)

    def work():
        os.chdir(ROOT)
        suites = []
        if options.gpu:
            run_gpu(suites)
        elif not options.asan:
            run_all(options.slow, suites)
        if options.slow or options.asan:
            run_sanitized(suites)
        return 1 if print_table(suites) else 0

    return process.exit_code(work, "interrupted: the remaining suites did not run")
