"""The patch queue, its tools, and how the build tree is made from it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import series
import upstream

from headwisekv import fetch
from headwisekv.core import ROOT, Failure, sha256_file

CHECK = ROOT / "ggml" / "upstream" / "patches-check"
REFRESH = ROOT / "ggml" / "upstream" / "patches-refresh"
UPSTREAM = ROOT / "ggml" / "upstream" / "upstream.py"
FIRST = "0010-build-report-version.patch"
SECOND = "0020-build-second.patch"

pytestmark = pytest.mark.patches

PIN = fetch.read_pin(upstream.PIN_FILE)


def run(program, *args, cwd=None):
    return subprocess.run([sys.executable, program, *map(str, args)], capture_output=True, text=True, cwd=cwd, timeout=300)


def check(folder):
    return run(CHECK, "--patches", folder, "--offline")


@pytest.fixture(scope="module")
def package():
    try:
        return fetch.fetch(PIN, fetch.cache_dir(), offline=True)
    except Failure as e:
        if os.environ.get("HWKV_TEST_STRICT"):
            raise
        pytest.skip(str(e))


@pytest.fixture(scope="module")
def pristine(package, tmp_path_factory):
    """Only the files that patches touch: quick to copy."""
    tree = tmp_path_factory.mktemp("pristine") / "llama.cpp"
    upstream.unpack(package, tree, upstream.NO_CODE)
    keep = {path for patch in upstream.read_patches(upstream.PATCHES) for path in patch.added}
    for path in upstream.manifest(tree):
        if path not in keep:
            (tree / path).unlink()
    return tree


@pytest.fixture
def queue(package, tmp_path):
    """A copy of the queue that holds only its first patch, with the index that belongs to it."""
    folder = tmp_path / "patches"
    folder.mkdir()
    shutil.copy(upstream.PATCHES / FIRST, folder)
    set_series(folder, FIRST)
    return folder


def set_series(folder, *names):
    (folder / "series").write_text("".join(f"{name}\n" for name in names))
    present = [upstream.Patch(folder / name) for name in names if (folder / name).exists()]
    (folder / "README.md").write_text(series.index(present))


def edit(folder, old, new):
    path = folder / FIRST
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    set_series(folder, FIRST)


def check_fails(folder, *parts):
    done = check(folder)
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    assert any(all(part in line for part in parts) for line in done.stderr.split("\n")), done.stderr


#
# the queue
#


def test_queue_is_good(package):
    done = run(CHECK, "--offline")
    assert done.returncode == 0, done.stderr
    assert "all good" in done.stdout


def test_copy_is_good(queue):
    done = check(queue)
    assert done.returncode == 0, done.stderr


def test_patch_that_does_not_apply(queue):
    edit(queue, ' #include "build-info.h"', ' #include "built-info.h"')
    check_fails(queue, FIRST, "does not apply")


def test_patch_with_offset(queue):
    edit(queue, "@@ -34,2 +35,3 @@", "@@ -33,2 +34,3 @@")
    check_fails(queue, FIRST, "offset")


@pytest.mark.parametrize("field", series.FIELDS)
def test_missing_field(queue, field):
    text = (queue / FIRST).read_text()
    (queue / FIRST).write_text(re.sub(rf"^{field}: .*\n", "", text, flags=re.MULTILINE))
    set_series(queue, FIRST)
    check_fails(queue, FIRST, f"the field {field} is missing")


def test_missing_reason(queue):
    patch = upstream.Patch(queue / FIRST)
    edit(queue, series.reason(patch), "Because.")
    check_fails(queue, FIRST, "why it is needed")


def test_wrong_counts(queue):
    edit(queue, "+2 -0", "+3 -0")
    check_fails(queue, FIRST, "Touches is", "expected common/build-info.cpp.in +2 -0")


def test_gate_that_is_not_there(queue):
    edit(queue, "Gate: tests/py/test_patches.py", "Gate: tests/py/test_nothing.py")
    check_fails(queue, FIRST, "tests/py/test_nothing.py")


def test_too_many_lines(queue):
    added = "".join(f"+// hwkv {i}\n" for i in range(series.MAX_ADDED))
    edit(queue, '+#include "hwkv-version.h"\n', added + '+#include "hwkv-version.h"\n')
    check_fails(queue, FIRST, f"added lines to {series.MAX_ADDED + 2}", f"at most {series.MAX_ADDED}")


def test_too_many_patches(queue):
    names = [FIRST] + [f"{number:04d}-build-more.patch" for number in range(20, 20 + 10 * series.MAX_PATCHES, 10)]
    for name in names[1:]:
        shutil.copy(queue / FIRST, queue / name)
    set_series(queue, *names)
    check_fails(queue, names[-1], f"found {series.MAX_PATCHES + 1} patches, expected at most {series.MAX_PATCHES}")


def test_whitespace(queue):
    edit(queue, '+#include "hwkv-version.h"\n', '+#include "hwkv-version.h" \n')
    check_fails(queue, FIRST, "trailing blank")


def test_patch_that_calls_nothing_of_ours(queue):
    text = (queue / FIRST).read_text().replace("hwkv", "other")
    (queue / FIRST).write_text(text)
    set_series(queue, FIRST)
    check_fails(queue, FIRST, "calls nothing of ours")


def test_patch_that_is_not_in_series(queue):
    shutil.copy(queue / FIRST, queue / SECOND)
    check_fails(queue, SECOND, "not in the series")


def test_patch_that_is_not_there(queue):
    set_series(queue, FIRST, SECOND)
    check_fails(queue, SECOND, "is in the series but not here")


def test_series_out_of_order(queue):
    shutil.copy(queue / FIRST, queue / SECOND)
    set_series(queue, SECOND, FIRST)
    check_fails(queue, "series", "order")


def test_stale_index(queue):
    (queue / "README.md").write_text("# Patch queue\n")
    check_fails(queue, "README.md", "patches-refresh")


#
# the trap: inside another work tree `git apply` succeeds and changes nothing
#


def make_work_tree(pristine, tmp_path):
    outer = tmp_path / "outer"
    outer.mkdir()
    subprocess.run(["git", "init", "-q"], cwd=outer, check=True)
    return Path(shutil.copytree(pristine, outer / "build" / "llama.cpp"))


def test_apply_inside_another_work_tree(pristine, tmp_path):
    tree = make_work_tree(pristine, tmp_path)
    patches = upstream.read_patches(upstream.PATCHES)
    for patch in patches:
        upstream.apply_patch(tree, patch, PIN)
    assert "hwkv_version_line" in (tree / "common/build-info.cpp.in").read_text()
    assert upstream.missing_hook(tree, patches) is None


def test_apply_that_changes_nothing_is_noticed(pristine, tmp_path, monkeypatch):
    tree = make_work_tree(pristine, tmp_path)
    patch = upstream.read_patches(upstream.PATCHES)[0]

    def no_ceiling(tree, *args, check=False):
        return subprocess.run(["git", *args], cwd=tree, capture_output=True, text=True)

    assert no_ceiling(tree, "apply", patch.path).returncode == 0  # the trap is real with this git
    assert "hwkv" not in (tree / "common/build-info.cpp.in").read_text()
    monkeypatch.setattr(upstream, "git", no_ceiling)
    with pytest.raises(Failure, match=f"{FIRST} left no trace in common/build-info.cpp.in"):
        upstream.apply_patch(tree, patch, PIN)


#
# patches-refresh
#


def test_refresh_without_edits_changes_nothing(package, tmp_path):
    folder = tmp_path / "patches"
    shutil.copytree(upstream.PATCHES, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    done = run(REFRESH, "--patches", folder, "--offline")
    assert done.returncode == 0, done.stderr
    assert "0 files changed" in done.stderr
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_refresh_edits(queue, tmp_path):
    tree = tmp_path / "scratch"
    refresh = (REFRESH, tree, "--patches", queue, "--offline")
    assert run(*refresh, "--start").returncode == 0
    assert "not empty" in run(*refresh, "--start").stderr

    file = tree / "common/build-info.cpp.in"
    file.write_text(file.read_text() + "// hwkv\n")
    done = run(*refresh)
    assert done.returncode == 1 and "not committed" in done.stderr

    def commit(text, *more):
        subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@example.invalid", "commit", "-qa", "-m", text, *more], cwd=tree, check=True)

    commit("build: second")
    done = run(*refresh)
    assert done.returncode == 1 and f"{SECOND} has no line `Gate:`" in done.stderr

    why = "A second patch whose only purpose is to be written by the test."
    commit(f"build: second\n\n{why}\n\nGate: tests/py/test_patches.py\nDrop-when: the test ends", "--amend")
    first = (queue / FIRST).read_bytes()
    done = run(*refresh)
    assert done.returncode == 0, done.stderr
    assert (queue / "series").read_text() == f"{FIRST}\n{SECOND}\n"
    assert (queue / FIRST).read_bytes() == first
    assert upstream.Patch(queue / SECOND).field("Touches") == "common/build-info.cpp.in +1 -0"
    done = check(queue)
    assert done.returncode == 0, done.stderr

    # the patches are mails that git can apply by itself
    subprocess.run(["git", "reset", "-q", "--hard", "HEAD~2"], cwd=tree, check=True)
    subprocess.run(["git", "-c", "user.name=x", "-c", "user.email=x@example.invalid", "am", "-q", queue / FIRST, queue / SECOND], cwd=tree, check=True)
    assert "hwkv_version_line" in file.read_text()

    # a commit that goes takes its patch along
    subprocess.run(["git", "reset", "-q", "--hard", "HEAD~1"], cwd=tree, check=True)
    assert run(*refresh).returncode == 0
    assert not (queue / SECOND).exists() and (queue / "series").read_text() == f"{FIRST}\n"


def test_refresh_refuses_a_tree_inside_the_repository():
    done = run(REFRESH, "--start", ROOT / "build-scratch-of-test", "--offline")
    assert done.returncode == 1 and "expected a folder outside of it" in done.stderr
    assert not (ROOT / "build-scratch-of-test").exists()


#
# the build tree
#


def state(tree):
    return {path: (tree / path).stat().st_mtime_ns for path in upstream.manifest(tree) if not path.startswith(upstream.STAMP)}


def test_build_tree_changes_only_what_a_patch_changes(queue, tmp_path):
    out = tmp_path / "llama.cpp"
    make = (UPSTREAM, "--out", out, "--patches", queue, "--offline")
    assert run(*make).returncode == 0
    first = state(out)

    assert run(*make).stderr == ""  # the stamp says it is done
    assert state(out) == first

    set_series(queue)  # no patch at all
    done = run(*make)
    assert done.returncode == 0 and "1 files written" in done.stderr
    second = state(out)
    assert [path for path in first if first[path] != second[path]] == ["common/build-info.cpp.in"]

    # an interrupted run has no stamp: what it left is made whole
    (out / upstream.STAMP).unlink()
    (out / "common/build-info.cpp.in").write_text("half")
    (out / "src/llama.cpp").unlink()
    (out / "src/left-over.cpp").write_text("")
    assert run(*make).returncode == 0
    assert state(out).keys() == first.keys()
    assert "half" not in (out / "common/build-info.cpp.in").read_text()

    # an edit by hand is not overwritten
    (out / "src/llama.cpp").write_text("// mine\n")
    set_series(queue, FIRST)
    done = run(*make)
    assert done.returncode == 1 and "src/llama.cpp was edited by hand" in done.stderr
    assert (out / "src/llama.cpp").read_text() == "// mine\n"


def test_bad_patch_leaves_the_build_tree_alone(queue, tmp_path):
    out = tmp_path / "llama.cpp"
    make = (UPSTREAM, "--out", out, "--patches", queue, "--offline")
    edit(queue, ' #include "build-info.h"', ' #include "built-info.h"')
    done = run(*make)
    assert done.returncode == 1 and done.stderr.strip().split("\n")[-1].startswith(f"error: {FIRST} does not apply to")
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["patches"]


def test_own_checkout(pristine, tmp_path):
    tree = Path(shutil.copytree(pristine, tmp_path / "llama.cpp"))
    done = run(UPSTREAM, "--check-tree", tree)
    assert done.returncode == 1 and "is no llama.cpp checkout" in done.stderr
    (tree / "src").mkdir(exist_ok=True)
    (tree / "src" / "llama.cpp").touch()
    done = run(UPSTREAM, "--check-tree", tree)
    assert done.returncode == 1 and f"lacks {FIRST}" in done.stderr and "git apply" in done.stderr
    for patch in upstream.read_patches(upstream.PATCHES):
        upstream.apply_patch(tree, patch, PIN)
    done = run(UPSTREAM, "--check-tree", tree)
    assert done.returncode == 0 and done.stdout.startswith("patches_hash ")


def test_configure_without_package_is_one_sentence(tmp_path):
    """No cache and no network: a single error of CMake, with our sentence, and nothing after it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PIP_")}
    env.update(PIP_CONFIG_FILE=os.devnull, PIP_INDEX_URL="http://127.0.0.1:9/simple")
    done = subprocess.run(["cmake", "-S", ROOT, "-B", tmp_path / "build", "-G", "Ninja", f"-DHWKV_CACHE_DIR={tmp_path / 'cache'}"],
                          capture_output=True, text=True, env=env, timeout=300)
    assert done.returncode != 0
    assert done.stderr.count("CMake Error") == 1 and "Traceback" not in done.stderr and "Call Stack" not in done.stderr
    error = " ".join(done.stderr[done.stderr.index("CMake Error"):].split())
    assert f"{PIN['file']} is not in {tmp_path / 'cache'} and could not be downloaded (no network)" in error
    assert not (tmp_path / "build" / "llama.cpp").exists()


#
# what the patches do
#


@pytest.mark.parametrize("name", ["llama-server", "llama-cli", "llama-completion", "llama-bench", "llama-perplexity"])
def test_version_line(program, name):
    done = subprocess.run([program(name), "--version"], capture_output=True, text=True, timeout=60)
    version = re.search(r'HWKV_VERSION +"(.*)"', (ROOT / "src/policy/hwkv.h").read_text()).group(1)
    series_id = upstream.series_hash(upstream.read_patches(upstream.PATCHES))[:12]
    expected = f"HeadWiseKV {version} (llama.cpp {PIN['llama_cpp']}, package {PIN['version']}, patches {series_id})"
    assert done.returncode == 0
    assert expected in (done.stdout + done.stderr).split("\n")


def test_build_tree_in_use_is_the_queue():
    """What was built is what the queue says: the stamp of the build tree is that of these patches."""
    stamp = ROOT / "build" / "llama.cpp" / upstream.STAMP
    if not stamp.exists():
        pytest.skip("build/ is not configured")
    files = json.loads(stamp.read_text())["files"]
    assert {path: sha256_file(stamp.parent / path) for path in files} == files
    assert upstream.missing_hook(stamp.parent, upstream.read_patches(upstream.PATCHES)) is None


def code_of(path, folder):
    """The machine code of an object file."""
    out = folder / f"{path.parents[5].name}.bin"
    subprocess.run(["objcopy", "-O", "binary", "--only-section=.text", path, out], check=True, timeout=60)
    return out.read_bytes()


def test_the_attention_it_falls_back_to_is_the_package_s(tmp_path):
    """No hook inside of it: with our kernel off the very code of the unpatched package runs."""
    name = Path("upstream", "ggml", "src", "CMakeFiles", "ggml-cpu.dir", "ggml-cpu", "ops.cpp.o")
    ours = ROOT / "build" / name
    package = ROOT / "build" / "pristine" / name
    for path in (ours, package):
        if not path.exists():
            pytest.skip(f"{path} is missing: run make test, which builds both")
    code = code_of(ours, tmp_path)
    assert len(code) > 100_000
    assert code == code_of(package, tmp_path)
