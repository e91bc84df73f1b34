"""`scripts/eval all`: everything that is measured of a model file and its policy, in a limited time, into one page.

It measures the speed of this machine first, says how long it will take and what it leaves out to stay within the limit. Killed at any
time, the same command goes on.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from .. import policy as policies
from .. import programs
from ..arguments import lengths, percents, positive, some_of, words
from ..core import ROOT, Failure, read_text, say, sha256_file, write_whole
from ..programs import ending_with_us, policy_arguments
from ..progress import Steps
from ..provenance import commit, machine, provenance
from ..server import base_arguments, start
from ..store import Store
from ..texts import choose
from . import plan as planning
from . import results_page
from .caches import Setup, cut_chunks, measure_needles
from .haystack import Haystack
from .options import add_model_options, add_policy_options, text_arguments
from .rivals import Config


def add_options(parser):
    add_model_options(parser, "all")
    add_policy_options(parser)
    parser.add_argument("--points", type=words, help="two operating points; default: the selected one and the smallest other")
    parser.add_argument("--limit-minutes", type=positive, default=120, metavar="N", help="what does not fit is left out, and named; default: 120")
    parser.add_argument("--skip", type=some_of(planning.STAGES, "stage"), default=[], metavar="A,B", help=f"stages of {','.join(planning.STAGES)}")
    parser.add_argument("--lengths", type=lengths, default=[512, 1024, 2048, 4096], help="of RULER and needles; default: 512,1024,2048,4096")
    parser.add_argument("--depths", type=percents, default=[0, 25, 50, 75, 100], help="of the needles; default: 0,25,50,75,100")
    parser.add_argument("--examples", type=positive, default=10, help="of RULER, for each task and length; default: 10")
    parser.add_argument("--needle-examples", type=positive, default=4, help="for each length and depth; default: 4")
    parser.add_argument("--verify-chunks", type=positive, default=4, help="of the policy's own context, for llama-kv-verify; default: 4")
    parser.add_argument("--verify-context", type=positive, help="default: the policy's")
    parser.add_argument("--systems-contexts", type=lengths, default=[2048, 4096, 8192], help="default: 2048,4096,8192")
    parser.add_argument("--repetitions", type=positive, default=3, help="of the systems table and the capacity probe; default: 3")
    parser.add_argument("--capacity-resident", type=positive, default=256, metavar="MIB", help="memory of the capacity probe; default: 256")
    parser.add_argument("--capacity-limit", type=positive, default=384, metavar="MIB", help="address space of its second run; default: 384")
    parser.add_argument("--capacity-max", type=positive, default=32768, metavar="N", help="largest context of the probe; default: 32768")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "results.md", help="default: docs/results.md; its pictures go into a folder beside it")


#
# plan
#

def measure_speed(options, arguments, name, n_long):
    """Requests to one server: a short prompt, after one that warms it up, and one that fills the context."""
    text = " ".join(Haystack(options.texts).words[:2 * n_long])
    with start(options.programs / "llama-server", base_arguments(options.model_file, n_long + 64, options.threads) + arguments,
               options.out / "server-speed.log", name) as server:
        tokens = server.ask("/tokenize", {"content": text})["tokens"]
        found = []
        for n in (short := min(256, n_long // 4), short, n_long):
            timings = server.ask("/completion", {"prompt": tokens[:n], "n_predict": 17, "temperature": 0, "ignore_eos": True, "cache_prompt": False})["timings"]
            found.append((timings["prompt_n"], timings["prompt_ms"] / 1000, timings["predicted_ms"] / 16000))
    return planning.Speed.fit(*found[1:])


class Subject:
    """The policy: its content and hash, and its points, largest first."""

    def __init__(self, path):
        self.data, self.hash = policies.read(path), sha256_file(path)
        self.names = [point["name"] for point in sorted(self.data["operating_points"], key=lambda point: -point["bytes"])]


def new_plan(options, subject):
    names = subject.names
    selected = subject.data["selected"]
    points = options.points or [selected, *[name for name in reversed(names) if name != selected][:1]]
    for name in points:
        policies.find_point(subject.data, name, options.policy)
    return planning.Plan(
        points=points, all_points=names, lengths=options.lengths, depths=options.depths, context=max(options.lengths),
        ruler_examples=options.examples, needle_examples=options.needle_examples,
        verify_context=options.verify_context or subject.data["context"], verify_chunks=options.verify_chunks,
        systems_contexts=options.systems_contexts, repetitions=options.repetitions, skipped=list(options.skip))


class State:
    """plan.json: what is measured, what it took so far. Written whole after every change."""

    def __init__(self, options, subject):
        self.path = options.out / "plan.json"
        identity = {"version": 1, "model": options.model_file.name, "model_sha256": sha256_file(options.model_file), "policy_sha256": subject.hash,
                    "seed": options.seed, "texts": options.texts.record(), "asked": asked(options)}
        if self.path.exists():
            self.load(identity)
            say(f"going on in {options.out}: " + (", ".join(self.data["done"]) or "nothing") + " done")
        else:
            self.data = {**identity, "spent": dict.fromkeys(planning.STAGES, 0.0), "done": [], "began": [], "failed": {}, "commits": [], "loads": [],
                         "command": provenance("scripts/eval")["command"], "machine": machine(), "threads": options.threads}
        if commit() not in self.data["commits"]:
            self.data["commits"].append(commit())
        self.data["loads"].append(round(os.getloadavg()[0], 2))
        self.data["failed"] = {}

    def load(self, identity):
        try:
            self.data = json.loads(self.path.read_text())
        except ValueError:
            raise Failure(f"{self.path} is not JSON; move the folder away to begin anew") from None
        for key, value in identity.items():
            if self.data.get(key) != value:
                raise Failure(f"{self.path} is of another run: {key} is {self.data.get(key)!r} there and {value!r} now; choose another --out")
        self.plan = planning.from_json(self.data["plan"])

    def begin(self, stage):
        """From now on its part of the plan stays as it is."""
        if stage not in self.data["began"]:
            self.data["began"].append(stage)
        self.save()

    def save(self):
        self.data["plan"] = planning.to_json(self.plan)
        write_whole(self.path, json.dumps(self.data, indent=1) + "\n")

    def speeds(self):
        return planning.Speed(**self.data["speed"]["full"]), planning.Speed(**self.data["speed"]["policy"])

    def remaining(self, plan):
        """Seconds that the stages still take, by the estimate and by how wrong it was so far."""
        seconds = planning.estimate(plan, *self.speeds())
        done = self.data["done"]
        expected = sum(seconds[stage] for stage in done)
        factor = max(1.0, sum(self.data["spent"][stage] for stage in done) / expected) if expected > 60 else 1.0
        return sum(max(0.0, factor * seconds[stage] - self.data["spent"][stage]) for stage in planning.STAGES if stage not in done)


def asked(options):
    """Options that change what is measured."""
    return {key: getattr(options, key) for key in ("points", "lengths", "depths", "examples", "needle_examples",
                                                   "verify_chunks", "verify_context", "systems_contexts", "repetitions", "capacity_limit", "capacity_resident",
                                                   "capacity_max", "skip", "kl_weights")}


#
# stages
#

def bench(name, options, plan, *arguments):
    """One of the commands that also run on their own; its results stay in a folder of its own."""
    command = [sys.executable, ROOT / "scripts" / "bench", name, "--model", options.model_file, "--policy", options.policy, "--points", plan.points[0], "--checkpoints", "both", "--server",
               options.programs / "llama-server", "--threads", options.threads, "--repetitions", plan.repetitions, "--text", *options.texts.essays, *arguments]
    code = subprocess.run(ending_with_us(command), stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
    if code == 130:
        raise KeyboardInterrupt
    if code != 0:
        raise Failure(f"scripts/bench {name} ended with code {code}, see above")


def run_systems(options, plan, subject):
    bench("systems", options, plan, "--contexts", ",".join(map(str, plan.systems_contexts)), "--out", options.out / "systems")


def run_capacity(options, plan, subject):
    # beyond the model's own context, which llama-server would else hold against it: only memory is asked for here
    lift = f"--override-kv {subject.data['model']['architecture']}.context_length=int:{options.capacity_max}"
    for name, limit in (("resident", options.capacity_resident), ("limit", options.capacity_limit)):
        bench("capacity", options, plan, f"--{name}", limit, "--max", options.capacity_max, "--server-args", lift, "--out",
                     options.out / f"capacity-{name}")


def run_verify(options, plan, subject):
    """llama-kv-verify, chunk by chunk so that a kill loses one."""
    setup = Setup(options.programs, options.model_file, plan.verify_context, options.threads, options.texts, options.seed, options.out / "verify")
    setup = setup.f32(options.kl_weights == "f32")
    chunks, text_hash = cut_chunks(setup, plan.verify_chunks)
    store = Store(setup.out / "results.jsonl", {"benchmark": "verify", **setup.identity(subject.hash)})
    try:
        todo = [i for i in range(plan.verify_chunks) if not store.has(f"{text_hash}/{i}")]
        progress = Steps(len(todo), "llama-kv-verify")
        for i in todo:
            out = programs.run(options.programs / "llama-kv-verify", "-m", setup.model, "-f", chunks[i], "--kv-policy",
                            options.policy, "--all-points", "-c", plan.verify_context, "--n-seq", 1, "-t", options.threads, "--json", "-")
            store.add({"id": f"{text_hash}/{i}", "points": json.loads(out)["points"]})
            progress.step()
        progress.end()
        records = store.pick([f"{text_hash}/{i}" for i in range(plan.verify_chunks)])
    finally:
        store.close()
    write_whole(setup.out / "results.json", json.dumps({"context": plan.verify_context, "f32": setup.is_f32, "records": records}, indent=1) + "\n")


def check_complete(records):
    """A stage with failures is not done: the page shows them, and the next run tries them again."""
    failed = [record["error"] for record in records if "error" in record]
    if failed:
        raise Failure(f"{len(failed)} of {len(records)} failed, such as: {failed[0]}")


def run_needle(options, plan, subject):
    configs = [Config("full", "full", 0), *(Config(name, "ours", 0, policy=options.policy, point=name, cache=None) for name in plan.points)]
    setup = Setup(options.programs, options.model_file, plan.context, options.threads, options.texts, options.seed, options.out / "needle")
    jobs = [(length, depth, index) for length in plan.lengths for depth in plan.depths for index in range(plan.needle_examples)]
    found = measure_needles(setup, configs, subject.hash, jobs)
    records = {name: [{"length": job[0], "depth": job[1], "index": job[2], **record} for job, record in records.items()] for name, records in found.items()}
    write_whole(setup.out / "results.json", json.dumps({"needle": records}, indent=1) + "\n")
    check_complete([record for found in records.values() for record in found])


def run_ruler(options, plan, subject):
    from .__main__ import main
    codes = []
    for name in ("full", *plan.points):
        folder = options.out / f"ruler-{name}"
        folder.mkdir(exist_ok=True)
        policy = [] if name == "full" else policy_arguments(options.policy, name)
        with start(options.programs / "llama-server", base_arguments(options.model_file, max(plan.lengths), options.threads) + policy,
                   folder / "server.log", name) as server, contextlib.redirect_stdout(sys.stderr):
            codes.append(main(["ruler", "--base-url", server.url, "--name", name, "--lengths", ",".join(map(str, plan.lengths)), "--examples",
                               str(plan.ruler_examples), "--seed", str(options.seed), *text_arguments(options), "--out", str(folder)]))
        if codes[-1] == 130:
            raise KeyboardInterrupt
    if any(codes):
        raise Failure("some examples failed: the table has their number and reasons, the same command tries them again")


RUN = {"systems": run_systems, "capacity": run_capacity, "verify": run_verify, "needle": run_needle, "ruler": run_ruler}


def run_stage(stage, options, state, subject):
    """Runs a stage and counts its time, also where it fails or is interrupted. A failure is kept for the page; the others go on."""
    began = time.monotonic()
    state.begin(stage)
    say(f"== {stage}")
    ticker = Ticker(state, stage)
    try:
        RUN[stage](options, state.plan, subject)
        state.data["done"].append(stage)
    except Failure as failure:
        say(f"error: {stage}: {failure}")
        state.data["failed"][stage] = str(failure)
    finally:
        ticker.stop()
        state.data["spent"][stage] = round(ticker.before + time.monotonic() - began, 1)
        state.save()


def make_up(options, state, subject, limit):
    """What was left out of stages that are done, where there is time for it after all. They go on from what they have."""
    for stage in planning.MAKE_UP:
        plan = planning.restored(state.plan, new_plan(options, subject), stage)
        if plan.dropped == state.plan.dropped or stage not in state.data["done"]:
            continue
        spent = state.data["spent"][stage]
        more = spent * (planning.estimate(plan, *state.speeds())[stage] / planning.estimate(state.plan, *state.speeds())[stage] - 1)
        if more > planning.MARGIN * (limit - sum(state.data["spent"].values())):
            continue
        say(f"there is time for all of {stage}: about {planning.minutes(more)} more")
        state.plan = plan
        state.data["done"].remove(stage)
        run_stage(stage, options, state, subject)
        results_page.write(options, state.data, state.plan)


class Ticker:
    """Keeps the time that a stage has taken up to date on disk, for a kill."""

    def __init__(self, state, stage):
        self.before = state.data["spent"][stage]
        self.end = threading.Event()

        def tick():
            began = time.monotonic()
            while not self.end.wait(20):
                state.data["spent"][stage] = round(self.before + time.monotonic() - began, 1)
                state.save()

        self.thread = threading.Thread(target=tick, daemon=True)
        self.thread.start()

    def stop(self):
        self.end.set()
        self.thread.join()


def check_input(options):
    for name in ("llama-server", "llama-kv-policy", "llama-kv-verify", "llama-perplexity", "llama-quantize"):
        if not (options.programs / name).is_file():
            raise Failure(f"there is no {options.programs / name}; make build makes the programs")
    for path in (options.model_file, options.policy):
        if not path.is_file():
            raise Failure(f"there is no file {path}")
    options.texts = choose(options.text, options.data)
    Haystack(options.texts)
    for path in options.texts.held_out:
        read_text(path)


def run(options):
    check_input(options)
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    limit = 60.0 * options.limit_minutes
    subject = Subject(options.policy)
    state = State(options, subject)
    if state.data["loads"][-1] > 0.5:
        say(f"warning: the load of this machine is {state.data['loads'][-1]}, expected a quiet one: speeds and the estimate are worse than they could be")
    if "speed" not in state.data:
        began = time.monotonic()
        state.plan = new_plan(options, subject)
        say("measuring the speed of this machine")
        point = state.plan.points[0]
        state.data["speed"] = {"full": vars(measure_speed(options, [], "full", state.plan.context)),
                               "policy": vars(measure_speed(options, policy_arguments(options.policy, point), point, state.plan.context))}
        state.data["estimate_whole"] = planning.estimate(state.plan, *state.speeds())
        planning.say_estimate(state.data["estimate_whole"], limit)
        planning.replan(state.plan, new_plan(options, subject), limit, state.remaining)
        state.data["estimate"] = planning.estimate(state.plan, *state.speeds())
        if state.plan.dropped:
            planning.say_estimate(state.data["estimate"], limit)
        state.data["speed_seconds"] = round(time.monotonic() - began, 1)
        state.save()
    for stage in planning.STAGES:
        if stage in state.data["done"]:
            continue
        spent = sum(state.data["spent"].values())
        planning.replan(state.plan, new_plan(options, subject), limit - spent, state.remaining, state.data["began"])
        if stage in state.plan.skipped:
            state.begin(stage)  # its turn is over
            continue
        say(f"{planning.minutes(spent)} so far, about {planning.minutes(state.remaining(state.plan))} left")
        run_stage(stage, options, state, subject)
        results_page.write(options, state.data, state.plan)
    make_up(options, state, subject, limit)
    results_page.write(options, state.data, state.plan)
    say(f"written: {options.page}")
    return 1 if state.data["failed"] else 0
