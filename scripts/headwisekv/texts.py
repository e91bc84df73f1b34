"""Which text is used for what: to calibrate, to check on text that was held out, and as essays of haystacks and prompts.

The first of these that there is: TEXT=file, cut into parts; DATA=folder; ../shared/data; English prose from Debian's packages, cut too.
Parts never overlap, so that nothing is checked on what it was calibrated on.
"""

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path

from . import debian_books
from .core import ROOT, Failure, read_text, say, sha256_file, write_whole
from .fetch import cache_dir, fetch, read_pins

WORDS_PIN = ROOT / "scripts" / "headwisekv" / "evaluate" / "data" / "words.PIN"
WORD_LISTS = ("adjectivelist.txt", "nounlist.txt")
CALIBRATION = "calibration/wiki.valid.raw"
HELD_OUT = ("books/sherlock-holmes.txt", "books/pride-and-prejudice.txt")  # the shipped policies were not calibrated on them
PARTS = (("calibration", 0.3), ("held-out-1", 0.2), ("held-out-2", 0.2), ("essays", 0.3))  # of a text that is cut, their shares
LEAST = 10_000  # characters, below which no part is of any use


@dataclass(frozen=True)
class Texts:
    """Paths by use; what they are from, for people and for results."""
    calibration: Path
    held_out: tuple
    essays: tuple
    source: str
    folder: Path = None   # where it is a data folder
    packages: tuple = ()  # of Debian that the whole text is from
    sha256: str = None    # of the whole text

    def word_lists(self):
        """Paths of the words that keys of needles are drawn from."""
        if self.folder:
            return [self.folder / "ruler" / name for name in WORD_LISTS]
        return [fetch(pin, cache_dir()) for pin in read_pins(WORDS_PIN)]

    def record(self):
        """For results: what was read, and what it was used for."""
        def files(paths):
            return [{"file": path.name, "sha256": sha256_file(path)} for path in paths if path.is_file()]

        return {"source": self.source, "packages": list(self.packages), "sha256": self.sha256, "calibration": files([self.calibration]),
                "held_out": files(self.held_out), "essays": files(self.essays)}


#
# a data folder
#

def data_folder(given=None):
    """The data folder or None."""
    if given or os.environ.get("DATA"):
        return Path(given or os.environ["DATA"])
    beside = ROOT.parent / "shared" / "data"
    return beside if beside.is_dir() else None


def of_folder(folder):
    folder = Path(folder)
    return Texts(folder / CALIBRATION, tuple(folder / name for name in HELD_OUT), tuple(sorted((folder / "books").glob("essay-*.txt"))),
                 "files of the data folder", folder=folder)


#
# one text for everything
#

def break_near(text, at):
    """Where the next paragraph, line or word begins."""
    for separator in ("\n\n", "\n", " "):
        found = text.find(separator, at, at + 5000)
        if found >= 0:
            return found + len(separator)
    return at


def cut(text):
    """The parts of a text, by name."""
    parts, start, share = {}, 0, 0.0
    for name, size in PARTS:
        share += size
        end = break_near(text, round(share * len(text))) if share < 0.999 else len(text)
        parts[name] = text[start:end]
        start = end
    return parts


def of_file(path, source=None, packages=()):
    """Parts of a text, as files in build/texts."""
    path = Path(path)
    text = read_text(path)
    if len(text) < LEAST:
        raise Failure(f"{path} has {len(text)} characters, expected at least {LEAST}: it is cut into parts to calibrate, to check and for essays")
    whole = sha256_file(path)
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", path.stem)
    folder = ROOT / "build" / "texts" / f"{stem}-{whole[:12]}"
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for name, part in cut(text).items():
        files[name] = folder / f"{stem}-{name}.txt"
        if not files[name].is_file() or files[name].read_bytes() != part.encode():
            write_whole(files[name], part)
    return Texts(files["calibration"], (files["held-out-1"], files["held-out-2"]), (files["essays"],), source or path.name,
                 packages=packages, sha256=whole)


@functools.cache
def of_debian():
    path, record = debian_books.fetch_books(cache_dir())
    source = f"Debian's {debian_books.source_name(record)}"
    say(f"no data folder beside this clone: the text is from {source} (sha256 {record['sha256'][:12]})")
    return of_file(path, source, tuple(record["packages"]))


def choose(text=None, data=None):
    """Texts of a file or a folder; where neither is given, TEXT and DATA of the environment decide."""
    if not text and not data:
        text, data = os.environ.get("TEXT"), os.environ.get("DATA")
    if text and data:
        raise Failure(f"found a text ('{text}') and a data folder ('{data}'), expected one of them", code=2)
    if text:
        return of_file(text)
    folder = data_folder(data)
    return of_folder(folder) if folder else of_debian()
