"""llama-kv-policy from the outside: usage, show, make, diff."""

import json
import os
import re
import subprocess

import pytest
from kv_policy_cli import SCORES, WINDOWS, run, scored, scores_file, tiny, uniform, windows_of  # noqa: F401

pytestmark = pytest.mark.bridge


#
# help and usage
#


@pytest.mark.parametrize("command", ["", "show", "check", "make", "diff"])
def test_help_is_exactly_what_the_readme_shows(run, root, command):
    result = run(*command.split(), "--help")
    blocks = re.findall(r"```console\n(.*?)```", (root / "tools/kv-policy/README.md").read_text(), re.DOTALL)
    assert result.stdout in blocks
    assert result.stdout.startswith(f"usage: llama-kv-policy {command or 'COMMAND'} ")
    assert result.stderr == ""


def test_help_wins_over_mistakes_and_names_every_option(run):
    text = run("check", "--nonsense", "--help").stdout
    for option in ("-m", "-c", "-np", "--kv-unified", "--no-kv-unified", "-fa", "-ctk", "-ctv", "--pad", "--rollback", "--strict", "--json"):
        assert re.search(rf"^  {option}\b|, {option}\b", text, re.MULTILINE), option


def test_version(run, root):
    version = re.search(r'#define HWKV_VERSION +"([^"]+)"', (root / "src/policy/hwkv.h").read_text()).group(1)
    assert run("--version").stdout.startswith(f"llama-kv-policy: HeadWiseKV {version} (llama.cpp ")


@pytest.mark.parametrize(
    "args, message",
    [
        ([], "llama-kv-policy: no command given, expected show, check, make or diff (see llama-kv-policy --help)"),
        (["frob"], "llama-kv-policy: found command 'frob', expected show, check, make or diff (see llama-kv-policy --help)"),
        (["--frob"], "llama-kv-policy: unknown option '--frob' (see llama-kv-policy --help)"),
        (["show"], "llama-kv-policy show: no policy file given (see llama-kv-policy show --help)"),
        (["show", "a", "b"], "llama-kv-policy show: unexpected argument 'b' (see llama-kv-policy show --help)"),
        (["show", "a", "--frob"], "llama-kv-policy show: unknown option '--frob' (see llama-kv-policy show --help)"),
        (["show", "a", "--point"], "llama-kv-policy show: --point needs a value (see llama-kv-policy show --help)"),
        (["show", "a", "--color", "blue"],
         "llama-kv-policy show: --color: found 'blue', expected auto, always or never (see llama-kv-policy show --help)"),
        (["check", "a", "-c", "0"], "llama-kv-policy check: -c: found '0', expected a whole number from 1 to 1073741824 (see llama-kv-policy check --help)"),
        (["check", "a", "-c", "1e3"], "llama-kv-policy check: -c: found '1e3', expected a whole number from 1 to 1073741824 (see llama-kv-policy check --help)"),
        (["check", "a", "-np", "99999999999999999999"],
         "llama-kv-policy check: -np: found '99999999999999999999', expected a whole number from 1 to 256 (see llama-kv-policy check --help)"),
        (["check", "a", "-fa", "auto"], "llama-kv-policy check: -fa: found 'auto', expected on or off (see llama-kv-policy check --help)"),
        (["check", "a", "-ctk", "q2_k"],
         "llama-kv-policy check: -ctk: found 'q2_k', expected one of f32, f16, bf16, q8_0, q4_0, q4_1, q5_0, q5_1, iq4_nl (see llama-kv-policy check --help)"),
        (["check", "a", "--json=yes"], "llama-kv-policy check: --json takes no value (see llama-kv-policy check --help)"),
        (["make", "-o", "x"],
         "llama-kv-policy make: no method given, expected uniform, streaming, layers, threshold, duo or retype (see llama-kv-policy make --help)"),
        (["make", "best", "-o", "x"],
         "llama-kv-policy make: found method 'best', expected uniform, streaming, layers, threshold, duo or retype (see llama-kv-policy make --help)"),
        (["make", "uniform", "--window", "8"], "llama-kv-policy make: uniform needs -o (see llama-kv-policy make --help)"),
        (["make", "uniform", "-o", "x"], "llama-kv-policy make: uniform needs --window (see llama-kv-policy make --help)"),
        (["make", "uniform", "-o", "x", "--window", "8"], "llama-kv-policy make: uniform needs -m (see llama-kv-policy make --help)"),
        (["make", "uniform", "-o", "x", "--window", "8", "-m", "y"], "llama-kv-policy make: uniform needs -c (see llama-kv-policy make --help)"),
        (["make", "layers", "-o", "x", "--window", "8"], "llama-kv-policy make: layers needs --windows (see llama-kv-policy make --help)"),
        (["make", "uniform", "-o", "x", "--tau", "1"], "llama-kv-policy make: uniform takes no --tau (see llama-kv-policy make --help)"),
        (["make", "threshold", "-o", "x", "--tau", "1"], "llama-kv-policy make: threshold needs --scores (see llama-kv-policy make --help)"),
        (["make", "duo", "-o", "x", "--ratio", "1.1"],
         "llama-kv-policy make: --ratio: found '1.1', expected a number of at least 0 and at most 1 (see llama-kv-policy make --help)"),
        (["diff", "a"], "llama-kv-policy diff: found 1 policy files, expected 2 (see llama-kv-policy diff --help)"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(run, args, message):
    result = run(*args, code=2)
    assert result.stderr == message + "\n"
    assert result.stdout == ""


#
# bad files
#


@pytest.mark.parametrize("command", [["show"], ["check"]])
def test_bad_policy_files_are_one_line_and_code_1(run, tmp_path, command):
    missing = tmp_path / "missing.json"
    assert run(*command, missing, code=1).stderr == f"llama-kv-policy: {missing}: cannot open: No such file or directory\n"

    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(scored(WINDOWS, SCORES, sinks="four")))
    result = run(*command, bad, code=1)
    assert result.stderr.startswith(f"llama-kv-policy: {bad}: $.sinks: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def test_bad_models_are_one_line_and_code_1(run, scores_file, tmp_path, tiny):
    missing = tmp_path / "missing.gguf"
    assert run("check", scores_file, "-m", missing, code=1).stderr == f"llama-kv-policy: {missing}: No such file or directory\n"
    assert run("check", scores_file, "-m", tmp_path, code=1).stderr == f"llama-kv-policy: {tmp_path}: Is a directory\n"

    garbage = tmp_path / "garbage.gguf"
    garbage.write_bytes(b"this is no model")
    truncated = tmp_path / "truncated.gguf"
    truncated.write_bytes(tiny("llama").read_bytes()[:200_000])
    for file in (garbage, truncated):
        result = run("check", scores_file, "-m", file, code=1)
        assert result.stderr.startswith(f"llama-kv-policy: {file}: not a model that llama.cpp can load: ")
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("arch, reason", [("mamba", "it has no attention layers"), ("deepseek2", "(MLA)")])
def test_architectures_without_windows_are_refused_by_name(run, tiny, tmp_path, arch, reason):
    out = tmp_path / "out.json"
    result = run("make", "uniform", "--window", 128, "-c", 1024, "-m", tiny(arch), "-o", out, code=1)
    assert f"architecture {arch} can't have windows" in result.stderr
    assert reason in result.stderr
    assert not out.exists()


def test_unknown_point_is_code_3(run, scores_file):
    expected = f'llama-kv-policy: {scores_file}: found no operating point "x", expected one of "base" or a number below 1\n'
    assert run("show", scores_file, "--point", "x", code=3).stderr == expected
    assert run("check", scores_file, "--point", "x", code=3).stderr == expected
    assert run("make", "threshold", "--scores", scores_file, "--tau", 0.5, "-o", "-", "--point", "x", code=3).stderr == expected


def test_full_disk_is_an_error(run, scores_file):
    with open("/dev/full", "w") as full:
        result = subprocess.run([run.binary, "show", scores_file], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60)
    assert result.returncode == 1
    assert result.stderr == "llama-kv-policy: stdout: No space left on device\n"


#
# make
#


def test_make_streaming_has_sinks(run, tiny, tmp_path):
    out = tmp_path / "out.json"
    run("make", "streaming", "--window", 128, "-c", 1024, "-m", tiny("llama"), "-o", out, "-ctk", "q8_0", "-ctv", "q4_0")
    policy = json.loads(out.read_text())
    assert (policy["sinks"], policy["codebook"], policy["selected"]) == (4, [128, "full"], "streaming-128")
    assert policy["cache_types"] == {"k": "q8_0", "v": "q4_0"}
    assert windows_of(out) == [[128, 128]] * 4


def test_make_layers(run, tiny, tmp_path):
    out = tmp_path / "out.json"
    base = ["make", "layers", "-c", 1024, "-m", tiny("llama"), "-o", out, "--windows"]
    run(*base, "512,full,64,512", "--sinks", 2, "--name", "mine")
    policy = json.loads(out.read_text())
    assert (policy["sinks"], policy["codebook"], policy["selected"]) == (2, [64, 512, "full"], "mine")
    assert windows_of(out) == [[512, 512], ["full", "full"], [64, 64], [512, 512]]
    # (512 + 1024 + 64 + 512) positions x 2 heads x 256 bytes
    assert policy["operating_points"][0]["bytes"] == 2112 * 2 * 256

    before = out.read_bytes()
    for windows, message in [
        ("512,full,64", "--windows: found 3 entries, expected one for each of the 4 full-attention layers"),
        ("512,full,64,512,512", "--windows: found 5 entries, expected one for each of the 4 full-attention layers"),
        ("512,full,,512", '--windows: entry 3: found "", expected a positive 32-bit integer or full, and types after a colon as in 256:q8_0'),
        ("512,full,1024,512", "--windows: found 1024, expected less than the context 1024"),
    ]:
        assert run(*base, windows, code=2).stderr == f"llama-kv-policy make: {message} (see llama-kv-policy make --help)\n"
    assert "--sinks: found 64, expected less than the smallest window 64" in run(*base, "512,full,64,512", "--sinks", 64, code=2).stderr
    assert out.read_bytes() == before


def test_make_window_must_be_below_the_context(run, tiny):
    result = run("make", "uniform", "--window", 1024, "-c", 1024, "-m", tiny("llama"), "-o", "-", code=2)
    assert "--window: found 1024, expected less than the context 1024" in result.stderr


def test_make_threshold(run, scores_file, tmp_path):
    out = tmp_path / "out.json"
    run("make", "threshold", "--scores", scores_file, "--tau", "0.9,0.96,1", "-o", out)
    policy = json.loads(out.read_text())
    assert [point["name"] for point in policy["operating_points"]] == ["threshold-0.9", "threshold-0.96", "threshold-1"]
    assert windows_of(out, 0) == [[256, 1024], ["full", 256]]
    assert windows_of(out, 1) == [[1024, "full"], ["full", 1024]]
    assert windows_of(out, 2) == [["full", "full"], ["full", "full"]]
    assert [point["min_score"] for point in policy["operating_points"]] == [0.91, 0.97, 1]
    assert all("tau" not in point for point in policy["operating_points"])
    assert policy["calibration"]["text"] == "some text"
    assert policy["sinks"] == 4


def test_make_duo(run, scores_file, tmp_path):
    out = tmp_path / "out.json"
    base = ["make", "duo", "--scores", scores_file, "-o", out]
    # the lowest score at 256 is 0.20, then 0.50
    run(*base, "--window", 256, "--ratio", 0.5)
    assert windows_of(out) == [[256, "full"], ["full", 256]]
    run(*base, "--window", 1024, "--ratio", 0.25, "--name", "quarter")
    assert windows_of(out) == [[1024, 1024], ["full", 1024]]
    assert json.loads(out.read_text())["selected"] == "quarter"
    run(*base, "--window", 1024, "--ratio", 0)
    assert windows_of(out) == [[1024, 1024], [1024, 1024]]
    assert "expected an entry of the codebook" in run(*base, "--window", 512, "--ratio", 0.5, code=2).stderr


def test_make_from_scores_must_agree_with_them(run, scores_file, tiny):
    base = ["make", "threshold", "--scores", scores_file, "--tau", 0.9, "-o", "-"]
    assert "-c: found 1024, expected 4096 as the scores have it" in run(*base, "-c", 1024, code=2).stderr
    assert "--sinks: found 0, expected 4 as the scores have it" in run(*base, "--sinks", 0, code=2).stderr
    assert "-ctk/-ctv: expected f16/f16 as the scores have it" in run(*base, "-ctk", "f32", code=2).stderr
    assert "$.model.n_layer: found 2, expected 4" in run(*base, "-m", tiny("llama"), code=1).stderr


def test_make_needs_scores_in_the_point(run, uniform):
    result = run("make", "threshold", "--scores", uniform(), "--tau", 0.9, "-o", "-", code=1)
    assert "point 'uniform-128' has no scores, expected a calibrated one" in result.stderr


def test_make_writes_the_same_to_a_file_and_to_stdout(run, tiny, uniform):
    file = uniform()
    result = run("make", "uniform", "--window", 128, "-c", 1024, "-m", tiny("llama"), "-o", "-")
    assert result.stdout == file.read_text()


def test_make_leaves_nothing_half_written(run, tiny, tmp_path):
    target = tmp_path / "missing-folder" / "out.json"
    result = run("make", "uniform", "--window", 128, "-c", 1024, "-m", tiny("llama"), "-o", target, code=1)
    assert result.stderr.startswith(f"llama-kv-policy: {target}: ")
    assert list(tmp_path.iterdir()) == []


#
# show
#


def test_show_head_map_exactly(run, scores_file):
    lines = run("show", scores_file).stdout.splitlines()
    start = lines.index("windows of base: layers as rows, KV heads as columns")
    assert lines[start + 1 : start + 6] == [
        "  layer  0 1",
        "      0  1 2",
        "      1  F 1",
        "",
        "  1 256: 2 heads   2 1024: 1 head   F full: 1 head",
    ]


def test_show_head_and_points_exactly(run, scores_file):
    lines = run("show", scores_file).stdout.splitlines()
    assert lines[:14] == [
        f"policy    {scores_file}",
        "model     made up (llama)",
        "layers    2, 2 with full attention: 4 KV heads for 8 query heads",
        "bound to  any model of this geometry",
        "context   4096",
        "codebook  256 1024 full",
        "sinks     4",
        "cache     f16/f16",
        "text      some text, 2 sequences, 8 queries, seed 7",
        "tool      by hand",
        "",
        "operating points (* selected)",
        "  no.   name  chosen by      R_C      R^Q min score          MiB",
        "    0 * base  tau 0.9     34.38%   34.38%    0.9100         1.38",
    ]


def test_show_memory_exactly(run, scores_file):
    # cells: 256 + 64 and 1024 + 64 (sinks are part of the window)
    lines = run("show", scores_file).stdout.splitlines()
    assert lines[-9:] == [
        "  context 4096, cache f16/f16, flash attention on, sequences 1, rollback 64",
        "",
        "      window  layers   heads        cells          MiB            bytes",
        "        full       1       1         4096         1.00          1048576",
        "         256       2       2          320         0.16           163840",
        "        1024       1       1         1088         0.27           278528",
        "       total               4                      1.42          1490944",
        "       plain                                      4.00          4194304",
        "       saved                       64.45%         2.58          2703360",
    ]


def test_show_colour_only_when_asked_or_on_a_terminal(run, scores_file):
    assert "\033" not in run("show", scores_file).stdout
    assert "\033" not in run("show", scores_file, "--color", "never").stdout
    colored = run("show", scores_file, "--color", "always").stdout
    assert "\033[48;5;" in colored
    # colour adds nothing but colour
    plain = re.sub(r"\033\[[0-9;]*m", "", colored)
    assert [line.rstrip() for line in plain.splitlines()] == [line.rstrip() for line in run("show", scores_file).stdout.splitlines()]
    # one colour per window
    assert len(set(re.findall(r"\033\[48[0-9;]*m", colored))) == 3


@pytest.mark.parametrize("env, colored", [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_show_colour_on_a_terminal(program, scores_file, env, colored):
    pty = pytest.importorskip("pty")
    pid, fd = pty.fork()
    if pid == 0:
        binary = str(program("llama-kv-policy"))
        os.execve(binary, [binary, "show", str(scores_file)], {"TERM": "xterm-256color", **env})
    output = b""
    try:
        while chunk := os.read(fd, 65536):
            output += chunk
    except OSError:
        pass  # the terminal closes with the program
    os.close(fd)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (b"\033[48;5;" in output) is colored


def wide(n_layer, n_head, pattern):
    codebook = (256, 1024, "full")
    windows = [[codebook[pattern(il, ih) % 3] for ih in range(n_head)] for il in range(n_layer)]
    scores = [[[0.5, 0.9, 1.0]] * n_head] * n_layer
    return scored(windows, scores)


def test_show_wide_models_stay_within_the_terminal(run, tmp_path):
    file = tmp_path / "wide.json"
    file.write_text(json.dumps(wide(1000, 128, lambda il, ih: il + ih)))
    for columns in (80, 200):
        out = run("show", file.name, env={"COLUMNS": str(columns)}, cwd=tmp_path).stdout
        lines = out.splitlines()
        assert max(map(len, lines)) <= max(columns, 100)
        assert max(len(line) for line in lines if re.match(r"^ +\d+  [12F ]+$", line)) <= columns
        assert len(lines) < 250
        assert "  ... 936 more layers, --all shows them" in lines
    whole = run("show", file, "--all").stdout
    assert len(re.findall(r"^ +999  [12F]", whole, re.MULTILINE)) >= 1
    assert "more layers" not in whole


def test_show_folds_equal_layers(run, tmp_path):
    file = tmp_path / "same.json"
    file.write_text(json.dumps(wide(100, 4, lambda il, ih: il // 50 + ih)))
    lines = run("show", file).stdout.splitlines()
    assert "       0-49  1 2 F 1" in lines
    assert "      50-99  2 F 1 2" in lines


def test_show_numbers_of_heads_are_written_downwards(run, tmp_path):
    file = tmp_path / "twelve.json"
    file.write_text(json.dumps(wide(1, 12, lambda il, ih: ih)))
    lines = run("show", file).stdout.splitlines()
    start = lines.index("  layer  0 1 2 3 4 5 6 7 8 9 0 1")
    assert lines[start - 1] == "                             1 1"
    assert lines[start + 1] == "      0  1 2 F 1 2 F 1 2 F 1 2 F"


def test_show_control_characters_do_not_reach_the_terminal(run, tmp_path):
    file = tmp_path / "evil.json"
    policy = scored(WINDOWS, SCORES)
    policy["model"]["name"] = "red\033[31m"
    policy["operating_points"][0]["name"] = policy["selected"] = "a\u009bb\nc"
    file.write_text(json.dumps(policy))
    out = run("show", file).stdout
    assert "\033" not in out and "\u009b" not in out
    assert "red?[31m" in out
    assert "windows of a?b?c: " in out
    json.loads(run("check", file, "--json").stdout)


#
# diff
#


def test_diff(run, tmp_path, scores_file):
    out = tmp_path / "duo.json"
    run("make", "duo", "--scores", scores_file, "--window", 256, "--ratio", 0.5, "-o", out)
    result = run("diff", scores_file, out, code=1)
    assert result.stdout.splitlines() == [
        f"--- {scores_file} point base: context 4096, sinks 4, R_C 34.38%, R^Q 34.38%, 1.38 MiB",
        f"+++ {out} point duo-256-0.5: context 4096, sinks 4, R_C 53.12%, R^Q 53.12%, 2.12 MiB",
        "layer    0 head    1:       1024 ->       full",
        "1 of 4 heads differ: 1 longer, 0 shorter in the second",
    ]
    assert run("diff", out, scores_file, code=1).stdout.splitlines()[-1] == "1 of 4 heads differ: 0 longer, 1 shorter in the second"


def test_diff_same_windows_is_code_0(run, tmp_path, scores_file):
    out = tmp_path / "again.json"
    run("make", "threshold", "--scores", scores_file, "--tau", "0.96,0.9", "-o", out)
    assert run("diff", scores_file, out, "--point-b", "threshold-0.9").stdout.splitlines()[-1] == "0 of 4 heads differ: 0 longer, 0 shorter in the second"
    run("diff", scores_file, out, "--point-b", "1")
    run("diff", scores_file, out, code=1)
    run("diff", out, out, "--point-a", 0, "--point-b", 1, code=1)


def test_diff_sinks_count(run, tmp_path, scores_file):
    other = tmp_path / "other.json"
    other.write_text(json.dumps(scored(WINDOWS, SCORES, sinks=0)))
    assert run("diff", scores_file, other, code=1).stdout.splitlines()[-1] == "sinks differ: 4 -> 0"


def test_diff_trouble_is_code_2(run, tmp_path, scores_file, uniform):
    missing = tmp_path / "missing.json"
    assert run("diff", scores_file, missing, code=2).stderr == f"llama-kv-policy: {missing}: cannot open: No such file or directory\n"
    run("diff", scores_file, scores_file, "--point-a", "x", code=2)
    other = uniform()
    assert run("diff", scores_file, other, code=2).stderr == f"llama-kv-policy: {other}: for other layers or heads than {scores_file}, nothing to compare\n"
