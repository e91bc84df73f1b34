"""Speed of our build, with and without policies, as a multiple of the unpatched package's.

A round starts a process for every row and measures each depth on all of them, one after the other, so that a ratio compares
neighbours in time. Rounds go on until every ratio's 95% interval is narrower than +-3%, or the time is over. Writes speed.json
and speed.md, the table also to stdout. Ctrl-C keeps what is done; --resume goes on.
"""

import argparse
import json
import os
import time
from pathlib import Path

from .. import policy as policies
from .. import process
from ..arguments import some_of
from ..core import ROOT, Failure, sha256_file, write_whole
from ..progress import Progress
from ..provenance import machine
from . import speed_report
from .speed_child import BASE, ROWS, Child, Others, States, check_programs, make_policies, row_hash
from .speed_stats import METRICS, Samples, rounds_needed

NOISE_LIMIT = 0.15  # CPUs of others that are too many


def save(data, samples, folder):
    """Whole files or the old ones."""
    data["samples"] = samples.list
    data["results"] = speed_report.results_of(data)
    for name, text in (("speed.json", json.dumps(data, indent=1) + "\n"), ("speed.md", speed_report.markdown(data))):
        write_whole(folder / name, text)


def new_data(args, rows, files):
    """What a result depends on is in `setting`: --resume wants it unchanged. `files` are the policies by their kind."""
    kinds = {ROWS[name].policy for name in rows} - {"none"}
    return {
        "format": "headwisekv-speed", "version": 1, "base": BASE, "depths": args.depths, "min_rounds": args.min_rounds, "noise_limit": NOISE_LIMIT,
        "setting": {
            "model": args.model.name, "model_bytes": args.model.stat().st_size, "threads": args.threads, "context": args.context,
            "n_prefill": args.n_prefill, "n_decode": args.n_decode,
            "programs": {"pristine": row_hash(BASE), "ours": row_hash("plain")},
            "policies": {kind: sha256_file(files[kind]) for kind in sorted(kinds)},
        },
        "machine": {key: machine()[key] for key in ("cpu", "n_cpus")},
        "rows": {}, "samples": [], "results": [], "ended": "interrupted",
    }


def resume(data, path):
    """The samples of an earlier run, if it measured the same thing."""
    try:
        old = json.loads(path.read_text())
    except FileNotFoundError:
        raise Failure(f"{path}: there is nothing to resume") from None
    except ValueError as error:
        raise Failure(f"{path}: not JSON: {error}") from None
    if not isinstance(old, dict) or (old.get("format"), old.get("version")) != (data["format"], data["version"]):
        raise Failure(f"{path}: found no results of this bench, expected format {data['format']} version {data['version']}")
    for key, value in data["setting"].items():
        found = old["setting"].get(key)
        if isinstance(value, dict) and isinstance(found, dict):  # rows may differ, what they share may not
            value, found = ({name: v[name] for name in sorted(value.keys() & found.keys())} for v in (value, found))
        if found != value:
            raise Failure(f"{path}: found {key} {found}, expected {value}: what was measured before is another thing; run without --resume")
    return Samples(sample for sample in old["samples"] if sample["row"] in ROWS)


class Bench:
    def __init__(self, args, data, samples, files, progress):
        self.args, self.data, self.samples, self.files, self.progress = args, data, samples, files, progress
        self.deadline = time.monotonic() + 60 * args.time_limit
        self.began = time.monotonic()
        self.children, self.states = {}, None
        self.visit_seconds = {}  # of one row at one depth

    def share(self):
        return (time.monotonic() - self.began) / max(self.deadline - self.began, 1e-9)

    def load(self, name):
        cpus = sorted(os.sched_getaffinity(0))[:self.args.threads]
        row = ROWS[name]
        self.children[name] = Child(row, self.args.model, self.args.context, cpus, self.files[row.policy], self.args.out)
        return self.children[name]

    def renew(self):
        """New processes for all rows: where memory lies is a process's luck, and changes a speed by up to a quarter."""
        for name in list(self.children):
            self.children[name].close()
            self.load(name).ask("run 64 2 -")

    def start(self, rows):
        for name in rows:
            self.progress.show(f"loading {name}", 0.0)
            row, child = ROWS[name], self.load(name)
            self.data["rows"][name] = {"title": row.title, "policy": row.policy, "kernel": row.kernel, **child.about, "ideal": self.ideal(child)}
        n_policies = len({ROWS[name].policy for name in rows})
        base = self.data["rows"][BASE]
        self.states = States(self.args.out, 2**20 * base["kv_mib"] * n_policies * sum(self.args.depths) / self.args.context)

    def ideal(self, child):
        """Decode speed at each depth if it were bytes read alone, as a multiple of the plain cache's."""
        if child.row.policy == "none":
            return {str(depth): 1.0 for depth in self.args.depths}
        path = self.files[child.row.policy]
        policy = policies.read(path)
        chosen = policies.entries(policy, policies.find_point(policy, policy["selected"], path))
        weights = child.about["weights_bytes"]

        def read(codebook, rows, depth):
            return weights + policies.kv_bytes(policy, codebook, rows, depth + self.args.n_decode // 2)

        return {str(depth): read([policies.FULL], policies.uniform(policy, 0), depth) / read(policy["codebook"], chosen, depth)
                for depth in self.args.depths}

    def fill(self):
        """Brings one row of each policy to each depth."""
        first = {child.row.policy: child for child in reversed(self.children.values())}
        total = len(first) * sum(b - a for a, b in zip([0, *self.args.depths], self.args.depths))
        done, began = 0, time.monotonic()
        for policy, child in first.items():
            before = 0
            for depth in self.args.depths:
                left = (time.monotonic() - began) / done * (total - done) if done else None
                self.progress.show(f"filling {policy} to {depth} tokens", done / max(total, 1), left)
                if depth:
                    child.ask(f"fill {depth} {self.states.path(child.row, depth)}")
                done, before = done + depth - before, depth
            child.ask("clear")

    def undecided(self, depth):
        """Rows with a ratio that needs more rounds."""
        return [name for name in self.children if name != BASE and not all(
            found and found.decided(self.args.min_rounds) for found in (self.samples.ratio(name, BASE, depth, metric) for metric in METRICS))]

    def seconds_left(self, pending, done):
        """By the noise so far and by the limits, whichever is less."""
        found = [self.samples.ratio(name, BASE, depth, metric) for depth, names in pending.items() for name in names for metric in METRICS]
        rounds = max([self.args.min_rounds - done, *(rounds_needed(f) - f.n for f in found if f)])
        rounds = max(1, min(rounds, self.args.rounds - done))
        per_round = sum(self.visit_seconds.get(depth, 0.0) * (len(names) + 1) for depth, names in pending.items())
        limit = self.deadline - time.monotonic()
        return min(limit, rounds * per_round) if per_round else limit

    def wait_for_quiet(self, others):
        """Waits a while for other programs to end; returns what they use."""
        until = time.monotonic() + self.args.wait
        while True:
            time.sleep(min(1.0, self.args.wait))
            found = others.since_mark()
            if found <= NOISE_LIMIT or time.monotonic() >= until:
                break
            self.progress.show(f"waiting: other programs use {found:.1f} CPUs", self.share())
        if found > NOISE_LIMIT and self.args.wait:
            self.progress.say(f"warning: other programs use {found:.1f} CPUs, expected at most {NOISE_LIMIT}: this round is noisy")

    def measure(self, number, depth, names, others, progress_of):
        start = time.monotonic()
        taken = []
        for name in names:
            child = self.children[name]
            progress_of(name)
            others.since_mark()
            answer = child.ask(f"run {self.args.n_prefill} {self.args.n_decode} {self.states.path(child.row, depth)}")
            about = self.data["rows"][name]
            about["peak_rss_mib"] = max(about.get("peak_rss_mib", 0.0), answer.pop("peak_rss_kib") / 1024)
            taken.append({"round": number, "depth": depth, "row": name, **answer, "others_cpus": round(others.since_mark(), 3)})
        for sample in taken:  # all rows of a visit or none: a ratio needs both
            self.samples.add(sample)
        self.visit_seconds[depth] = (time.monotonic() - start) / len(names)

    def rounds(self):
        """Returns why it ended."""
        others = Others(self.children.values())
        first = self.samples.last_round()
        for done in range(self.args.rounds):
            pending = {depth: names for depth in self.args.depths if (names := self.undecided(depth))}
            if not pending:
                return "all ratios decided"
            self.renew()
            others.since_mark()
            self.wait_for_quiet(others)
            number = first + done + 1
            for depth, names in pending.items():
                expected = self.visit_seconds.get(depth, 0.0) * (len(names) + 1)
                if done and time.monotonic() + expected > self.deadline:
                    return "time limit"
                # the row that goes first changes, or one would always run on the warmest machine
                order = [name for name in self.children if name == BASE or name in names]
                order = order[number % len(order):] + order[:number % len(order)]
                left = self.seconds_left(pending, done)
                self.measure(number, depth, order, others, lambda name: self.progress.show(
                    f"round {number}, depth {depth}, {name}", 1.0 - left / (left + time.monotonic() - self.began), left))
                save(self.data, self.samples, self.args.out)
        return "all ratios decided" if not any(map(self.undecided, self.args.depths)) else "round limit"

    def close(self):
        for child in self.children.values():
            child.close()
        self.children = {}

    def clean(self):
        if self.states:
            self.states.remove()


def run(args):
    progress = Progress()
    rows = [name for name in ROWS if name == BASE or name in args.rows]
    check_programs(rows)
    args.model = args.model or Path(process.setup("model"))
    if not args.model.is_file():
        raise Failure(f"--model is '{args.model}', but there is no such file")
    args.out.mkdir(parents=True, exist_ok=True)
    files = make_policies(rows, args.model, args.context, args.out)
    rows = [name for name in rows if files[ROWS[name].policy] is not None]
    data = new_data(args, rows, files)
    samples = resume(data, args.out / "speed.json") if args.resume else Samples()

    bench = Bench(args, data, samples, files, progress)
    code = 0
    try:
        bench.start(rows)
        bench.fill()
        data["ended"] = bench.rounds()
        bench.close()
    except process.Interrupted as interrupted:
        code = 128 + interrupted.args[0]
        progress.say("interrupted: --resume goes on")
    finally:
        process.stop_sessions()
        bench.clean()
    if not samples.list:
        return code  # interrupted before there was anything to keep
    save(data, samples, args.out)
    progress.end()
    print((args.out / "speed.md").read_text(), end="")
    return code


def numbers(text):
    return sorted({int(word) for word in text.split(",")})


def parse_args(arguments):
    parser = argparse.ArgumentParser(prog="scripts/bench speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, metavar="FILE", help="(default: the model that make run serves)")
    parser.add_argument("--rows", type=some_of(ROWS, "row"), default=list(ROWS), metavar="A,B", help=f"of {','.join(ROWS)} (default: all; {BASE} always runs)")
    parser.add_argument("--depths", type=numbers, default=[0, 512, 2048, 4096, 7000], metavar="A,B", help="(default: 0,512,2048,4096,7000)")
    parser.add_argument("--threads", type=int, default=2, help="each on a CPU of its own (default: %(default)s)")
    parser.add_argument("--context", type=int, default=8192, help="(default: %(default)s)")
    parser.add_argument("--n-prefill", type=int, default=512, metavar="N", help="tokens (default: %(default)s)")
    parser.add_argument("--n-decode", type=int, default=32, metavar="N", help="tokens (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=100, metavar="N", help="at most (default: %(default)s)")
    parser.add_argument("--min-rounds", type=int, default=5, metavar="N", help="before a ratio counts as decided (default: %(default)s)")
    parser.add_argument("--time-limit", type=float, default=30.0, metavar="MINUTES", help="(default: %(default)s)")
    parser.add_argument("--wait", type=float, default=60.0, metavar="SECONDS",
                        help="before each round, for other programs to end (default: %(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "bench", metavar="FOLDER", help="(default: build/bench)")
    parser.add_argument("--resume", action="store_true", help="add rounds to FOLDER/speed.json")
    parser.add_argument("--smoke", action="store_true", help="one short round of two rows at depths 0 and 64: does it work?")
    args = parser.parse_args(arguments)
    if args.smoke:
        args.rows, args.depths, args.n_prefill, args.n_decode, args.rounds, args.wait, args.threads = ["bench"], [0, 64], 32, 4, 1, 0.0, 1
    n_cpus = len(os.sched_getaffinity(0))
    if not 1 <= args.threads <= n_cpus:
        parser.error(f"--threads is {args.threads}, expected 1 to {n_cpus}, the CPUs this process may use")
    if args.n_prefill < 1 or args.n_decode < 1 or args.depths[0] < 0 or args.rounds < 1 or args.min_rounds < 2:
        parser.error("expected at least 1 token and 1 round, depths from 0 and --min-rounds from 2")
    # the control with split heads drops nothing only that far below the context
    if args.context % 256 or args.depths[-1] + args.n_prefill + args.n_decode + 64 > args.context:
        parser.error(f"--context is {args.context}, expected a multiple of 256 above the last depth, the tokens measured and 64 more")
    return args


def main(arguments=None):
    args = parse_args(arguments)
    return process.exit_code(lambda: run(args))
