#!/usr/bin/env python3
"""Unpack the pinned llama.cpp, apply the patch series and bring the result into a folder of the build tree.

usage: upstream.py --out DIR [--pristine] [--patches DIR] [--cache DIR] [--offline] [--cmake]
       upstream.py --check-tree DIR [--patches DIR] [--cmake]

Results are `key value` lines on stdout. A finished folder carries a stamp; one that was interrupted has none and is
made again. Only files whose content changes are written, so that a changed patch doesn't rebuild the world.
"""

import argparse
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections import Counter
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True  # CMake runs this: a build leaves nothing in the source tree
sys.path.insert(0, str(HERE.parent.parent / "scripts"))  # the one such line: this is run by itself, and the fetcher belongs to scripts/

from headwisekv import fetch  # noqa: E402
from headwisekv.core import Failure, say, sha256_file  # noqa: E402

PIN_FILE = HERE / "PIN"
PATCHES = HERE / "patches"
STAMP = ".hwkv-stamp"

# what the build and upstream's server tests need of vendor/llama.cpp
KEEP = ("CMakeLists.txt", "LICENSE", "cmake/", "common/", "ggml/", "gguf-py/", "grammars/", "include/", "licenses/", "models/",
        "scripts/ui-assets.cmake", "src/", "tools/", "vendor/")
SKIP = ("tools/ui/src/", "tools/ui/static/", "tools/ui/tests/")
NO_CODE = ("models/", "gguf-py/")  # most of the bytes, and never patched


class Patch:
    """One file of the series: its header and the lines it adds and removes, by file."""

    def __init__(self, path):
        self.path = Path(path)
        self.name = self.path.name
        self.data = self.path.read_bytes()
        text = self.data.decode("utf-8")
        head, sep, diff = text.partition("\ndiff --git ")
        self.head = head
        self.diff = "diff --git " + diff if sep else ""
        self.added = {}
        self.removed = {}
        self._scan()

    def _scan(self):
        file = None
        in_hunk = False
        for line in self.diff.split("\n"):
            if line.startswith("diff --git "):
                file = line.split(" b/", 1)[-1]
                in_hunk = False
                self.added[file] = []
                self.removed[file] = []
            elif line.startswith("@@ "):
                in_hunk = True
            elif in_hunk and line.startswith("+"):
                self.added[file].append(line[1:])
            elif in_hunk and line.startswith("-"):
                self.removed[file].append(line[1:])

    def field(self, name):
        found = re.search(rf"^{name}: *(\S.*)$", self.head, re.MULTILINE)
        return found.group(1) if found else None

    @property
    def n_added(self):
        return sum(len(lines) for lines in self.added.values())

    @property
    def n_removed(self):
        return sum(len(lines) for lines in self.removed.values())


def read_series(patches):
    path = Path(patches) / "series"
    try:
        return [line for line in path.read_text(encoding="ascii").split("\n") if line]
    except OSError as e:
        raise Failure(f"cannot read {path}: {e.strerror}") from None


def read_patches(patches):
    result = []
    for name in read_series(patches):
        try:
            result.append(Patch(Path(patches) / name))
        except OSError as e:
            raise Failure(f"{name} is in the series but cannot be read: {e.strerror}") from None
    return result


def series_hash(patches):
    digest = hashlib.sha256()
    for patch in patches:
        digest.update(patch.name.encode() + b"\0" + hashlib.sha256(patch.data).digest())
    return digest.hexdigest()


def unpack(package, out, skip=()):
    """The parts of vendor/llama.cpp we use, into the new folder `out`."""
    n_files = 0
    with tarfile.open(package, "r:gz") as archive:
        for member in archive:
            _, _, path = member.name.partition("/vendor/llama.cpp/")
            if not member.isfile() or not path.startswith(KEEP) or path.startswith(SKIP + skip) or ".." in path.split("/"):
                continue
            target = out / path
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.extractfile(member) as src, open(target, "wb") as dst:
                shutil.copyfileobj(src, dst, 1 << 20)
            if member.mode & 0o111:
                target.chmod(0o755)
            n_files += 1
    if n_files == 0:
        raise Failure(f"{package} has no vendor/llama.cpp")


def git(tree, *args, check=False):
    """git in a folder that is no work tree. Inside another one `git apply` would succeed and change nothing."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env.update(GIT_CEILING_DIRECTORIES=str(Path(tree).resolve().parent), GIT_CONFIG_NOSYSTEM="1",
               GIT_CONFIG_GLOBAL=os.devnull, LC_ALL="C")
    try:
        done = subprocess.run(["git", *args], cwd=tree, env=env, capture_output=True, text=True)
    except FileNotFoundError:
        raise Failure("git, which applies the patches, is missing: install git") from None
    if check and done.returncode != 0:
        raise Failure(f"git {args[0]} failed: {first_line(done.stderr)}")
    return done


def first_line(text):
    return text.strip().split("\n")[0] if text.strip() else "no reason given"


def line_counts(tree, path):
    try:
        return Counter((Path(tree) / path).read_text(encoding="utf-8").split("\n"))
    except OSError:
        return Counter()


def apply_patch(tree, patch, pin, reverse=False):
    """Applies without fuzz or offset, then counts lines ourselves: git's exit code alone has been wrong."""
    before = {path: line_counts(tree, path) for path in patch.added}
    direction = ["-R"] if reverse else []
    name = str(patch.path.resolve())
    done = git(tree, "apply", "--check", "-v", "--whitespace=error-all", *direction, name)
    if done.returncode != 0 or re.search(r"offset|with fuzz", done.stderr):
        errors = [line for line in done.stderr.split("\n") if line.startswith("error:") or "offset" in line]
        raise Failure(f"{patch.name} does not apply to {pin['package']} {pin['version']}: {first_line(chr(10).join(errors))}")
    git(tree, "apply", *direction, name, check=True)
    sign = -1 if reverse else 1
    for path in patch.added:
        after = line_counts(tree, path)
        change = Counter(patch.added[path])
        change.subtract(patch.removed[path])
        for line, n in change.items():
            found = after[line] - before[path][line]
            if found != sign * n:
                raise Failure(f"{patch.name} left no trace in {path}: found {found} new lines {line.strip()!r}, expected {sign * n}")


def missing_hook(tree, patches):
    """(patch, file, line) of the first added line that the tree lacks, or None."""
    total = {}
    for patch in patches:
        for path in patch.added:
            net = total.setdefault(path, Counter())
            net.update(patch.added[path])
            net.subtract(patch.removed[path])
    for patch in patches:
        for path, lines in patch.added.items():
            present = line_counts(tree, path)
            for line in lines:
                if line.strip() and total[path][line] > 0 and present[line] < total[path][line]:
                    return patch, path, line
    return None


def manifest(tree):
    result = {}
    for folder, _, names in os.walk(tree):
        for name in names:
            path = os.path.join(folder, name)
            result[os.path.relpath(path, tree)] = sha256_file(path)
    return result


def tree_hash(files):
    digest = hashlib.sha256()
    for path in sorted(files):
        digest.update(f"{path}\0{files[path]}\n".encode())
    return digest.hexdigest()


def read_stamp(out):
    try:
        return json.loads((out / STAMP).read_text())
    except (OSError, ValueError):
        return {"hash": "", "files": {}}


def refuse_edited(out, old, new):
    """Edits made in the build tree are somebody's work: never overwrite them."""
    for path, sha256 in old.items():
        target = out / path
        if target.exists():
            found = sha256_file(target)
            if found not in (sha256, new.get(path)):
                raise Failure(f"{target} was edited by hand and the new series would overwrite it: "
                                    "move the edit into a patch (ggml/upstream/patches-refresh) or delete the file")


def bring(tmp, out, old, wanted_hash):
    """Make `out` equal to `tmp`, touching only what differs; the stamp goes first and comes back last."""
    new = manifest(tmp)
    refuse_edited(out, old, new)
    out.mkdir(parents=True, exist_ok=True)
    (out / STAMP).unlink(missing_ok=True)
    for path in sorted(set(manifest(out)) - set(new) - {".git/index"}):
        (out / path).unlink()
    n_written = 0
    for path, sha256 in new.items():
        target = out / path
        if not target.exists() or sha256_file(target) != sha256:
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(tmp / path, target)
            n_written += 1
    # upstream warns when it finds no git index, and looks for nothing else in it
    if not (out / ".git" / "index").exists():
        (out / ".git").mkdir(exist_ok=True)
        (out / ".git" / "index").touch()
    stamp_tmp = out / (STAMP + ".tmp")
    stamp_tmp.write_text(json.dumps({"hash": wanted_hash, "files": new}))
    os.replace(stamp_tmp, out / STAMP)
    return n_written


def make_tree(tmp, package, patches, pin):
    unpack(package, tmp)
    for patch in patches:
        apply_patch(tmp, patch, pin)
    missing = missing_hook(tmp, patches)
    if missing:
        raise Failure(f"{missing[0].name}: its line {missing[2].strip()!r} is not in {missing[1]}")


def prepare(out, patches_dir, pristine, cache, offline):
    pin = fetch.read_pin(PIN_FILE)
    patches = [] if pristine else read_patches(patches_dir)
    print(f"patches_hash {series_hash(patches)[:12]}")
    parts = PIN_FILE.read_bytes() + series_hash(patches).encode() + Path(__file__).read_bytes()
    wanted_hash = hashlib.sha256(parts).hexdigest()
    stamp = read_stamp(out)
    if stamp["hash"] == wanted_hash:
        return
    package = fetch.fetch(pin, cache, offline)
    say(f"unpacking llama.cpp {pin['llama_cpp']}, {len(patches)} patches")
    tmp = out.parent / f".{out.name}.tmp"
    shutil.rmtree(tmp, ignore_errors=True)
    try:
        make_tree(tmp, package, patches, pin)
        n_written = bring(tmp, out, stamp["files"], wanted_hash)
        say(f"{out.name}: {n_written} files written")
    finally:
        shutil.rmtree(tmp, ignore_errors=True)


def check_tree(tree, patches_dir):
    if not (tree / "src" / "llama.cpp").exists():
        raise Failure(f"{tree} is no llama.cpp checkout: src/llama.cpp is missing")
    patches = read_patches(patches_dir)
    missing = missing_hook(tree, patches)
    if missing:
        raise Failure(f"{tree} lacks {missing[0].name} ({missing[1]}): run git apply {Path(patches_dir).resolve()}/*.patch there")
    print(f"patches_hash {series_hash(patches)[:12]}")


def main():
    parser = argparse.ArgumentParser(description="Unpack the pinned llama.cpp and apply the patch series.")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="DIR", help="folder to bring up to date")
    what.add_argument("--check-tree", type=Path, metavar="DIR", help="is this checkout patched?")
    parser.add_argument("--pristine", action="store_true", help="apply no patches")
    parser.add_argument("--patches", type=Path, default=PATCHES, metavar="DIR")
    parser.add_argument("--cache", metavar="DIR")
    parser.add_argument("--offline", action="store_true")
    parser.add_argument("--cmake", action="store_true", help="a failure's sentence goes to stdout, where CMake picks it up")
    args = parser.parse_args()
    try:
        if args.check_tree:
            check_tree(args.check_tree.absolute(), args.patches)
        else:
            prepare(args.out.absolute(), args.patches, args.pristine, fetch.cache_dir(args.cache), args.offline)
        return 0
    except Failure as e:
        sentence = str(e)
    except OSError as e:
        sentence = "the disk is full" if e.errno == errno.ENOSPC else f"{e.filename}: {e.strerror}"
    except KeyboardInterrupt:
        sentence = "interrupted; run it again to finish"
    print(f"error {sentence}" if args.cmake else f"error: {sentence}", file=sys.stdout if args.cmake else sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
