"""What every command needs: where the tree is, failures that are one line for people, and whole files."""

import hashlib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Failure(Exception):
    """Ends a command with an exit code; one line for people."""

    def __init__(self, text, code=1):
        super().__init__(text)
        self.code = code


def say(text):
    print(text, file=sys.stderr, flush=True)


def exit_code(work, interrupted="interrupted"):
    """Of a command: what work() returns, or that of what ended it, which is said."""
    try:
        return work()
    except Failure as failure:
        say(f"error: {failure}")
        return failure.code
    except OSError as error:
        say(f"error: {error.filename}: {error.strerror}" if error.filename else f"error: {error}")
        return 1
    except KeyboardInterrupt:
        say(interrupted)
        return 130


def going_on(options):
    """What to say when Ctrl-C ends a command whose results are in options.out."""
    return f"interrupted: what is done is in {options.out}, the same command goes on"


def read_text(path):
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise Failure(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Failure(f"{path} is not UTF-8 text") from None


def sha256_file(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def write_whole(path, data):
    """The whole new file or the old one."""
    temp = Path(f"{path}.tmp")
    temp.write_bytes(data if isinstance(data, bytes) else data.encode())
    os.replace(temp, path)
