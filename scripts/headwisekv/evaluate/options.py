"""Options that several commands have."""

import os
from pathlib import Path

from ..arguments import positive
from ..core import ROOT


def add_run_options(parser, out):
    """What every command has."""
    parser.add_argument("--seed", type=int, default=42, help="default: 42")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--text", type=Path, metavar="FILE", help="a text of your own, cut into held-out parts and essays; default: $TEXT, else --data")
    where.add_argument("--data", type=Path, metavar="FOLDER", help="data folder; default: $DATA, ../shared/data, else prose from Debian's packages")
    parser.add_argument("--out", type=Path, help=f"folder for results; default: build/eval/{out}")


def text_arguments(options):
    """The same choice of texts for another command."""
    return ["--text", str(options.text)] if options.text else ["--data", str(options.data)] if options.data else []


def add_model_options(parser, out):
    """What commands have that start servers of their own."""
    parser.add_argument("--model-file", type=Path, required=True, metavar="GGUF")
    parser.add_argument("--threads", type=positive, default=os.cpu_count(), help="default: all")
    add_run_options(parser, out)


def add_policy_options(parser):
    """What commands have that compare a policy with others."""
    parser.add_argument("--policy", type=Path, required=True)
    parser.add_argument("--programs", type=Path, default=ROOT / "build" / "bin", help="folder of the programs; default: build/bin")
    parser.add_argument("--kl-weights", choices=["f32", "file"], default="f32",
                        help="KL is measured with the weights in F32, made once, or as they are in the file; default: f32, up to 8 GiB")
