"""Where the time of decoding goes: the top symbols of some rows of the speed bench, by perf.

    scripts/bench profile --rows pristine,plain,bench --depth 7000

Only decode steps are sampled: perf is attached when the row has its tokens. Needs perf (Debian: linux-perf) and the right to
use it (root, or kernel.perf_event_paranoid at most 2). There is no fallback: valgrind would take hours at such depths.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .. import process
from ..arguments import some_of
from ..core import ROOT, Failure
from ..progress import Progress
from .speed_child import ROWS, Child, check_programs, make_policies

EVENTS = ("cycles", "cpu-clock")  # virtual machines often have no cycles
N_TOKEN_MAX = 512  # decoded after each restored state: restoring is sampled too, so it must be rare


def perf(*args):
    done = subprocess.run(["perf", *map(str, args)], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith("WARNING")]
        raise Failure(f"perf {args[0]} failed: {lines[0].strip() if lines else 'it said nothing'}")
    return done.stdout


def choose_event(folder):
    """The best event that can be sampled here."""
    reason = "it took no samples"
    for event in EVENTS:
        try:
            perf("record", "-q", "-e", event, "-o", folder / "probe", "--", sys.executable, "-c", "sum(range(300000))")
            if re.search(r"[1-9]", perf("report", "-i", folder / "probe", "--stdio", "-q", "-F", "sample")):
                return event
        except Failure as failure:
            reason = failure
    raise Failure(f"perf can sample nothing here: {reason}")


def profile(child, state, args, event, folder):
    """Symbols with their share, and seconds for a token."""
    data = folder / "perf.data"
    recorder = subprocess.Popen(["perf", "record", "-q", "-e", event, "-F", "499", "-o", str(data), "-p", str(child.process.pid)],
                                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)
    process.sessions.append(recorder)
    try:
        time.sleep(1.0)  # perf does not say when it is attached; the process is idle until then
        seconds, n_token, n_each = 0.0, 0, min(N_TOKEN_MAX, args.context - args.depth - 64)
        while seconds < args.seconds:
            seconds += child.ask(f"run 0 {n_each} {state}")["decode_s"]
            n_token += n_each
        recorder.send_signal(signal.SIGINT)
        error = recorder.communicate()[1].strip()
    finally:
        process.sessions.remove(recorder)
    if not data.exists():
        raise Failure(f"perf record failed: {error.splitlines()[0] if error else 'it said nothing'}")
    report = perf("report", "-i", data, "--stdio", "-q", "--no-children", "-F", "overhead,symbol,dso", "-t", "|", "--percent-limit", "0.5")
    symbols = re.findall(r"^\s*([\d.]+)%\s*\|\[(.)\]\s+(.*?)\s*\|\s*(\S+)", report, re.MULTILINE)
    if not symbols:
        raise Failure(f"perf report has no symbols in it, expected lines like '25.6% |[.] name |library': {report.strip()[:60]!r}")
    return symbols, seconds / n_token


def print_symbols(row, symbols, per_token, args):
    print(f"\n{row.title}: decode at depth {args.depth}, {1000 * per_token:.2f} ms a token\n")
    print("| % | symbol | library |\n|---|---|---|")
    for share, where, name, library in symbols[:args.top]:
        print(f"| {float(share):.1f} | `{name}` | {library if where == '.' else 'kernel'} |")


def run(args):
    if shutil.which("perf") is None:
        raise Failure("perf is not installed, expected it (Debian: linux-perf); there is no other way to profile here")
    check_programs(args.rows)
    model = args.model or Path(process.setup("model"))
    folder = ROOT / "build" / "bench"
    folder.mkdir(parents=True, exist_ok=True)
    policies = make_policies(args.rows, model, args.context, folder)
    progress = Progress()
    with tempfile.TemporaryDirectory(dir=folder) as temp:
        temp = Path(temp)
        event = choose_event(temp)
        for i, name in enumerate(args.rows):
            row = ROWS[name]
            if policies[row.policy] is None:
                continue
            progress.show(f"{name}: filling to {args.depth} tokens, then {args.seconds:.0f} s of decoding", i / len(args.rows))
            child = Child(row, model, args.context, sorted(os.sched_getaffinity(0))[:args.threads], policies[row.policy], folder)
            state = temp / "state" if args.depth else "-"
            if args.depth:
                child.ask(f"fill {args.depth} {state}")
            symbols, per_token = profile(child, state, args, event, temp)
            child.close()
            progress.end()
            print_symbols(row, symbols, per_token, args)
    return 0


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/bench profile", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, metavar="FILE", help="(default: the model that make run serves)")
    parser.add_argument("--rows", type=some_of(ROWS, "row"), default=["pristine", "plain", "bench"], metavar="A,B", help="(default: pristine,plain,bench)")
    parser.add_argument("--depth", type=int, default=7000, help="(default: %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="(default: %(default)s)")
    parser.add_argument("--context", type=int, default=8192, help="(default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of decoding (default: %(default)s)")
    parser.add_argument("--top", type=int, default=12, help="symbols to show (default: %(default)s)")
    args = parser.parse_args(arguments)
    if args.depth < 0 or args.depth + 128 > args.context:
        parser.error(f"--depth is {args.depth}, expected 0 to {args.context - 128}: 128 below the context")
    return process.exit_code(lambda: run(args))
