"""scripts/fetch text: prose from Debian's packages, with stand-ins for apt-get and dpkg-deb."""

import hashlib
import json
import os
import re

import pytest
from fake_debian import make_package, make_tools, prepare_cache, prose
from test_fetch import check_failed, run

from headwisekv import debian_books
from headwisekv.core import Failure
from headwisekv.fetch import cache_dir

pytestmark = pytest.mark.unit

FIRST, SECOND, THIRD = debian_books.BOOKS[:3]


@pytest.fixture
def archive(tmp_path):
    folder = tmp_path / "archive"
    folder.mkdir()
    return folder


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def use(tmp_path, monkeypatch):
    """use(least, enough, lists) puts the stand-ins into PATH and sets the sizes of a text, in characters."""
    def prepare(archive, least, enough, lists=True):
        tools = make_tools(tmp_path / "tools", archive, lists)
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
        monkeypatch.setattr(debian_books, "LEAST", least)
        monkeypatch.setattr(debian_books, "ENOUGH", enough)
        return tools

    return prepare


def test_packages_are_taken_until_there_is_enough(archive, cache, use, capsys):
    for package, index in (FIRST, SECOND, THIRD):
        make_package(archive, package, index, 100, "12.3-1")
    tools = use(archive, 5000, 10000)
    path, record = debian_books.fetch_books(cache)
    text = path.read_text()
    assert text == "\n\n".join(prose(FIRST[0], 100) + prose(SECOND[0], 100)) + "\n"
    assert [(entry["package"], entry["version"]) for entry in record["packages"]] == [(FIRST[0], "12.3-1"), (SECOND[0], "12.3-1")]
    assert record["packages"][0]["sha256"] == hashlib.sha256((archive / f"{FIRST[0]}_12.3-1_all.deb").read_bytes()).hexdigest()
    assert record["sha256"] == hashlib.sha256(text.encode()).hexdigest()
    assert sorted(path.name for path in cache.iterdir()) == ["debian-books.json", "debian-books.txt"]
    assert (tools / "calls.txt").read_text().splitlines() == [f"-q download {FIRST[0]}", f"-q download {SECOND[0]}"]
    assert capsys.readouterr().err.splitlines()[-1] == f"reading {SECOND[0]} 12.3-1"

    # what is there stays, whatever the archive has now
    (tools / "apt-get").write_text("#!/bin/sh\nexit 1\n")
    assert debian_books.fetch_books(cache) == (path, json.loads(json.dumps(record)))


def test_a_package_that_cannot_be_had_is_left_out(archive, cache, use, capsys):
    make_package(archive, FIRST[0], "usr/share/moved/index.html", 10)
    make_package(archive, THIRD[0], THIRD[1], 100)
    use(archive, 5000, 1000000)
    _, record = debian_books.fetch_books(cache)
    assert [entry["package"] for entry in record["packages"]] == [THIRD[0]]
    said = capsys.readouterr().err
    assert f"left out {FIRST[0]}: found no {FIRST[1]} in it" in said and f"left out {SECOND[0]}: Unable to locate package" in said


def test_too_little_prose_is_an_error(archive, cache, use):
    make_package(archive, *FIRST, 100)
    use(archive, 1000000, 2000000)
    with pytest.raises(Failure, match=r"found \d+ characters of English prose .*Unable to locate.* expected at least 1000000: .*TEXT=file.*DATA=folder"):
        debian_books.fetch_books(cache)
    assert list(cache.iterdir()) == []


@pytest.mark.parametrize("root", [True, False])
def test_package_lists_are_updated_by_root(archive, cache, use, monkeypatch, root):
    make_package(archive, *FIRST, 100)
    tools = use(archive, 5000, 6000, lists=False)
    monkeypatch.setattr(debian_books.os, "geteuid", lambda: 0 if root else 1000)
    if root:
        assert debian_books.fetch_books(cache)[1]["packages"][0]["package"] == FIRST[0]
        assert (tools / "calls.txt").read_text().splitlines() == [f"-q download {FIRST[0]}", "-q update", f"-q download {FIRST[0]}"]
    else:
        with pytest.raises(Failure, match="as root apt-get update may help"):
            debian_books.fetch_books(cache)
        assert "update" not in (tools / "calls.txt").read_text()


def test_no_apt_says_how_to_go_on(tmp_path, cache):
    (tmp_path / "empty").mkdir()
    check_failed(run("text", "--cache", cache, PATH=str(tmp_path / "empty")), "no apt-get", "TEXT=file", "DATA=folder")
    check_failed(run("text", "--cache", cache, "--offline"), "switched off", "TEXT=file")


def test_a_text_that_is_there_needs_no_apt(tmp_path, cache):
    path = prepare_cache(cache)
    (tmp_path / "empty").mkdir()
    done = run("text", "--cache", cache, PATH=str(tmp_path / "empty"))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{path}\n", "")


def test_a_damaged_text_is_not_used(cache):
    path = prepare_cache(cache)
    path.write_text("other words")
    check_failed(run("text", "--cache", cache), path, "delete it")
    for broken in ("", "[]", "{}", '{"sha256": 5, "packages": []}', '{"sha256": "x", "packages": [{}]}'):
        path.with_suffix(".json").write_text(broken)
        check_failed(run("text", "--cache", cache), path.with_suffix(".json"), "delete it")


def test_a_text_without_its_record_counts_as_none(cache):
    prepare_cache(cache).with_suffix(".json").unlink()
    check_failed(run("text", "--cache", cache, "--offline"), "debian-books.txt is not in")


def test_what_debian_has_is_clean_english():
    """Of the real packages, where an earlier run has fetched them."""
    path = cache_dir() / "debian-books.txt"
    if not path.is_file():
        pytest.skip(f"{path} is missing: scripts/fetch text gets it")
    text = debian_books.fetch_books(cache_dir(), offline=True)[0].read_text()
    paragraphs = text.strip().split("\n\n")
    assert len(text) >= debian_books.LEAST and len(set(paragraphs)) == len(paragraphs)
    assert not any("\n" in paragraph or "\ufffd" in paragraph or re.search(r"</?(p|div|a|li|em|code|span)[ >]|&(amp|lt|gt|nbsp);", paragraph) for paragraph in paragraphs)
    assert sum(character.isascii() for character in text) > 0.99 * len(text)
    words = text.lower().split()
    assert sum(words.count(word) for word in ("the", "of", "and", "to", "a", "is", "in")) > 0.15 * len(words)
