"""The HTML report and the statistics of a policy, through tests/report-test.c."""

import html.parser
import json
import os
import resource
import shutil
import stat
import subprocess

import pytest
import report_policy
from server_process import ROOT

from headwisekv.policy import entries

pytestmark = pytest.mark.unit

EVIL = "</script><script>alert(1)</script> \"q\" 'x' & <!-- \u00e9 ]]>"


@pytest.fixture(scope="module")
def run(program):
    binary = program("report-test")

    def call(*args, code=0, **options):
        result = subprocess.run([binary, *map(str, args)], capture_output=True, text=True, timeout=120, **options)
        assert result.returncode == code, result.stderr
        return result

    return call


@pytest.fixture
def page(run, tmp_path):
    """page(policy) is the path of its report."""

    def make(policy):
        (tmp_path / "policy.json").write_text(json.dumps(policy))
        run("html", tmp_path / "policy.json", tmp_path / "report.html")
        return tmp_path / "report.html"

    return make


@pytest.fixture
def statistics(run, tmp_path):
    def make(policy, *point):
        (tmp_path / "policy.json").write_text(json.dumps(policy))
        return run("statistics", tmp_path / "policy.json", *point).stdout

    return make


@pytest.fixture
def draw(page):
    """draw(policy, "id=value", ...) is what the page's script draws after these changes of its controls."""
    if not shutil.which("node"):
        pytest.skip("node is not installed")

    def make(policy, *changes):
        command = ["node", str(ROOT / "tests" / "report-dom.js"), str(page(policy)), *changes]
        result = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return make


class Parser(html.parser.HTMLParser):
    VOID = {"meta", "link", "input"}

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.texts = [], [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> closes something else"

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


#
# the page as a file
#


@pytest.mark.parametrize("name", ["plain", EVIL])
def test_page_is_well_formed_and_holds_the_policy(page, name):
    policy = report_policy.policy([2, 3], name=name)
    policy["operating_points"][0]["name"] = name
    policy["calibration"]["text"] = name
    parsed = Parser(page(policy).read_text(encoding="utf-8"))
    assert parsed.open == []
    assert parsed.texts["title"] == [f"Head windows of {name}"]
    scripts = parsed.texts["script"]
    assert len(scripts) == 2
    assert json.loads(scripts[0]) == policy
    ids = [attrs["id"] for _, attrs in parsed.tags if "id" in attrs]
    assert len(ids) == len(set(ids))


def test_page_asks_for_nothing_outside(page):
    text = page(report_policy.policy([2])).read_text(encoding="utf-8")
    for tag, attrs in Parser(text).tags:
        assert "src" not in attrs
        assert attrs.get("href", "data:").startswith("data:")
    assert "default-src 'none'" in text
    for word in ("@import", "fetch(", "XMLHttpRequest", "url("):
        assert word not in text


def test_page_replaces_an_older_one_and_leaves_no_other_file(run, page, tmp_path):
    first = page(report_policy.policy([2])).read_bytes()
    assert page(report_policy.policy([2], seed=2)).read_bytes() != first
    assert page(report_policy.policy([2])).read_bytes() == first
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy.json", "report.html"]


@pytest.mark.parametrize("where", ["missing/report.html", "folder"])
def test_unwritable_path_is_one_clear_line(run, tmp_path, where):
    (tmp_path / "folder").mkdir()
    (tmp_path / "policy.json").write_text(json.dumps(report_policy.policy([2])))
    result = run("html", tmp_path / "policy.json", tmp_path / where, code=1)
    assert result.stderr.count("\n") == 1 and "cannot write: " in result.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "policy.json"]


def test_a_pipe_is_written_and_stays_a_pipe(run, tmp_path):
    (tmp_path / "policy.json").write_text(json.dumps(report_policy.policy([2])))
    os.mkfifo(tmp_path / "pipe")
    reader = subprocess.Popen(["cat", tmp_path / "pipe"], stdout=subprocess.PIPE, text=True)
    run("html", tmp_path / "policy.json", tmp_path / "pipe")
    assert reader.communicate(timeout=60)[0].endswith("</html>\n")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


def test_a_full_disk_is_an_error(run, tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    (tmp_path / "policy.json").write_text(json.dumps(report_policy.policy([2])))
    (tmp_path / "full").symlink_to("/dev/full")  # so that a mistake cannot replace the device
    assert "No space left" in run("html", tmp_path / "policy.json", tmp_path / "full", code=1).stderr


def test_a_page_that_cannot_be_finished_leaves_the_old_one(run, page, tmp_path):
    old = page(report_policy.policy([2])).read_bytes()
    # Python ignores SIGXFSZ and the child keeps that: a write beyond the limit fails
    result = run("html", tmp_path / "policy.json", tmp_path / "report.html", code=1, restore_signals=False,
                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)))
    assert "File too large" in result.stderr
    assert (tmp_path / "report.html").read_bytes() == old
    assert sorted(p.name for p in tmp_path.iterdir()) == ["policy.json", "report.html"]


#
# what its script draws
#


def test_everything_is_drawn(draw):
    policy = report_policy.policy([3] * 30, name=EVIL)
    drawn, last = draw(policy), policy["operating_points"][-1]
    assert drawn["problem"]["text"] == "" and not drawn["page"]["hidden"]
    assert drawn["name"]["text"] == f"Head windows of {EVIL}"
    assert drawn["map"]["rect"] == 90 and drawn["map"]["image"] == 0
    assert f"{100 * last['retention']:.1f}%" in drawn["tiles"]["text"]
    assert f"{last['min_score']:.4f}" in drawn["tiles"]["text"]
    assert "+0.63%" in drawn["tiles"]["text"] and "0.005" in drawn["tiles"]["text"]
    assert drawn["point"]["option"] == 3 and drawn["layer"]["option"] == 31
    assert drawn["curve-chart"]["path"] == 3 + 1 and drawn["curve-chart"]["circle"] == 3  # heads and the floor
    assert drawn["points"]["tr"] == 1 + 3
    assert not drawn["grid"]["hidden"] and drawn["grid-retention"]["circle"] == 3 + 1
    assert not drawn["validation"]["hidden"] and drawn["no-validation"]["hidden"]
    assert all(drawn[f"plot-{key}"]["path"] == n for key, n in {"cosine": 2, "mass": 1, "output": 2, "trace": 2}.items())


def test_tip_and_bars_tell_windows_and_scores(draw):
    policy = report_policy.policy([1, 3])
    point = policy["operating_points"][-1]
    drawn = draw(policy)
    assert f"layer 0, KV head 0: window {point['entries'][0][0]}" in drawn["tip"]["text"]
    for score in point["scores"]["cosine"][0][0]:
        assert f"{score:.4f}" in drawn["tip"]["text"]
    flat = [w for row in point["entries"] for w in row]
    for window in policy["codebook"]:
        n = flat.count(window)
        assert f"{window}  {n} head{'' if n == 1 else 's'} ({25 * n:.1f}%)" in drawn["bars"]["text"]


def test_choosing_a_point_and_a_layer_draws_them(draw):
    policy = report_policy.policy([3, 5])
    drawn, first = draw(policy, "point=0", "layer=1", "zoom=on"), policy["operating_points"][0]
    assert f"{100 * first['retention']:.1f}%" in drawn["tiles"]["text"]
    assert drawn["curve-chart"]["circle"] == 5
    assert draw(policy, "layer=all")["curve-chart"]["circle"] == 8


def test_policy_without_scores_or_validation(draw):
    drawn = draw(report_policy.unscored([2, 2]))
    assert drawn["curves"]["hidden"] and not drawn["no-scores"]["hidden"]
    assert drawn["grid"]["hidden"] and not drawn["grid-note"]["hidden"]
    assert drawn["validation"]["hidden"] and not drawn["no-validation"]["hidden"]
    assert "no scores" in drawn["tiles"]["text"] and "not calibrated" in drawn["facts"]["text"]


@pytest.mark.parametrize("validation", [
    {}, {"perplexity": None, "kl": 3, "head_cosine": [], "bounds": {}}, {"perplexity": {"full": 0, "policy": 1}, "bounds": [None, 1, {"layer": 0}]},
    {"head_cosine": {"layers": [[], None, ["x"]]}, "bounds": [{"layer": 0, "omitted_mass": 0, "mass_bound": 0, "output_error": 0}]},
])
def test_odd_validation_is_no_trouble(draw, statistics, validation):
    policy = report_policy.policy([2, 2])
    policy["operating_points"][-1]["validation"] = validation
    drawn = draw(policy)
    assert not drawn["page"]["hidden"] and not drawn["validation"]["hidden"] and not drawn["plot-cosine"]["shown"]
    assert "Perplexity change" not in drawn["tiles"]["text"]
    assert "\nvalidation\n" in statistics(policy, 2)


def test_only_full_in_the_codebook(draw, statistics):
    policy = report_policy.policy([2, 2], taus=(0.9,), codebook=("full",))
    assert not draw(policy)["page"]["hidden"]
    assert "100.00%" in statistics(policy)


def test_entries_with_types_are_named_as_in_the_file(draw, statistics):
    policy = json.loads((ROOT / "tests" / "data" / "policy-ok" / "typed.json").read_text())
    alone, scored = draw(policy), draw(policy, "point=0")  # the selected one was allocated, and has losses only
    for drawn in (alone, scored):
        assert drawn["problem"]["text"] == "" and not drawn["page"]["hidden"]
    assert "256:q4_0  1 head (25.0%)" in alone["bars"]["text"] and "full:q8_0/q4_0  1 head (25.0%)" in alone["bars"]["text"]
    assert alone["curves"]["hidden"] and "window 256:q4_0" in alone["tip"]["text"]
    assert not scored["curves"]["hidden"] and "> 256:q8_0: 0.9600" in scored["tip"]["text"]
    assert "35.3%" in scored["points"]["text"] and "34.4%" in scored["points"]["text"]  # R_C and R^Q
    text = statistics(policy)
    assert "1024:q8_0/q4_0" in text and "nan" not in text


def test_an_allocated_point_tells_what_it_had(draw, statistics):
    policy = json.loads((ROOT / "tests" / "data" / "policy-ok" / "typed.json").read_text())
    point = next(point for point in policy["operating_points"] if "budget" in point)
    assert f"budget {point['budget'] / 2**20:.2f} MiB" in statistics(policy)
    assert "budget" in draw(policy)["point-note"]["text"] and "budget" not in draw(policy, "point=0")["point-note"]["text"]


def test_scores_by_context_are_those_of_the_policys(draw):
    drawn = draw(json.loads((ROOT / "tests" / "data" / "policy-ok" / "scores-by-context.json").read_text()))
    assert "> 256: 0.9000" in drawn["tip"]["text"] and not drawn["curves"]["hidden"]


def test_large_model_is_one_picture(draw):
    drawn = draw(report_policy.policy([128] * 50 + [100], taus=(0.99,), validated=False))
    assert drawn["map"]["rect"] == 0 and drawn["map"]["image"] == 1
    assert drawn["pixels"] == 128 * 50 + 100
    assert drawn["layer"]["option"] == 51  # one at a time: no "all"
    assert drawn["curve-chart"]["circle"] == 128


#
# statistics
#


def table(text, title):
    """The rows of the table under the line that starts with title, split at blanks, without the header."""
    lines = iter(text.splitlines())
    assert any(line.startswith(title) for line in lines), title
    next(lines)
    rows = []
    for line in lines:
        if not line.startswith(("  ", "* ")):
            break
        rows.append(line.split())
    return rows


def test_statistics_of_points_and_layers_are_right(statistics):
    policy = report_policy.policy([3, 5, 2])
    text = statistics(policy, 1)
    assert text.count("== ") == 1 and "== tau-0.99 (tau 0.99)" in text
    rows = table(text, "operating points")
    assert [row[0] for row in rows] == ["tau-0.98", "tau-0.99", "*"]
    for row, point in zip(rows, policy["operating_points"]):
        flat = [w for ws in point["entries"] for w in ws]
        row = row[1:] if row[0] == "*" else row
        assert row[3] == row[4] == f"{100 * point['retention']:.2f}%"  # all heads alike: R^Q is R_C
        assert row[5] == f"{point['min_score']:.4f}" and row[6] == f"{point['bytes'] / 2**20:.2f}"
        assert [int(n) if n != "." else 0 for n in row[7:]] == [flat.count(w) for w in policy["codebook"]]

    point = policy["operating_points"][1]
    rows = table(text, "layers: ")
    for row, chosen_entries, scores in zip(rows, entries(policy, point), point["scores"]["cosine"], strict=True):
        chosen = [s[ie] for ie, s in zip(chosen_entries, scores)]
        assert int(row[1]) == len(chosen_entries)
        assert row[3] == f"{min(chosen):.4f}" and row[4] == f"{sum(chosen) / len(chosen):.4f}"


def test_statistics_list_the_most_demanding_heads(statistics):
    policy = report_policy.policy([8, 8], taus=(0.99,))
    point = policy["operating_points"][0]
    heads = [(-ie, s[-2], il, ih) for il, (row, ss) in enumerate(zip(entries(policy, point), point["scores"]["cosine"]))
             for ih, (ie, s) in enumerate(zip(row, ss))]
    rows = table(statistics(policy), "most demanding heads")
    assert [(int(row[0]), int(row[1])) for row in rows] == [head[2:] for head in sorted(heads)[:10]]


def test_statistics_of_all_points(statistics):
    text = statistics(report_policy.policy([2]))
    assert [line for line in text.splitlines() if line.startswith("== ")] == ["== tau-0.98 (tau 0.98)", "== tau-0.99 (tau 0.99)", "== tau-0.995 (tau 0.995)"]


def test_statistics_read_the_validation(statistics):
    policy = report_policy.policy([2], taus=(0.9,))
    policy["operating_points"][0]["validation"] = {
        "note": "{\"kl\": {\"mean\": 9}} \\", "nested": {"kl": {"mean": 8}, "list": [{"same_top": 7}]},
        "kl": {"max": 0.25, "mean": 0.125}, "source": "a \"quoted\" \\ text\x1b[31m", "same_top": 0.5,
    }
    text = statistics(policy)
    assert "  KL              mean 0.125, max 0.25\n" in text
    assert "  top token       same_top 0.5\n" in text
    assert 'a "quoted" \\ text' in text
    assert "perplexity" not in text and "\x1b" not in text


def test_statistics_without_scores(statistics):
    text = statistics(report_policy.unscored([2, 2]))
    assert "validation: none" in text and "most demanding" not in text and "nan" not in text
    assert [row[3:5] for row in table(text, "layers: ")] == [["-", "-"]] * 2
