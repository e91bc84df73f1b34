"""scripts/setup and scripts/test in a bare copy of the project, with stand-ins for the tools they call."""

import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from server_process import ROOT, free_port

pytestmark = pytest.mark.unit


@pytest.fixture
def bare(tmp_path):
    """A project folder with nothing built; programs in its stub/ come first in PATH."""
    folder = tmp_path / "project"
    (folder / "stub").mkdir(parents=True)
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Makefile", folder)
    (folder / "CMakePresets.json").write_text("{}\n")
    return folder


def stub(folder, name, text):
    path = folder / "stub" / name
    path.write_text("#!/usr/bin/env bash\n" + text)
    path.chmod(0o755)


def few_tools(folder, *names):
    """A PATH with nothing but these programs and the stubs that are there."""
    for name in ("bash", "cat", "dirname", "env", "id", "paste", *names):
        if not (folder / "stub" / name).exists():
            (folder / "stub" / name).symlink_to(shutil.which(name))
    return str(folder / "stub")


def stub_env(folder, **extra):
    return dict(os.environ, **{"PATH": f"{folder}/stub:{os.environ['PATH']}", **extra})


def setup(folder, *arguments, **extra):
    return subprocess.run(["/bin/bash", "scripts/setup", *arguments], cwd=folder, env=stub_env(folder, **extra), stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=60)


def test_check_names_what_is_missing(bare):
    done = setup(bare, "--check", PATH=few_tools(bare, "gcc", "git"))
    assert done.returncode == 1
    assert done.stdout == "missing: g++ cmake ninja-build ccache curl pkg-config python3 libcjson-dev python3-pip python3-venv\n"


def test_check_is_content_when_nothing_is_missing(bare):
    for name in ("gcc", "g++", "cmake", "ninja", "ccache", "git", "curl", "pkg-config", "python3"):
        stub(bare, name, "exit 0\n")
    done = setup(bare, "--check", PATH=few_tools(bare))
    assert (done.returncode, done.stdout) == (0, "nothing is missing\n")


def test_browser_is_only_for_the_tests(bare):
    for name in ("gcc", "g++", "cmake", "ninja", "ccache", "git", "curl", "pkg-config", "python3"):
        stub(bare, name, "exit 0\n")
    done = setup(bare, "--check", "test", PATH=few_tools(bare))
    assert (done.returncode, done.stdout) == (1, "missing: chromium chromium-driver\n")


def test_packages_are_installed_in_one_call(bare):
    stub(bare, "apt-get", 'echo "$@" >> calls\n')
    stub(bare, "id", "echo 0\n")
    done = setup(bare, "packages", PATH=few_tools(bare, "git"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ("installing system packages: gcc g++ cmake ninja-build ccache curl pkg-config python3 "
                           "libcjson-dev python3-pip python3-venv\n")
    update, install = (bare / "calls").read_text().splitlines()
    assert update.startswith("update")
    assert install.startswith("install -y --no-install-recommends gcc g++ cmake ")


def test_no_rights_names_the_command_to_run(bare):
    stub(bare, "apt-get", "echo must not be called >&2; exit 1\n")
    stub(bare, "id", "echo 1000\n")
    done = setup(bare, "packages", PATH=few_tools(bare))
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "run as root: apt-get install -y --no-install-recommends gcc g++ cmake ninja-build" in done.stderr


def test_first_build_asks_for_disk_space(bare):
    done = setup(bare, "build", "cpu", HWKV_MIN_FREE_MIB="999999999")
    assert done.returncode == 1
    assert re.fullmatch(rf"error: a first build needs about 999999999 MiB of disk, found \d+ MiB in {re.escape(str(bare))}\n", done.stderr)


@pytest.mark.parametrize("step", ["--preset", "--build"])
def test_full_disk_is_told_apart(bare, step):
    stub(bare, "cmake", f'[ "$1" != {step} ] || {{ echo "cc1: fatal error: x.s: No space left on device"; exit 1; }}\n')
    done = setup(bare, "build", "cpu")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: the disk ran full: ")


def test_failed_build_is_an_error(bare):
    stub(bare, "cmake", "exit 1\n")
    done = setup(bare, "build", "debug-asan")
    assert (done.returncode, done.stderr) == (1, "error: configuring preset debug-asan failed, see above\n")


def test_configures_only_when_needed(bare):
    stub(bare, "cmake", 'echo "$1" >> calls; [ "$1" != --preset ] || echo > build-asan/build.ninja\n')
    for presets in ("{}", "{}", '{"version": 3}'):
        (bare / "CMakePresets.json").write_text(presets + "\n")
        assert setup(bare, "build", "debug-asan").returncode == 0
    assert (bare / "calls").read_text().split() == ["--preset", "--build", "--build", "--preset", "--build"]


@pytest.mark.parametrize("arguments", [[], ["--help"], ["build"], ["build", "release"], ["model", "x"], ["packages", "x"]])
def test_wrong_usage_of_setup(bare, arguments):
    done = setup(bare, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr


def test_make_alone_lists_the_targets(bare):
    done = subprocess.run(["make"], cwd=bare, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0
    for target in ("run", "test", "test-slow", "build", "clean"):
        assert f"make {target} " in done.stdout


#
# scripts/test: what it counts and how it ends
#

PASS = '<testcase name="a"/>'
FAIL = '<testcase name="b"><failure/></testcase>'
ERROR = '<testcase name="c"><error/></testcase>'
SKIP = '<testcase name="d"><skipped/></testcase>'
CTEST_SKIP = '<testcase name="e" status="notrun"><skipped message="SKIP_RETURN_CODE=77"/></testcase>'
CTEST_MISSING = '<testcase name="f" status="notrun"><skipped message="Unable to find executable"/></testcase>'
NO_REPORT = None


def stub_suite(folder, name, cases, code):
    """A test runner that writes these cases to the file named last on its command line and ends with this code."""
    text = "echo ran >> calls\n"
    if cases is not NO_REPORT:
        (folder / f"{name}.xml").write_text(f"<testsuite>{''.join(cases)}</testsuite>")
        text += f'cp {folder}/{name}.xml "${{@: -1}}"\n'
    stub(folder, name, text + f"exit {code}\n")


def prepare_test(folder, ctest=((PASS,), 0), pytest=((PASS,), 0), setup_text=""):
    (folder / "scripts" / "setup").write_text(f"#!/usr/bin/env bash\n{setup_text}\n")
    stub_suite(folder, "ctest", *ctest)
    stub_suite(folder, "python", *pytest)
    (folder / ".venv" / "bin").mkdir(parents=True)
    (folder / ".venv" / "bin" / "python").symlink_to(folder / "stub" / "python")


def run_test(folder, **suites):
    prepare_test(folder, **suites)
    done = subprocess.run(["scripts/test"], cwd=folder, env=stub_env(folder), stdin=subprocess.DEVNULL, capture_output=True,
                          text=True, timeout=60)
    return done.returncode, done.stdout.splitlines()[-1], len((folder / "calls").read_text().split())


def test_all_passed(bare):
    assert run_test(bare) == (0, "4 passed, 0 failed", 4)


def test_skips_are_counted(bare):
    assert run_test(bare, pytest=((PASS, SKIP), 0)) == (0, "4 passed, 0 failed, 2 skipped", 4)


def test_missing_program_is_a_failure_and_no_skip(bare):
    assert run_test(bare, ctest=((PASS, CTEST_SKIP, CTEST_MISSING), 8)) == (1, "4 passed, 2 failed, 2 skipped", 4)


def test_failures_keep_nothing_from_running(bare):
    assert run_test(bare, ctest=((PASS, FAIL), 8), pytest=((PASS, ERROR), 1)) == (1, "4 passed, 4 failed", 4)


@pytest.mark.parametrize("cases", [NO_REPORT, ()])
def test_suite_without_tests_is_a_failure(bare, cases):
    assert run_test(bare, ctest=(cases, 0)) == (1, "2 passed, 2 failed", 4)


def test_unexplained_exit_code_is_a_failure(bare):
    assert run_test(bare, pytest=((PASS,), 3)) == (1, "4 passed, 2 failed", 4)


def test_failed_build_fails_its_suites_only(bare):
    # the build, ctest build and both pytest suites
    assert run_test(bare, setup_text='[ "$2" != cpu ]') == (1, "1 passed, 4 failed", 1)


def is_running(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"  # ended, but nobody has asked for its code
    except FileNotFoundError:
        return False


def end_by_signal(folder, script, number):
    """Sends the signal once a child has written its id to the file `child`; returns the exit code and stderr."""
    process = subprocess.Popen([script], cwd=folder, env=stub_env(folder, PORT=str(free_port())), stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    child = folder / "child"
    deadline = time.monotonic() + 20
    while not (child.exists() and child.read_text().strip()) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(process.pid, number)
    out, err = process.communicate(timeout=30)
    assert out == ""
    assert not is_running(int(child.read_text()))
    return process.returncode, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_the_tests_and_their_children(bare, number):
    prepare_test(bare)
    stub(bare, "ctest", 'trap "echo torn down > end; exit 1" INT; echo $$ > child; while :; do sleep 0.1; done\n')
    code, err = end_by_signal(bare, "scripts/test", number)
    assert code == 128 + number
    assert err.splitlines()[-1] == "interrupted: the remaining suites did not run"
    assert (bare / "end").read_text() == "torn down\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_ends_a_build_of_make_run(bare, number):
    (bare / "scripts" / "setup").write_text('#!/usr/bin/env bash\n[ "$1" != build ] || { sleep 100 & echo $! > child; wait; }\n')
    code, _ = end_by_signal(bare, "scripts/serve", number)
    assert code == 128 + number
