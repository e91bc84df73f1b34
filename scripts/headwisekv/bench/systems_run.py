"""One measurement of the systems protocol: a fresh llama-server, a prompt of C - 128 tokens, 128 greedy tokens."""

import re
import shlex
import time
from dataclasses import dataclass
from pathlib import Path

from ..arguments import positive, words
from ..core import ROOT, Failure, read_text, sha256_file
from ..devices import Peak
from ..programs import check_program, policy_arguments
from ..provenance import program_hash
from ..server import Ended, Server
from ..texts import choose

N_PREDICT = 128
NO_CHECKPOINTS = "without checkpoints"
CHARACTERS = 8  # of a token, more than any text has on average
OUT_OF_MEMORY = re.compile(r"failed to allocate|unable to allocate|insufficient memory|out of memory|bad_alloc|cannot allocate memory|outofdevicememory|mmap failed|"
                           r"resource temporarily unavailable|out of device memory|GGML_ASSERT\(.* != NULL\) failed", re.IGNORECASE)


class OutOfMemory(Exception):
    """The server could not get the memory it asked for."""


@dataclass(frozen=True)
class Method:
    """A cache that is measured."""
    name: str
    policy: str = None
    point: str = None
    extra: tuple = ()


def add_options(parser):
    parser.add_argument("--model", type=Path, required=True, metavar="GGUF")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="default: only the full cache")
    parser.add_argument("--points", type=words, metavar="A,B", help="operating points; default: the selected one")
    parser.add_argument("--checkpoints", choices=["default", "both"], default="default",
                        help="both: every point also without the server's copies of its windows (--ctx-checkpoints 0); default: as the server does it")
    parser.add_argument("--server", type=Path, default=ROOT / "build" / "bin" / "llama-server", help="default: build/bin/llama-server")
    parser.add_argument("--server-args", type=shlex.split, default=[], metavar="'...'", help="more options for llama-server, such as '-sm none'; a single word goes as --server-args=WORD")
    parser.add_argument("--text", type=Path, nargs="+", help="text of the prompts; default: the essays of ../shared/data, $DATA or $TEXT, else prose from Debian's packages")
    parser.add_argument("--threads", type=positive, help="default: llama-server's own")
    parser.add_argument("--repetitions", type=positive, default=3, metavar="N", help="default: 3")
    parser.add_argument("--timeout", type=positive, default=3600, metavar="SECONDS", help="of one request; default: 3600")


def check_options(options):
    check_program(options.server)
    for path in filter(None, [options.model, options.policy]):
        if not path.is_file():
            raise Failure(f"there is no file {path}")
    options.text_source = "--text"
    if not options.text:
        texts = choose()
        options.text_source = texts.source
        options.text = list(texts.essays if texts.folder else (*texts.essays, *texts.held_out, texts.calibration))  # speed may be measured on any
        if not options.text:
            raise Failure(f"found no essay-*.txt in {texts.folder / 'books'}; give --text FILE")
    if options.points and not options.policy:
        raise Failure("found --points without --policy", code=2)


def methods_of(options):
    methods = [Method("full")]
    for point in (options.points or [None]) if options.policy else []:
        methods.append(Method(point or "policy", options.policy, point))
        if options.checkpoints == "both":
            methods.append(Method(f"{point or 'policy'} {NO_CHECKPOINTS}", options.policy, point, ("--ctx-checkpoints", 0)))
    return methods


def checkpoint_text(names):
    """For tables with such rows."""
    if not any(name.endswith(NO_CHECKPOINTS) for name in names):
        return ""
    return ("\nUnder a policy llama-server keeps copies of the windows, so that a prompt that changes near its end need not be processed again; "
            f"\"{NO_CHECKPOINTS}\" is with `--ctx-checkpoints 0`.\n")


def text_record(options):
    """For results: what the prompts are of."""
    return {"source": options.text_source, "files": [{"file": path.name, "sha256": sha256_file(path)} for path in options.text]}


def policy_hash(options):
    return sha256_file(options.policy) if options.policy else None


def meter_name(gpu):
    """For results: which tool tells of the GPU's memory, False without a GPU."""
    return gpu.name if gpu else False


def setting(options, gpu, benchmark, **more):
    """What a result depends on: a run goes on only where all of it is as before."""
    return {"benchmark": benchmark, "version": 1, "model": options.model.name, "model_bytes": options.model.stat().st_size,
            "policy": policy_hash(options), "server": program_hash(options.server), "threads": options.threads, "gpu": meter_name(gpu),
            "server_args": options.server_args, **more}


def server_arguments(options, method, n_ctx, gpu):
    """The paper's settings: F16 cache, flash attention, batch 2048, microbatch 512, no fitting, no warm-up, all layers on the GPU if there is one."""
    types = [] if method.policy else ["-ctk", "f16", "-ctv", "f16"]  # which is the default; entries of a policy may have others
    return ["-m", options.model, "-c", n_ctx, "-np", 1, "--no-warmup", "--fit", "off", *types, "-fa", "on", "-b", 2048, "-ub", 512,
            *(["-ngl", 999] if gpu else []), *(["-t", options.threads] if options.threads else []),
            *policy_arguments(method.policy, method.point), *method.extra, *options.server_args]


def read_prompt(options, n):
    """Exactly n tokens of the text. A server of its own counts them: the text must not weigh on one that is measured."""
    text = "\n".join(read_text(path) for path in options.text)[:n * CHARACTERS]
    with Server(options.server, ["-m", options.model, "-c", 512, "-np", 1, "--no-warmup", "--fit", "off", *options.server_args],
                options.out / "server-tokens.log", "tokens") as server:
        tokens = server.ask("/tokenize", {"content": text, "add_special": True})["tokens"]
    return tokens[:n]


def kv_bytes(server):
    """What /props says, None for the full cache."""
    policy = server.ask("/props").get("kv_policy")
    return policy["bytes"] if policy else None


def check_prompt(prompt, n_ctx):
    if n_ctx <= N_PREDICT:
        raise Failure(f"context {n_ctx} is too small, expected more than {N_PREDICT}")
    if len(prompt) < n_ctx - N_PREDICT:
        raise Failure(f"the text has {len(prompt)} tokens, expected {n_ctx - N_PREDICT} for a context of {n_ctx}; give more with --text")


def ask_once(server, options, prompt, n_ctx):
    tokens = prompt[:n_ctx - N_PREDICT]
    answer = server.ask("/completion", {"prompt": tokens, "n_predict": N_PREDICT, "temperature": 0, "ignore_eos": True, "cache_prompt": False},
                        options.timeout)
    timings = answer["timings"]
    if (timings["prompt_n"], timings["predicted_n"]) != (len(tokens), N_PREDICT):
        raise Failure(f"the server processed {timings['prompt_n']} tokens and wrote {timings['predicted_n']}, expected {len(tokens)} and {N_PREDICT}")
    return timings


def measure(options, method, prompt, n_ctx, log_path, gpu, limit=None, resident=None):
    """One fresh server. OutOfMemory where it cannot have the memory, Failure for everything else that goes wrong."""
    check_prompt(prompt, n_ctx)
    server = Server(options.server, server_arguments(options, method, n_ctx, gpu), log_path, f"{method.name}, {n_ctx}", limit, resident)
    start = time.monotonic()
    try:
        with Peak(gpu) as device, server:
            ready = time.monotonic()
            size = kv_bytes(server)
            timings = ask_once(server, options, prompt, n_ctx)
            peak = server.peak_rss()
        if resident is not None and peak > resident:
            raise OutOfMemory(over_text(peak))
    except Ended as ended:
        if server.over is not None:
            raise OutOfMemory(over_text(server.over)) from None
        if ended.exit_code == -9 or OUT_OF_MEMORY.search(ended.log):
            raise OutOfMemory(reason_of(ended.log) or f"ended with code {ended.exit_code}") from None
        raise
    except Failure as failure:
        if OUT_OF_MEMORY.search(str(failure)) or (limit and OUT_OF_MEMORY.search(server.log())):
            raise OutOfMemory(reason_of(server.log()) or str(failure)) from None
        raise
    return {"context": n_ctx, "method": method.name, "prompt_n": timings["prompt_n"], "prompt_ms": timings["prompt_ms"],
            "intervals": timings["predicted_n"] - 1, "decode_ms": timings["predicted_ms"], "peak_rss": peak, "peak_device": device.peak,
            "kv_bytes": size, "start_s": round(ready - start, 3)}


def over_text(size):
    return f"{size / 2**20:.1f} MiB resident"


def reason_of(log):
    """The first line of a log that speaks of memory, without its time."""
    return next((" ".join(re.sub(r"^[\d.]+ [A-Z] ", "", line).split())[:200] for line in log.splitlines() if OUT_OF_MEMORY.search(line)), None)
