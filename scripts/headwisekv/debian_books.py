"""English prose for a clone with no data folder beside it: the books of Debian's own packages, as one text in the per-user cache.

Packages change with Debian's releases, so nothing is pinned: what was found is recorded beside the text, and stays until it is deleted.
"""

import json
import os
import posixpath
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

from .core import Failure, say, sha256_file, write_whole
from .fetch import is_there, run_quietly, using
from .html_prose import book

# package, its page with the contents; taken in this order until there is enough
BOOKS = [
    ("debian-handbook", "usr/share/doc/debian-handbook/html/en-US/index.html"),
    ("developers-reference", "usr/share/developers-reference/index.html"),
    ("debian-faq", "usr/share/doc/debian/FAQ/index.en.html"),
    ("debian-reference-en", "usr/share/debian-reference/index.en.html"),
    ("debian-policy", "usr/share/doc/debian-policy/policy.html/index.html"),
]
ENOUGH = 1_500_000  # characters: more than 300,000 tokens
LEAST = 1_000_000   # what `make eval` needs in its parts
NAME = "debian-books"
GO_ON = "give a text of your own with TEXT=file, or a data folder with DATA=folder"


#
# packages
#

def apt_reason(lines):
    """The first line that apt calls an error."""
    errors = [line.partition(" ")[2].strip() for line in lines if line.startswith(("E:", "Err:"))]
    return errors[0] if errors else "apt-get gave no reason"


class Apt:
    """Downloads packages into a folder; no root rights, but package lists, are needed for that."""

    def __init__(self, tmp):
        self.tmp = tmp
        self.updated = False

    def run(self, *arguments):
        return run_quietly(["apt-get", "-q", *arguments], self.tmp, f"apt-get {' '.join(arguments)}", cwd=self.tmp)

    def download(self, package):
        code, output = self.run("download", package)
        if code != 0 and not self.updated and os.geteuid() == 0:
            self.updated = True  # a container's lists are often missing or too old
            say("updating the package lists")
            self.run("update")
            code, output = self.run("download", package)
        found = sorted(self.tmp.glob(f"{package}_*.deb"))
        if code != 0 or not found:
            reason = apt_reason(output)
            raise Failure(f"{reason}; as root apt-get update may help" if "Unable to locate" in reason and os.geteuid() != 0 else reason)
        return found[0]


def read_version(deb):
    return subprocess.run(["dpkg-deb", "--field", deb, "Version"], capture_output=True, text=True, check=True).stdout.strip()


def read_pages(deb, folder):
    """HTML pages of one folder of a package, by name; the package is never unpacked to disk."""
    pages = {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        with tarfile.open(fileobj=child.stdout, mode="r|") as archive:
            for member in archive:
                parent, name = posixpath.split(member.name.removeprefix("./"))
                if member.isfile() and parent == folder and name.endswith(".html"):
                    pages[name] = archive.extractfile(member).read().decode("utf-8", errors="replace")
    return pages


def read_book(apt, package, index):
    """(paragraphs, record) of one package; raises Failure where it cannot be had."""
    deb = apt.download(package)
    try:
        version = read_version(deb)
        say(f"reading {package} {version}")
        folder, start = posixpath.split(index)
        pages = read_pages(deb, folder)
        if start not in pages:
            raise Failure(f"found no {index} in it")
        text = book(pages.pop(start), pages.get)
        return text, {"package": package, "version": version, "sha256": sha256_file(deb), "characters": sum(map(len, text))}
    except (subprocess.CalledProcessError, tarfile.TarError) as error:
        raise Failure(f"{deb.name} cannot be read: {error}") from None
    finally:
        deb.unlink()


#
# the text
#

def make_text(tmp):
    """(text, records of packages)."""
    apt = Apt(tmp)
    paragraphs, records, missing = {}, [], []
    for package, index in BOOKS:
        if sum(map(len, paragraphs)) >= ENOUGH:
            break
        try:
            found, record = read_book(apt, package, index)
            paragraphs.update(dict.fromkeys(found))
            records.append(record)
        except Failure as failure:
            missing.append(f"{package}: {failure}")
            say(f"left out {missing[-1]}")
    size = sum(map(len, paragraphs))
    if size < LEAST:
        reason = f" ({missing[0]})" if missing else ""
        raise Failure(f"found {size} characters of English prose in Debian's packages{reason}, expected at least {LEAST}: {GO_ON}")
    return "\n\n".join(paragraphs) + "\n", records


def read_record(path):
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(record["sha256"], str) and all(isinstance(entry[key], str) for entry in record["packages"] for key in ("package", "version")):
            return record
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        pass
    raise Failure(f"{path} is not a record of a text: delete it and run this again")


def source_name(record):
    return ", ".join(f"{entry['package']} {entry['version']}" for entry in record["packages"])


def fetch_books(cache, offline=False):
    """(path of the text, its record: sha256, packages with their versions). Raises Failure."""
    text_path, record_path = cache / f"{NAME}.txt", cache / f"{NAME}.json"
    with using(cache, text_path.name):
        record = read_record(record_path)
        if record is not None and is_there(text_path, record["sha256"]):
            return text_path, record
        if offline:
            raise Failure(f"{text_path.name} is not in {cache} and downloading was switched off: {GO_ON}")
        missing = [name for name in ("apt-get", "dpkg-deb") if not shutil.which(name)]
        if missing:
            raise Failure(f"there is no {missing[0]} here to fetch English text with (Debian's packages): {GO_ON}")
        say(f"fetching English prose from Debian's packages into {cache} (once; up to a minute)")
        tmp = Path(tempfile.mkdtemp(prefix=".fetch-", dir=cache))
        try:
            text, packages = make_text(tmp)
        finally:
            shutil.rmtree(tmp, ignore_errors=True)
        record_path.unlink(missing_ok=True)
        write_whole(text_path, text)
        record = {"sha256": sha256_file(text_path), "characters": len(text), "packages": packages}
        write_whole(record_path, json.dumps(record, indent=1) + "\n")  # last: a text without it counts as none
        return text_path, record
