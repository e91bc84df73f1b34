"""Measures the quality of a model behind an OpenAI-compatible endpoint. Results go to stdout and to files in --out.

A run that was stopped goes on where it was with the same command.
Exit code: 0 all examples have a result, 1 some or all failed, 2 usage, 3 no such operating point.
"""

import argparse
import asyncio
import signal
import sys

from ..arguments import positive
from ..core import ROOT, exit_code, going_on
from . import local, results_page, rivals_page, run_all, run_locomo, run_longmemeval, run_needle, run_rivals, run_ruler, run_toolcall
from .client import Endpoint
from .options import add_run_options

BENCHMARKS = {
    "ruler": (run_ruler, "RULER-style needle tasks by length and depth"),
    "locomo": (run_locomo, "LoCoMo, questions of categories 1 to 4"),
    "longmemeval": (run_longmemeval, "LongMemEval-S from a file"),
    "needle": (run_needle, "log-probability of the right value by length and depth, one server or several compared"),
    "toolcall": (run_toolcall, "one dialogue with tool calls: does the endpoint speak the protocol of agent benchmarks?"),
}


def seconds(text):
    try:
        value = float(text)
    except ValueError:
        value = 0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"found '{text}', expected seconds above 0")
    return value


def common_options():
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--base-url", default="http://127.0.0.1:8080/v1", help="OpenAI base URL; default: http://127.0.0.1:8080/v1")
    parser.add_argument("--model", help="default: the first one that the endpoint lists")
    parser.add_argument("--api-key-env", metavar="NAME", help="environment variable that holds the API key; default: no key")
    parser.add_argument("--tokenize-url", metavar="URL", help="llama-server that counts tokens, where the endpoint itself cannot")
    parser.add_argument("--parallel", type=positive, default=1, help="requests at a time; default: 1")
    parser.add_argument("--timeout", type=seconds, default=600, help="seconds for one request; default: 600")
    parser.add_argument("--name", default="", help="name of what is measured, such as full or tau-0.995; results of two names never mix")
    add_run_options(parser, "BENCHMARK[-NAME]")
    return parser


def read_options(arguments):
    parser = argparse.ArgumentParser(prog="scripts/eval", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="benchmark", required=True, metavar="BENCHMARK")
    for name, (module, text) in BENCHMARKS.items():
        module.add_options(commands.add_parser(name, help=text, description=text, parents=[common_options()]))
    text = "RULER-style tasks and needle likelihood of a model file: full cache and points of a policy"
    local.add_options(commands.add_parser("local", help=text, description=text))
    text = "everything that is measured of a model file and its policy, in a limited time, into one page"
    run_all.add_options(commands.add_parser("all", help=text, description=text))
    text = "what a number of bytes can do, spent by a policy's points and in other ways: KL divergence and needle likelihood"
    run_rivals.add_options(commands.add_parser("rivals", help=text, description=text))
    text = "writes the page of `all` again from the figures beside it; measures nothing"
    results_page.add_options(commands.add_parser("page", help=text, description=text))
    text = "writes the page of `rivals` again from the figures beside it; measures nothing"
    rivals_page.add_options(commands.add_parser("rivals-page", help=text, description=text))
    options = parser.parse_args(arguments)
    options.out = getattr(options, "out", None) or ROOT / "build" / "eval" / "-".join(filter(None, [options.benchmark, getattr(options, "name", "")]))
    return options


async def measure(options):
    async with Endpoint(options.base_url, options.model, options.api_key_env, options.timeout, options.tokenize_url) as endpoint:
        return await BENCHMARKS[options.benchmark][0].run(options, endpoint)


def work(options):
    if options.benchmark == "local":
        return local.run(options, main)
    if options.benchmark == "all":
        return run_all.run(options)
    if options.benchmark == "page":
        return results_page.run(options)
    if options.benchmark == "rivals-page":
        return rivals_page.run(options)
    if options.benchmark == "rivals":
        return 1 if run_rivals.run(options) else 0
    return 1 if asyncio.run(measure(options)) else 0


def main(arguments=None):
    options = read_options(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    return exit_code(lambda: work(options), going_on(options))


if __name__ == "__main__":
    sys.exit(main())
