"""llama-seqcalib --allocate: points by budget, on tiny random models."""

import json
import re

import numpy as np
import pytest
import tiny_gguf
from seqcalib_reference import Reference
from seqcalib_tool import LETTERS, agreement, tool  # noqa: F401 (fixture)
from test_headwise_archs import ARCHS

from headwisekv import policy as policies

pytestmark = pytest.mark.bridge

CONTEXT = 512
RUN = ("-c", CONTEXT, "-ub", 96, "-t", 1, "--windows", "16,64,128,192,256,320,384", "--n-query", 48)
KIND = "residual"


def allocate(tool, out, model, budgets, *args, code=0):
    """The result and the policy; a budget is bytes, or as the option has it."""
    text = ",".join(budget if isinstance(budget, str) else f"{budget / 1024:.6f}KiB" for budget in budgets)
    result = tool.run("-m", tool.model(model), "-f", tool.text(), *RUN, "--allocate", text, *args, "-o", out, "--force", code=code)
    return result, json.loads(out.read_text()) if out.exists() else None


def allocated(tool, out, model, ip):
    """Bytes of the groups, as the runtime plans them."""
    return tool.check(out, tool.model(model), "--point", ip)["bytes"]


def losses(policy, point):
    """[unit][entry]"""
    return np.concatenate([np.array(layer) for layer in policies.scores(policy, point, KIND)])


def chosen(policy, point):
    return np.concatenate([np.array(layer) for layer in policies.entries(policy, point)])


def sweeps(result):
    return float(re.search(r"budgets? took ([\d.]+) sweeps", result.stderr)[1])


def smallest(tool, tmp_path, model, *args):
    result = tool.run("-m", tool.model(model), "-f", tool.text(), *RUN, "--allocate", "1KiB", *args, "-o", tmp_path / "none.json", code=3)
    assert not (tmp_path / "none.json").exists()
    return int(re.search(r"found a budget of 1024 bytes, expected at least the (\d+) of the smallest allocation$", result.stderr.strip())[1])


def check_points(tool, out, policy, model, budgets):
    full = policies.kv_bytes(policy, policy["codebook"], policies.uniform(policy, policy["codebook"].index("full:f16")), CONTEXT)
    for ip, (point, budget) in enumerate(zip(policy["operating_points"], budgets, strict=True)):
        assert "tau" not in point and point["method"].startswith(f"least {KIND} loss")
        assert point["budget"] == (budget if budget > 1 else int(budget * full))
        assert point["lambda"] >= 0
        assert allocated(tool, out, model, ip) <= point["budget"]
        reference = policy["codebook"].index("full:f16")
        table = losses(policy, point)
        assert (table >= 0).all() and (table[:, reference] == 0).all() and table.max() > 0
        assert all(score[reference] == 1 for layer in policies.scores(policy, point) for score in layer)


#
# bytes, prices, cost
#


@pytest.fixture(scope="module")
def finished(tool):
    """An undisturbed run of three budgets and one that everything fits in, and its work file when it had failed at the very end."""
    out = tool.folder / "allocated.json"
    least = smallest(tool, tool.folder, "llama")
    budgets = [2 * least, 3 * least, 4 * least, 1.0]
    given = [*budgets[:3], "1.0"]
    result, policy = allocate(tool, out, "llama", given)
    with open("/dev/full", "w") as full:
        text = ",".join(g if isinstance(g, str) else f"{g / 1024:.6f}KiB" for g in given)
        tool.run("-m", tool.model("llama"), "-f", tool.text(), *RUN, "--allocate", text, "-o", "-", "--work", tool.folder / "allocated.work", code=1, stdout=full)
    return out, budgets, text, result, policy, (tool.folder / "allocated.work").read_bytes()


def test_budgets_are_used(tool, finished):
    out, budgets, _, result, policy, _ = finished
    check_points(tool, out, policy, "llama", budgets)
    for ip, budget in enumerate(budgets[:3]):
        assert allocated(tool, out, "llama", ip) >= 0.98 * budget, ip
    # with room for everything nothing is lost
    assert set(policies.spelled(policy["codebook"], policies.entries(policy, policy["operating_points"][3]))[0]) == {"full:f16"}
    assert policy["operating_points"][3]["lambda"] == 0
    # a byte is worth less the more there are
    prices = [point["lambda"] for point in policy["operating_points"]]
    assert prices == sorted(prices, reverse=True) and prices[0] > prices[2]
    assert policy["selected"] == policy["operating_points"][0]["name"]
    assert agreement(result) >= 0.9999


def test_more_bytes_lose_less(finished):
    *_, policy, _ = finished
    # the last point has the reference everywhere below every layer: its scores are those of the sweep that all share
    first = losses(policy, policy["operating_points"][3])
    lost = [first[np.arange(len(first)), chosen(policy, point)].sum() for point in policy["operating_points"]]
    assert lost == sorted(lost, reverse=True) and lost[0] > lost[2] > lost[3] == 0


def test_it_takes_one_sweep_and_one_for_each_budget(tool, finished, tmp_path):
    *_, result, _, _ = finished
    assert 2 < sweeps(result) <= 1 + 4
    least = smallest(tool, tmp_path, "llama")
    one, _ = allocate(tool, tmp_path / "p.json", "llama", [2 * least])
    assert sweeps(one) == 2


def test_every_head_has_the_entry_that_is_worth_its_bytes(tool, tmp_path):
    # in the first layer nothing is fixed yet: but for what spends the rest, its heads have the least loss + lambda x bytes
    least = smallest(tool, tmp_path, "llama")
    _, policy = allocate(tool, tmp_path / "p.json", "llama", [3 * least])
    point = policy["operating_points"][0]
    cells = {w: min(CONTEXT, (min(w, CONTEXT) + 64 + 63) // 64 * 64) if w != "full" else CONTEXT for w in (16, 64, 128, 192, 256, 320, 384, "full")}
    layer = policy["model"]["layers"][0]
    row = {kind: (layer["head_dim_k"] + layer["head_dim_v"]) * size // 64 for kind, size in (("f16", 128), ("q8_0", 68), ("q4_0", 36))}
    bytes_ = []
    for entry in policy["codebook"]:
        window, kind = entry.split(":")
        bytes_.append(cells[window if window == "full" else int(window)] * row[kind])
    table, entries = losses(policy, point), chosen(policy, point)
    worth = table + point["lambda"] * np.array(bytes_)
    agreed = [worth[unit, entries[unit]] <= worth[unit].min() * (1 + 1e-9) for unit in range(layer["n_head_kv"])]
    assert any(agreed)


def test_the_smallest_budget_there_is(tool, tmp_path):
    least = smallest(tool, tmp_path, "llama")
    _, policy = allocate(tool, tmp_path / "p.json", "llama", [least])
    assert allocated(tool, tmp_path / "p.json", "llama", 0) == least
    result, _ = allocate(tool, tmp_path / "q.json", "llama", [4 * least, least - 64], code=3)
    assert str(least) in result.stderr and not (tmp_path / "q.json").exists()


def test_one_entry_a_layer(tool, tmp_path):
    least = smallest(tool, tmp_path, "llama", "--per-layer")
    _, policy = allocate(tool, tmp_path / "p.json", "llama", [3 * least], "--per-layer")
    point = policy["operating_points"][0]
    assert all(len(set(row)) == 1 for row in point["entries"]) and len({row[0] for row in point["entries"]}) > 1
    assert allocated(tool, tmp_path / "p.json", "llama", 0) <= 3 * least
    assert "one entry a layer" in point["method"]


#
# what is lost
#


class Stream(Reference):
    """The losses of every entry with the reference everywhere, from the definition: how far the stream moves."""

    def losses(self, sequences, codebook):
        ratio, sinks = self.n_head // self.n_head_kv, 4
        states = [self.tensors["token_embd.weight"][tokens] for tokens in sequences]
        res = []
        for il in range(self.n_layer):
            weight = self.tensors[f"blk.{il}.attn_output.weight"]
            table = np.zeros((self.n_head_kv, len(codebook)))
            following = []
            for x in states:
                q, k, v = self.qkv(x, il)
                heads = [self.attend(q[:, jh], k[:, jh // ratio], v[:, jh // ratio], None, sinks) for jh in range(self.n_head)]
                following.append(self.finish_layer(x, heads, il))
                last = slice(len(x) - len(x) // 4, None)
                stream = x + np.concatenate(heads, axis=-1) @ weight.T
                for ih in range(self.n_head_kv):
                    for ie, window in enumerate(codebook):
                        wrong = [self.attend(q[:, jh], k[:, ih], v[:, ih], window, sinks) - heads[jh] if jh // ratio == ih else np.zeros_like(heads[jh])
                                 for jh in range(self.n_head)]
                        moved = np.concatenate(wrong, axis=-1) @ weight.T
                        table[ih, ie] += ((moved**2).sum(-1) / (stream**2).sum(-1))[last].mean() / len(sequences)
            states = following
            res.append(table)
        return np.concatenate(res)


def test_losses_against_numpy(tool, tmp_path):
    out = tmp_path / "p.json"
    tool.run("-m", tool.model("llama"), "-f", tool.text(), "-c", 256, "-ub", 48, "-t", 1, "--windows", "16,48,120", "--types", "cache", "--n-seq", 2,
             "--allocate", "1", "-o", out)
    policy = json.loads(out.read_text())
    found = losses(policy, policy["operating_points"][0])

    ids = {text: i for i, text in enumerate(tiny_gguf._vocab()[0])}
    tokens = [ids["\u2581".encode()], *(ids[c.encode()] for c in tool.text().read_text())]
    assert set(tool.text().read_text()) <= set(LETTERS)
    sequences = [[1, *tokens[i * 255:(i + 1) * 255]] for i in range(2)]
    expected = Stream(tool.model("llama"), 4, 2, 64).losses(sequences, (16, 48, 120, None))
    assert found.shape == expected.shape and expected.max() > 1e-3
    assert found == pytest.approx(expected, rel=0.02, abs=1e-6)


@pytest.mark.parametrize("name", [*ARCHS, "gemma2", "gemma3n"])
def test_every_architecture(tool, tmp_path, name):
    budgets = [0.3, 0.5]
    result, policy = allocate(tool, tmp_path / "p.json", name, ["0.3", "0.5"])
    check_points(tool, tmp_path / "p.json", policy, name, budgets)
    assert sweeps(result) <= 3
    naive, _ = allocate(tool, tmp_path / "naive.json", name, ["0.3", "0.5"], "--naive")
    assert (tmp_path / "naive.json").read_bytes() == (tmp_path / "p.json").read_bytes()


#
# runs
#


def test_resume_at_any_line(tool, finished, tmp_path):
    out, _, text, _, _, work = finished
    lines = work.splitlines(keepends=True)
    assert sum(line.startswith(b"L ") for line in lines) > 8
    for n in (1, 3, 5, 6, 8, len(lines) - 1, len(lines)):
        again = tmp_path / f"{n}.json"
        again.with_suffix(".json.work").write_bytes(b"".join(lines[:n]))
        tool.run("-m", tool.model("llama"), "-f", tool.text(), *RUN, "--allocate", text, "-o", again, "--resume")
        assert again.read_bytes() == out.read_bytes(), n


def test_resume_with_other_budgets(tool, finished, tmp_path):
    *_, work = finished
    (tmp_path / "p.json.work").write_bytes(work)
    result, _ = allocate(tool, tmp_path / "p.json", "llama", ["0.4"], "--resume", code=1)
    assert "found another model, text or setting" in result.stderr


def test_lines_out_of_order_are_refused(tool, finished, tmp_path):
    _, _, text, _, _, work = finished
    lines = work.splitlines(keepends=True)
    # a choice before the sweep that it rests on
    (tmp_path / "p.json.work").write_bytes(b"".join([lines[0], lines[-1]]))
    result = tool.run("-m", tool.model("llama"), "-f", tool.text(), *RUN, "--allocate", text, "-o", tmp_path / "p.json", "--resume", code=1)
    assert "found a layer of another model" in result.stderr


def test_held_out_check(tool, tmp_path):
    _, policy = allocate(tool, tmp_path / "p.json", "llama", ["0.3", "0.9"], "--holdout", 1)
    kl = [point["validation"]["kl"]["mean"] for point in policy["operating_points"]]
    assert kl[0] > kl[1] >= 0


def test_dry_run(tool):
    run = ("-m", tool.model("llama"), "-f", tool.text(), *RUN, "--allocate", "0.3,0.5", "--dry-run")
    out = tool.run(*run).stdout
    assert "2 budgets" in out and "time: about" in out


@pytest.mark.parametrize("args, message", [
    (("--allocate", "24MB"), "--allocate: found '24MB', expected a share above 0 and at most 1, or bytes such as 512MiB or 2GiB, separated by commas"),
    (("--allocate", "1.5"), "--allocate: found '1.5', expected"),
    (("--allocate", "0.5,0.5"), "--allocate: found 0.5 twice"),
    (("--allocate", "0.5", "--tau", "0.99"), "--allocate and --tau: found both, expected points by budget or by floor"),
    (("--allocate", "0.5", "--budget", "0.6"), "--allocate and --budget: found both, expected points by budget or by floor"),
])
def test_bad_arguments(tool, args, message):
    result = tool.run("-m", tool.model("llama"), "-f", tool.text(), *args, code=2)
    assert message in result.stderr
