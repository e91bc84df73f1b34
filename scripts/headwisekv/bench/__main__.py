"""Measures this build: how fast it is, how much memory it takes, which context fits.

    scripts/bench COMMAND --help

speed     speed with and without policies against the unpatched package; `make bench`
report    its tables again, or into a document
profile   where the time of decoding goes
policy    the policies it measures with
systems   prefill, decode and peak memory by context
capacity  the largest context under a memory limit
"""

import sys

from ..core import say
from . import capacity, policies, speed, speed_profile, speed_report, systems

COMMANDS = {"speed": speed, "report": speed_report, "profile": speed_profile, "policy": policies, "systems": systems, "capacity": capacity}


def main(arguments=None):
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__, end="")
        return 0
    if not arguments or arguments[0] not in COMMANDS:
        say(f"found {repr(arguments[0]) if arguments else 'no command'}, expected one of {', '.join(COMMANDS)}; see scripts/bench --help")
        return 2
    return COMMANDS[arguments[0]].main(arguments[1:])


if __name__ == "__main__":
    sys.exit(main())
