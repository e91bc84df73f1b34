"""Every figure of README.md and policies/README.md stands in what was measured: in policies/*.json, docs/results/*.json and the tables of
docs/performance.md.

A claim is a piece of the page with its figures filled in from there. Each must be on the page, and the claims together with what is no
measurement must cover every number of it. So a figure that was altered, added or measured anew is reported.
"""

import json
import re

import pytest
from server_process import ROOT

from headwisekv import policy as policies
from headwisekv.bench.speed_stats import BOUND
from headwisekv.core import sha256_file
from headwisekv.evaluate import rivals_page

pytestmark = pytest.mark.unit

MIB = 2**20
NUMBER = re.compile(r"\d+(?:\.\d+)?")
POLICY, SINKS0 = (json.loads((ROOT / "policies" / f"smollm2-135m-instruct-8k{end}.json").read_text()) for end in ("", "-sinks0"))
RESULTS, RIVALS = (json.loads((ROOT / "docs" / "results" / name).read_text()) for name in ("results.json", "rivals.json"))

#
# what is on a page
#


def page(name):
    """The text without code blocks and the targets of links, on one line."""
    text = re.sub(r"^```[\s\S]*?^```$|^    .*$", "", (ROOT / name).read_text(), flags=re.MULTILINE)
    return " ".join(re.sub(r"\]\([^)]*\)", "]", text).split())


def problems(text, claims):
    """Claims that the text does not make, and numbers in it that no claim has."""
    found = [f"expected: {claim}" for claim in claims if claim not in text]
    covered = [range(match.start(), match.end()) for claim in claims for match in re.finditer(re.escape(claim), text)]
    for number in NUMBER.finditer(text):
        if not any(number.start() in place and number.end() - 1 in place for place in covered):
            found.append(f"nothing vouches for {number[0]} in: {text[max(0, number.start() - 40):number.end() + 40]}")
    return found


#
# what was measured
#


def allocated(policy, rows):
    """What the runtime allocates for entries on a CPU, in bytes: cells in steps of 64, with room to take 64 positions back."""
    def cells(entry):
        return min(policies.kept(entry, policy["context"]) + 64 + 63, policy["context"]) // 64 * 64

    return sum(cells(entry) * policies.position_bytes(layer, entry, policy["cache_types"])
               for layer, row in zip(policy["model"]["layers"], rows, strict=True) for entry in row)


def points(policy):
    """Operating points with what the runtime allocates for them."""
    plain = allocated(policy, [["full"] * n for n in policies.heads(policy)])
    return {point["name"]: {**point, **point["validation"], "allocated": allocated(policy, policies.matrix(point)), "plain": plain,
                            "floor": point["min_score"]} for point in policy["operating_points"]}


def speed_tables():
    """Cells of the tables of docs/performance.md by title of the first column, row and column: "1.31 +-2.9%"."""
    cells, head = {}, None
    for line in (ROOT / "docs" / "performance.md").read_text().splitlines():
        row = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else None
        head = row and (head or row)
        for title, cell in zip(head or [], row or []):
            cells[head[0], row[0], title] = cells[head[0], row[1], title] = cell
    return cells


def rivals():
    return {row["name"]: row for row in RIVALS["scenes"][0]["rows"]}


def verdicts():
    """Who is better by KL and by needles: ours, it or undecided."""
    return {name: re.findall(r": (\w+)", rivals_page.verdict(row)) for name, row in rivals().items() if "@" in name}


#
# README.md
#


def saving(point, title):
    change = point["perplexity"]["change"]
    return (f"| {title} | {point['allocated'] / MIB:.1f} MiB | {100 * (1 - point['allocated'] / point['plain']):.1f}% "
            f"| {point['perplexity']['policy']:.2f} ({100 * change:+.1f}%) | {point['kl']['mean']:.4f} |")


def savings():
    ours = points(POLICY)
    served = ours["tau-0.998"]
    yield f"at {POLICY['context']} tokens, F16 cache"
    yield f"| none (llama.cpp's own cache) | {served['plain'] / MIB:.1f} MiB | | {served['perplexity']['full']:.2f} | |"
    yield saving(served, f"`{POLICY['selected']}`, what `make run` serves")
    for name in ("tau-0.995", "tau-0.99", "tau-0.98"):
        yield saving(ours[name], f"`{name}`")
    yield saving(points(SINKS0)["tau-0.995"], "`tau-0.995` without sinks (the paper's setting)")


def memory():
    cells = {cell["method"]: cell for cell in RESULTS["sections"]["systems"]["cells"] if cell["context"] == 8192}
    full, served, bare = (cells[name]["peak"] / MIB for name in ("full", "tau-0.998", "tau-0.998 without checkpoints"))
    yield f"at 8192 tokens the peak falls from {full:.0f} to {served:.0f} MiB, with `--ctx-checkpoints 0` to {bare:.0f} MiB."
    resident, address = RESULTS["sections"]["capacity"]["probes"]
    full, served, bare = (found["largest"] for found in resident["found"])
    yield (f"In {resident['resident_mib']} MiB of resident memory the server reads {served} tokens instead of {full}, "
           f"or {bare} without checkpoints;")
    full, served, _ = (found["largest"] for found in address["found"])
    yield f"in {address['limit_mib']} MiB of address space only {served} instead of {full}."


def speeds():
    cells = speed_tables()
    widest = 0.0
    for title, what, n_tokens, depth in (("decode at the start", "decode", 32, 0), ("decode after 7000 tokens", "decode", 32, 7000),
                                         ("prompts at the start", "prefill", 512, 0), ("prompts after 7000 tokens", "prefill", 512, 7000)):
        whole, column = f"{what} of {n_tokens}", f"depth {depth}"
        shown = [cells[whole, "no policy", column], cells[whole, "shipped policy", column], cells[what, "shipped policy : no policy", column]]
        widest = max(widest, *(float(re.search(r"\+-([\d.]+)%", cell)[1]) for cell in shown))
        yield f"| {title} | " + " | ".join(cell.split()[0] + ("*" if "not decided" in cell else "") for cell in shown) + " |"
    yield f"\\* not decided: the 95% interval is wider than +-{100 * BOUND:.0f}%, here up to +-{widest}%."


def comparisons():
    rows = rivals()
    kl = {name: f"{row['kl']['mean']:.4f}" for name, row in rows.items()}
    size = {name: f"{row['bytes'] / MIB:.0f} MiB" for name, row in rows.items()}
    context = RIVALS["scenes"][0]["n_ctx"]
    greedy = {name: 100 * found["greedy"] for name, found in RESULTS["sections"]["needle"]["lengths"][str(context)].items() if isinstance(found, dict)}
    ruler = {name: tasks["all"][str(context)]["score"] for name, tasks in RESULTS["sections"]["ruler"]["caches"].items()}
    rounding = re.search(r"KL of (0\.\d+)", (ROOT / "docs" / "evaluation.md").read_text())[1]
    yield f"at {context} tokens ([results]"
    yield (f"In the {size['tau-0.998']} of the served policy KL is {kl['tau-0.998']}, with StreamingLLM {kl['streaming@tau-0.998']}, DuoAttention's split "
           f"{kl['duo@tau-0.998']}, uniform windows {kl['uniform@tau-0.998']}. One calibrated window a layer has {kl['layers@tau-0.998']}:")
    yield f"([another batch size alone] gives {rounding}), and needles are {verdicts()['layers@tau-0.998'][1]}."
    yield f"`tau-0.98`, the smallest ({size['tau-0.98']}), makes needles likelier than these four do"
    yield f"(KL against StreamingLLM is {verdicts()['streaming@tau-0.98'][0]})"
    yield (f"greedy decoding finds {greedy['tau-0.98']:.0f}%, with the full cache {greedy['full']:.0f}%, and the RULER-style score falls from "
           f"{ruler['full']:.0f} to {ruler['tau-0.98']:.0f}.")
    yield (f"(KL {kl['q8_0']} in {size['q8_0']}, ours {kl['tau-0.995']}). They go together: {kl['tau-0.998, q8_0']} in {size['tau-0.998, q8_0']}.")


def bars():
    """Of tests, as they stand there."""
    def read(name, pattern, folder="tests/py"):
        return re.search(pattern, (ROOT / folder / name).read_text())

    logit, kl = read("bridge_bench.py", r'\["max_abs"\] <= (\S+),')[1], read("bridge_bench.py", r"kl=(\S+)\)")[1]
    more_logit, more_kl = (read("test_headwise_archs.py", rf'"--window-error", 1\)\["{key}"\] > (\S+)')[1] for key in ("max_abs", "max_kl"))
    greedy = read("test_headwise.py", r'"-n", (\d+), "-d", (\d+), timeout=1200\)\n    assert found\["same"\] == found\["n"\] == \2')
    resident = read("test_kv_policy.py", r'>= (\S+) \* shown\["bytes_saved"\]', "tools/server/tests")[1]
    yield f"is lower by at least {100 * float(resident):.0f}% of what is saved (a test)."
    yield (f"allow a logit to differ by {float(logit)} in F32 and KL to be {kl} with an F16 cache; one key too many gives more than {more_logit} and "
           f"{more_kl}.")
    yield f"SmolLM2 in F32 writes the same {greedy[2]} tokens after a prompt of {greedy[1]}."


NO_MEASUREMENT = (  # names, settings and examples
    "Qwen3.5", "Gemma 4", "Debian 12", "`make run MODEL=model.gguf POLICY=policy.json CTX=16384 PORT=9000`", "SmolLM2-135M", "*KL* is how far", "; 0 is no change",
    "A window of 256 is the first 4 positions (`sinks`) and the 252 newest.", "(`GGML_HWKV_FATTN=0`)",
    "qwen2, qwen3, qwen3moe, qwen3next, qwen35, qwen35moe, gemma3, gemma4", "A q8_0 cache", "our F16 windows", "`-np 1`",
)

#
# policies/README.md
#


def policy_row(policy, name):
    point = points(policy)[name]
    selected = " (selected)" if policy is POLICY and name == policy["selected"] else ""
    return (f"| {policy['sinks']} | `{name}`{selected} | {100 * point['retention']:.1f}% | {point['floor']:.4f} | {point['allocated'] / MIB:.1f} MiB "
            f"| {point['perplexity']['policy']:.2f} ({100 * point['perplexity']['change']:+.2f}%) | {point['kl']['mean']:.4f} | {point['kl']['p99']:.3f} "
            f"| {100 * point['same_top']:.1f}% |")


def shipped():
    for policy in (POLICY, SINKS0):
        for name in points(policy):
            yield policy_row(policy, name)
    made = POLICY["calibration"]
    first = next(iter(points(POLICY).values()))
    yield f"perplexity (full {first['perplexity']['full']:.2f})"
    yield (f"| SmolLM2-135M-Instruct (Q4_1) | {POLICY['context']} | {POLICY['sinks']} | {made['n_seq']} sequences of `{made['text']}` (WikiText-2), "
           f"sha256 `{made['text_sha256'][:8]}...` | `make calibrate`, {made['tool'].split()[1]} |")
    yield f"`smollm2-135m-instruct-8k-sinks0.json` | the same | {SINKS0['context']} | {SINKS0['sinks']} | the same | `make calibrate`, {made['tool'].split()[1]} |"
    layers = json.loads((ROOT / "policies" / "smollm2-135m-instruct-8k-layers.json").read_text())
    yield (f"`smollm2-135m-instruct-8k-layers.json` | the same | {layers['context']} | {layers['sinks']} | the same | `make calibrate`, "
           f"{layers['calibration']['tool'].split()[1]};")
    yield f"the windows are at {POLICY['context']} tokens"
    yield f"{first['context']} tokens each"


POLICIES_NO_MEASUREMENT = (
    "`smollm2-135m-instruct-8k.json`", "Here head 0 of the first layer keeps 256 positions: the first 4 (`sinks`) and the 252 newest", "Head 1 keeps everything",
    '"KL 99%" is what 99 of 100 tokens stay below.', "| KL 99% |", "in nats: 0 is no change", "the first 4 and the 1020 newest positions", "with its sha256 (or", "in F16, q8_0 and q4_0 unless",
)

PAGES = {
    "README.md": lambda: [*savings(), *memory(), *speeds(), *comparisons(), *bars(), *NO_MEASUREMENT],
    "policies/README.md": lambda: [*shipped(), *POLICIES_NO_MEASUREMENT],
}


@pytest.mark.parametrize("name", PAGES)
def test_figures_are_those_measured(name):
    assert problems(page(name), PAGES[name]()) == []


@pytest.mark.parametrize("name", PAGES)
def test_an_altered_figure_is_noticed(name):
    text, claims = page(name), PAGES[name]()
    assert not problems(text, claims)
    for digit in re.finditer(r"\d", text):
        at = digit.start()
        altered = text[:at] + str((int(digit[0]) + 1) % 10) + text[at + 1:]
        assert problems(altered, claims), f"nobody noticed: {altered[max(0, at - 40):at + 40]}"


@pytest.mark.parametrize("name", PAGES)
def test_a_new_figure_is_noticed(name):
    assert len(problems(page(name) + " All of it is 17 times better.", PAGES[name]())) == 1


def test_what_is_not_decided_must_be_called_so():
    text, claims = page("README.md"), PAGES["README.md"]()
    marks = [match.end() for match in re.finditer(r"\d(?=\* \|)", text)]
    assert marks
    for at in marks:
        assert problems(text[:at] + text[at + 1:], claims)


def test_the_others_are_as_the_readme_says():
    """In words: ours is better by both measures but for two, which the README names."""
    named = {("layers@tau-0.998", 1), ("streaming@tau-0.98", 0)}
    assert {(name, i) for name, found in verdicts().items() for i in range(2) if found[i] != "ours"} == named


def content(path):
    """All of a policy but what its version of the format adds and renames."""
    policy = json.loads(path.read_text())
    added = ("windows", "entries", "scores", "retention_tokens", "retention_query")
    points = [{**{key: value for key, value in point.items() if key not in added}, "matrix": policies.entries(policy, point),
               "cosines": policies.scores(policy, point)} for point in policy["operating_points"]]
    return {**policy, "version": None, "operating_points": points}


def test_the_results_are_those_of_the_shipped_policies():
    """By their hash, or by that of the same policy in the format it had when the results were measured."""
    measured = RIVALS["scenes"][0]["policies"]
    assert RESULTS["policy_sha256"] == measured["policy"]
    for key, end in (("policy", ""), ("layers", "-layers")):
        shipped, before = (ROOT / folder / f"smollm2-135m-instruct-8k{end}.json" for folder in ("policies", "tests/data/policy-1"))
        if measured[key] != sha256_file(shipped):
            assert measured[key] == sha256_file(before) and content(before) == content(shipped)
