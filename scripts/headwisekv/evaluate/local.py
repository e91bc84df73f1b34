"""`scripts/eval local`: starts llama-server of this tree, with the full cache and with points of a policy, and measures them all."""

import contextlib
import json
import signal
from pathlib import Path

from .. import policy as policies
from ..arguments import lengths, percents, positive, some_of, words
from ..core import ROOT, Failure, say, write_whole
from ..markdown import number, table
from ..programs import policy_arguments
from ..provenance import provenance
from ..server import base_arguments, start
from .options import add_model_options, text_arguments
from .ruler import N_PREDICT, TASKS


def add_options(parser):
    add_model_options(parser, "local")
    parser.add_argument("--server", type=Path, default=ROOT / "build" / "bin" / "llama-server", help="default: build/bin/llama-server")
    parser.add_argument("--policy", type=Path, help="policy file; default: only the full cache")
    parser.add_argument("--points", type=words, help="operating points; default: the selected one and the smallest other")
    parser.add_argument("--lengths", type=lengths, default=[512, 1024, 2048, 4096], help="in tokens; default: 512,1024,2048,4096")
    parser.add_argument("--depths", type=percents, default=[0, 25, 50, 75, 100], help="of the needle likelihood; default: 0,25,50,75,100")
    parser.add_argument("--examples", type=positive, default=10, help="for each cell; default: 10")
    parser.add_argument("--tasks", type=some_of(TASKS, "task"), default=list(TASKS), help="default: all five")


def choose_points(options):
    """Names of operating points."""
    if not options.policy:
        return []
    policy = policies.read(options.policy)
    for name in options.points or []:
        policies.find_point(policy, name, options.policy)
    sizes = {point["name"]: point["bytes"] for point in policy["operating_points"]}
    selected = policy["selected"]
    others = sorted((name for name in sizes if name != selected), key=sizes.get)
    return options.points or [selected, *others[:1]]


def running(options, name, point):
    """A server for this block; its context has room for the longest sample."""
    arguments = base_arguments(options.model_file, max(options.lengths) + 64, options.threads)
    return start(options.server, arguments + policy_arguments(options.policy if point else None, point), options.out / f"server-{name}.log", name)


def say_estimate(options, server, n_servers):
    """From the speed of one short request; long prompts are slower for each token, so it is a lower bound."""
    speed = server.ask("/completion", {"prompt": "The sky is blue. " * 50, "n_predict": 32, "ignore_eos": True, "cache_prompt": False})["timings"]
    samples = n_servers * len(options.tasks) * options.examples
    needles = n_servers * len(options.depths) * options.examples
    seconds = sum((samples + needles) * length / speed["prompt_per_second"] + samples * N_PREDICT / speed["predicted_per_second"]
                  for length in options.lengths)
    say(f"about {seconds / 60:.0f} minutes in all, more where attention dominates; after Ctrl-C the same command goes on")


def summary(options, names):
    """One table of all runs from their results.json."""
    columns = [*map(str, options.lengths), "all"]
    data = {f"ruler-{name}": json.loads((options.out / f"ruler-{name}" / "results.json").read_text())["cells"] for name in names}
    data["needle"] = json.loads((options.out / "needle" / "results.json").read_text())["lengths"]
    ruler, needle = [], []
    for name in names:
        cells = data[f"ruler-{name}"]["all"]
        ruler.append([name, *(number(cells[length]["score"]) for length in columns), cells["all"]["n"], cells["all"]["failed"]])
        cells = data["needle"]
        needle.append([name, *(number(cells[length][name]["logprob"], 3) for length in columns), cells["all"]["n"], cells["all"]["failed"]])
    head = [*columns, "n", "failed"]
    markdown = (f"# {options.model_file.stem}\n\nRULER-style score, 0 to 100:\n\n" + table(["cache", *head], ruler)
                + "\nNeedle likelihood, nats:\n\n" + table(["cache", *head], needle))
    write_whole(options.out / "summary.md", markdown)
    data = {"model": options.model_file.stem, "runs": data, "provenance": provenance("scripts/eval")}
    write_whole(options.out / "summary.json", json.dumps(data, indent=1) + "\n")
    print("\n" + markdown, end="", flush=True)


def run(options, main):
    """`main` runs one benchmark with a list of arguments and returns its exit code."""
    for path in (options.model_file, options.server):
        if not path.is_file():
            raise Failure(f"there is no file {path}")
    points = choose_points(options)
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    codes = []
    with contextlib.ExitStack() as stack:
        servers = {name: stack.enter_context(running(options, name, None if name == "full" else name)) for name in ["full", *points]}
        say_estimate(options, servers["full"], len(servers))
        urls = {name: server.url for name, server in servers.items()}
        common = ["--lengths", ",".join(map(str, options.lengths)), "--examples", str(options.examples), "--seed", str(options.seed),
                  *text_arguments(options)]
        jobs = {f"ruler-{name}": ["ruler", "--base-url", url, "--tasks", ",".join(options.tasks), "--name", name] for name, url in urls.items()}
        jobs["needle"] = ["needle", "--base-url", urls["full"], "--depths", ",".join(map(str, options.depths)),
                          *(f"--policy-url={name}={urls[name]}" for name in points)]
        for name, job in jobs.items():
            say(f"== {name}")
            codes.append(main([*job, *common, "--out", str(options.out / name)]))
            if codes[-1] == 130 or not (options.out / name / "results.json").exists():
                return codes[-1]
    summary(options, list(urls))
    return max(codes)
