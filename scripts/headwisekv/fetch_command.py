"""Gets a model, a text or a pinned package into the per-user cache and prints the path of the verified file.

  scripts/fetch gemma3-270m    a model by its name; models/README.md lists them
  scripts/fetch text           English prose from Debian's packages, for calibration and evaluation without a data folder
  scripts/fetch models/PIN     what a pin file names

Everything but the path goes to stderr.
"""

import argparse
import os
import textwrap

from . import debian_books, models
from .core import Failure, exit_code, say
from .fetch import cache_dir, fetch, read_pins
from .joined import fetch_joined

TEXT = "text"


def show_notice(pin, cache):
    """Terms of a model, before it is fetched."""
    if "notice" in pin and not (cache / pin["file"]).exists():
        for line in textwrap.wrap(pin["notice"], 100, break_long_words=False, break_on_hyphens=False):
            say(line)


def fetch_pins(path, cache, offline=False):
    """Paths of what a pin file names."""
    pins = read_pins(path)
    show_notice(pins[0], cache)
    if pins[0]["kind"] == "joined":
        return [fetch_joined(pins, cache, offline)]
    return [fetch(pin, cache, offline) for pin in pins]


def fetch_named(what, cache, offline=False):
    """A path or the name of a model; a name with a folder in it, or of a file that is there, is a path."""
    if what == TEXT and not os.path.exists(what):
        return [debian_books.fetch_books(cache, offline)[0]]
    if os.sep in what or os.path.exists(what):
        return fetch_pins(what, cache, offline)
    known = models.pin_files()
    if what not in known:
        raise Failure(f"found '{what}', expected a pin file, {TEXT} or a model's name: {', '.join(known)}")
    return fetch_pins(known[what], cache, offline)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/fetch", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", metavar="NAME|PINFILE")
    parser.add_argument("--cache", metavar="DIR", help="cache folder (default: $HWKV_CACHE_DIR or ~/.cache/headwisekv)")
    parser.add_argument("--offline", action="store_true", help="never download")
    options = parser.parse_args(arguments)

    def work():
        try:
            for path in fetch_named(options.what, cache_dir(options.cache), options.offline):
                print(path)
        except KeyboardInterrupt:
            raise Failure("interrupted: only whole files and parts were kept, the same command goes on") from None
        return 0

    return exit_code(work)
