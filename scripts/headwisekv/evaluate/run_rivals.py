"""`scripts/eval rivals`: what a number of bytes can do, by KL divergence and needle likelihood, in a limited time, into one page.

It measures the speed of this machine first, says how long it will take and what it leaves out to stay within the limit. Killed at any
time, the same command goes on.
"""

import argparse
import contextlib
import json
import os
import signal
import threading
import time
from pathlib import Path

from ..arguments import lengths, percents, positive, words
from ..core import Failure, say, sha256_file, write_whole
from ..fetch import cache_dir
from ..fetch_command import fetch_named
from ..provenance import commit, machine, provenance
from ..progress import Progress
from ..texts import choose
from . import rivals_data, rivals_page, rivals_plan
from .options import add_model_options, add_policy_options
from .plan import minutes
from .rivals_scene import Scene

BUDGETS = ["q8_0", "32MiB", "q4_0", "16MiB"]
SIDE_BUDGETS = ["q8_0", "q4_0"]
PROGRAMS = ("llama-server", "llama-kv-policy", "llama-perplexity", "llama-quantize")


def budgets(text):
    for word in words(text):
        if word not in SIDE_BUDGETS and not (word.endswith("MiB") and word[:-3].isdecimal() and int(word[:-3])):
            raise argparse.ArgumentTypeError(f"found '{word}', expected q8_0, q4_0 or a size such as 32MiB")
    return words(text)


def add_options(parser):
    add_model_options(parser, "rivals")
    add_policy_options(parser)
    parser.add_argument("--layers-policy", type=Path, metavar="JSON",
                        help="of llama-seqcalib --per-layer, with one entry a layer; default: the name of --policy with -layers, if there is one")
    parser.add_argument("--tau-policy", type=Path, metavar="JSON", help="with points tau-0.998 and the like and their scores; default: --policy")
    parser.add_argument("--budgets", type=budgets, default=BUDGETS, help=f"bytes of our points, q8_0 for those of such a cache; default: {','.join(BUDGETS)}")
    parser.add_argument("--context", type=positive, default=4096, help="of chunks, needle samples and bytes; default: 4096")
    parser.add_argument("--long", type=lengths, default=[], metavar="N[,N]", help="longer contexts: ours, q8_0, q4_0 and one entry a layer")
    parser.add_argument("--long-policy", type=Path, metavar="JSON", help="of these; default: --policy")
    parser.add_argument("--other", metavar="GGUF|NAME", help="another model with a raw prompt, a file or one that scripts/fetch knows; the same is measured of it")
    parser.add_argument("--other-policy", type=Path, metavar="JSON")
    parser.add_argument("--other-context", type=positive, default=4096, help="default: 4096")
    parser.add_argument("--limit-minutes", type=positive, default=100, metavar="N", help="what does not fit is left out, and named; default: 100")
    parser.add_argument("--chunks", type=positive, default=8, help="of text for a KL divergence; default: 8")
    parser.add_argument("--side-chunks", type=positive, default=4, help="at longer contexts and of another model; default: 4")
    parser.add_argument("--texts", type=Path, nargs="+", help="texts of the chunks; default: the ones that are held out, of the data folder two novels")
    parser.add_argument("--examples", type=positive, default=2, help="needle samples at each depth; default: 2")
    parser.add_argument("--depths", type=percents, default=[0, 25, 50, 75], help="default: 0,25,50,75")
    parser.add_argument("--page", type=Path, help="default: results.md in --out; figures and pictures go into the folder results beside it")


ASKED = ("budgets", "context", "long", "other_context", "chunks", "side_chunks", "examples", "depths", "kl_weights", "seed")  # options that change what is measured


def asked_plan(options, sides):
    return rivals_plan.Plan(budgets=options.budgets, sides=sides, depths=options.depths, chunks=options.chunks, rival_chunks=options.chunks,
                            side_chunks=options.side_chunks, needles=options.examples, rival_needles=options.examples, side_needles=options.examples)


def other_model(options, left_out):
    """Path of the other model, or None with the reason in left_out."""
    if not options.other:
        return None
    if not options.other_policy or not options.other_policy.is_file():
        left_out.append(f"{options.other}: there is no policy {options.other_policy}")
        return None
    if Path(options.other).is_file():
        return Path(options.other)
    try:
        return Path(fetch_named(options.other, cache_dir())[0])
    except Failure as failure:
        left_out.append(f"{options.other}: {failure}")
        return None


def make_scenes(options, texts, left_out):
    """The main one first."""
    scenes = [Scene("main", options, options.model_file, options.context, options.policy, options.budgets, texts, main=True, tau=options.tau_policy,
                    layers=options.layers_policy)]
    scenes += [Scene(f"context-{n_ctx}", options, options.model_file, n_ctx, options.long_policy or options.policy, SIDE_BUDGETS, texts) for n_ctx in options.long]
    other = other_model(options, left_out)
    if other:
        scenes.append(Scene("other", options, other, options.other_context, options.other_policy, SIDE_BUDGETS, texts, prompt="raw"))
    return scenes


class State:
    """state.json: whose results these are, and how long they took so far. Written every 20 seconds, for a kill."""

    def __init__(self, options, scenes, texts):
        self.path = options.out / "state.json"
        self.lock = threading.Lock()
        identity = {"version": 1, "model_sha256": sha256_file(options.model_file), "policies": {scene.key: scene.maker.hashes for scene in scenes},
                    "texts": texts.record(), "asked": {key: getattr(options, key) for key in ASKED}}
        self.data = {**identity, "spent": 0.0, "commits": [], "loads": [], "machine": machine(), "threads": options.threads,
                     "command": provenance("scripts/eval")["command"]}
        if self.path.exists():
            self.load(identity)
            say(f"going on in {options.out}: {minutes(self.data['spent'])} so far")
        if commit() not in self.data["commits"]:
            self.data["commits"].append(commit())
        self.data["loads"].append(round(os.getloadavg()[0], 2))
        self.before, self.began = self.data["spent"], time.monotonic()

    def load(self, identity):
        try:
            found = json.loads(self.path.read_text())
        except ValueError:
            raise Failure(f"{self.path} is not JSON; move the folder away to begin anew") from None
        for key, value in json.loads(json.dumps(identity)).items():
            if found.get(key) != value:
                raise Failure(f"{self.path} is of another run: {key} is {found.get(key)!r} there and {value!r} now; choose another --out")
        self.data = found

    def spent(self):
        return self.before + time.monotonic() - self.began

    def save(self):
        with self.lock:
            self.data["spent"] = round(self.spent(), 1)
            write_whole(self.path, json.dumps(self.data, indent=1) + "\n")

    @contextlib.contextmanager
    def ticking(self):
        end = threading.Event()

        def tick():
            while not end.wait(20):
                self.save()

        self.save()
        thread = threading.Thread(target=tick, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            end.set()
            thread.join()
            self.save()


class Run:
    """All scenes, by one plan that is made anew before every batch."""

    def __init__(self, options, scenes, state, left_out):
        self.options, self.scenes, self.state, self.left_out = options, scenes, state, left_out
        self.asked = asked_plan(options, [scene.key for scene in scenes if not scene.main])
        self.plan, self.dropped = self.asked, []
        self.tried = set()
        self.titles = {scene.key: scene.title for scene in scenes}

    def left(self, plan):
        return [batch for scene in self.scenes for batch in scene.batches(plan, self.tried)]

    def cost(self, plan):
        return sum(batch.seconds() for batch in self.left(plan))

    def measure(self, batch):
        bar = Progress()
        done = [0, 0]

        def step(is_failed):
            done[0] += 1
            done[1] += is_failed
            n = len(batch.keys())
            bar.show(f"{done[0]} of {n}" + (f", {done[1]} failed" if done[1] else ""), done[0] / n, batch.seconds() * (1 - done[0] / n))

        self.tried.update(batch.keys())
        batch.run(step)
        bar.end()

    def replan(self):
        limit = 60.0 * self.options.limit_minutes - self.state.spent()
        before = self.dropped
        self.plan, dropped = rivals_plan.decide(self.asked, self.cost, limit)
        self.dropped = [self.titles.get(text, text) for text in dropped]
        for text in self.dropped:
            if text not in before:
                say(f"left out to stay within the limit: {text}")
        for text in before:
            if text not in self.dropped:
                say(f"not left out after all: {text}")

    def say_estimate(self):
        parts = {}
        for batch in self.left(self.asked):
            key = f"{batch.scene.title}, {'KL' if batch.kind == 'kl' else 'needles'}"
            parts[key] = parts.get(key, 0.0) + batch.seconds()
        say(f"estimate: {minutes(self.state.spent() + sum(parts.values()))} in all, limit {self.options.limit_minutes} min: "
            + ", ".join(f"{key} {minutes(value)}" for key, value in parts.items()))

    def write(self, finished):
        page = self.options.page or self.options.out / "results.md"
        folder = page.parent / rivals_page.FOLDER
        folder.mkdir(parents=True, exist_ok=True)
        self.state.save()
        data = {"benchmark": "rivals", **{key: self.state.data[key] for key in ("spent", "commits", "loads", "machine", "threads", "command", "texts", "asked")},
                "dropped": [*self.left_out, *self.dropped], "finished": finished, "scenes": [scene.collect(self.asked, folder) for scene in self.scenes]}
        rivals_page.write(page, data)
        return page, data

    def everything(self):
        say("measuring the speed of this machine")
        for batch in [batch for scene in self.scenes for batch in scene.first_batches(self.asked)]:
            self.measure(batch)
        self.say_estimate()
        last = None
        while True:
            self.replan()
            batches = self.left(self.plan)
            now = batches and (batches[0].scene.key, batches[0].kind)
            if last and now != last:
                self.write(not batches)
            if not batches:
                break
            say(f"{minutes(self.state.spent())} so far, about {minutes(self.cost(self.plan))} left; {batches[0]}")
            self.measure(batches[0])
            last = now
        page, data = self.write(True)
        for scene in data["scenes"]:
            say(f"{scene['title']}: {rivals_data.served_text(scene['served'])}")
        for bar in data["scenes"][0]["bars"]:
            say(f"bar at the bytes of {bar['budget']}, against {bar['against'] or ' or '.join(bar['names'])}: {bar['verdict']}")
        say(f"written: {page}")
        return sum(rivals_data.failed(scene["rows"]) for scene in data["scenes"])


def check_input(options):
    for name in PROGRAMS:
        if not (options.programs / name).is_file():
            raise Failure(f"there is no {options.programs / name}; make build makes the programs")
    for path in (options.model_file, options.policy, options.tau_policy, options.layers_policy, options.long_policy, *(options.texts or [])):
        if path and not path.is_file():
            raise Failure(f"there is no file {path}")


def run(options):
    """How many measurements failed."""
    check_input(options)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    texts = choose(options.text, options.data)
    options.out.mkdir(parents=True, exist_ok=True)
    left_out = []
    scenes = make_scenes(options, texts, left_out)
    for text in [*left_out, *(f"{scene.title}: {text}" for scene in scenes for text in scene.maker.left_out)]:
        say(f"left out: {text}")
    state = State(options, scenes, texts)
    if state.data["loads"][-1] > 0.5:
        say(f"warning: the load of this machine is {state.data['loads'][-1]}, expected a quiet one: speeds and the estimate are worse than they could be")
    with contextlib.ExitStack() as stack:
        for scene in scenes:
            stack.enter_context(scene)
        stack.enter_context(state.ticking())
        return Run(options, scenes, state, left_out).everything()
