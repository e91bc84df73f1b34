"""The tables of docs/paper-scale.md: what the paper's models take at 131,072 tokens, plain and with windows.

    scripts/paper-scale                                   on stdout
    scripts/paper-scale --into docs/paper-scale.md        between its two marks

Nothing is allocated: it takes seconds and no GPU. The device is the CPU behind rpc-server; --device local takes what the build
finds by itself, such as a GPU. Exit code: 0 written, 1 failed, 2 usage.
"""

import argparse
import tempfile
from pathlib import Path

from .. import policy as policies
from ..core import ROOT, Failure, exit_code, write_whole
from ..markdown import put_between, table
from ..progress import Steps
from ..rpc_device import RpcDevice
from . import sizes

MARKS = ("<!-- paper-scale: begin -->", "<!-- paper-scale: end -->")
MIB = 2**20
ON_CPU = ("-ngl", 0, "-nkvo", "on")  # options of bridge-test, for a build that has devices too

# the paper's R of every model at 131,072 tokens, and for Qwen3.5-9B the one it has measured peaks for too
SHARES = (("Qwen3.5-9B", 0.5801), ("Qwen3.5-9B", 0.5371), ("Qwen3.6-27B", 0.6895), ("Qwen3.6-35B-A3B", 0.7438), ("Gemma4-31B", 0.9189))

# weights of the real models, and bits for each in their published Q4_K_M files: 4.87 for 18.7 GB of the 31B, 5.0 for 5.6 GB of the 9B
PARAMETERS = {"Qwen3.5-9B": 8.95e9, "Qwen3.6-27B": 26.9e9, "Qwen3.6-35B-A3B": 34.7e9, "Gemma4-31B": 30.7e9}
BITS = 4.9
CARD_MIB = 24564  # an RTX 4090, by nvidia-smi

KINDS = (("heads", "by head"), ("layers", "by layer"), ("8K", "8K everywhere"))
BARS = {"heads": 235, "layers": 235, "8K": 60}  # MiB of graphs


def mib(size):
    return f"{size / MIB:,.0f}"


class Measured:
    """Sizes of everything in the tables."""

    def __init__(self, folder, scratch, device):
        names = list(dict.fromkeys(name for name, _ in SHARES))
        steps = Steps(3 * len(names) + 1, "models")
        self.models, self.plain, self.plain_cpu, self.windows, self.windows_cpu = {}, {}, {}, {}, {}
        for name in names:
            model = self.models[name] = sizes.model_of(folder, scratch, name)
            self.plain[name] = sizes.measure(folder, scratch, model, None, device)
            self.plain_cpu[name] = sizes.measure(folder, scratch, model, None, ON_CPU)
            steps.step()
        for name, share in SHARES:
            self.windows[name, share] = sizes.measure(folder, scratch, self.models[name], share, device)
            self.windows_cpu[name, share] = sizes.measure(folder, scratch, self.models[name], share, ON_CPU)
            steps.step()
        self.attention = sizes.model_of(folder, scratch, "attention")
        self.bars = {kind: sizes.measure(folder, scratch, self.attention, kind, device) for kind in (None, *BARS)}
        steps.end()


def shape_table(measured):
    lines = []
    for name, share in SHARES:
        base = measured.models[name].base
        layer, heads = base["model"]["layers"][0], policies.heads(base)
        entries = [ie for row in sizes.rows_of(base, share) for ie in row]
        lines.append([name, base["model"]["n_layer"], len(heads), layer["n_head"], layer["n_head_kv"], layer["head_dim_k"], f"{100 * share:.2f}%",
                      ", ".join(str(entries.count(ie)) for ie in range(len(sizes.PARTS) + 1))])
    return table(["model", "layers", "with full attention", "query heads", "KV heads", "head dim", "share kept", "heads with 8K, 16K, 32K, full"], lines)


def memory_table(measured):
    lines = []
    for name, share in SHARES:
        rows = [(f"{100 * share:.2f}%", measured.windows[name, share], measured.windows_cpu[name, share])]
        if not any(line[0] == name for line in lines):
            rows.insert(0, ("plain", measured.plain[name], measured.plain_cpu[name]))
        plain = measured.plain[name]
        for cache, found, cpu in rows:
            saved = plain.context + plain.compute - found.context - found.compute
            lines.append([name, cache, mib(found.kv), mib(found.context - found.kv), mib(found.compute), mib(found.compute_host), mib(saved) if saved else "",
                          mib(cpu.kv), mib(cpu.compute)])
    return table(["model", "cache", "KV", "other cache", "graphs", "graphs, host", "saved", "CPU: KV", "CPU: graphs"], lines)


def bar_table(measured):
    plain = measured.bars[None]
    lines = [["plain", mib(plain.kv), "", mib(plain.compute), "", "", ""]]
    for kind, title in KINDS:
        found = measured.bars[kind]
        masks = sizes.mask_bytes(measured.attention, kind)
        lines.append([title, mib(found.kv), mib(found.nominal), mib(found.compute), f"at most {BARS[kind]}", mib(found.kv + found.compute),
                      f"at most {mib(together_bar(found, plain, masks))}"])
    return table(["windows", "KV", "nominal KV", "graphs", "bar", "KV and graphs", "bar"], lines)


def together_bar(found, plain, masks):
    """What cache and graphs may take: windows with 3% more than their positions, the plain graphs, and masks for the windows."""
    return 1.03 * found.nominal + plain.compute + masks


def card_table(measured):
    lines = []
    for name, share in (pair for i, pair in enumerate(SHARES) if pair[0] not in dict(SHARES[:i])):
        weights = PARAMETERS[name] * BITS / 8
        for cache, found in (("plain", measured.plain[name]), (f"{100 * share:.2f}%", measured.windows[name, share])):
            total = weights + found.context + found.compute
            lines.append([name, cache, mib(weights), mib(found.context), mib(found.compute), mib(total), mib(CARD_MIB * MIB - total)])
    return table(["model", "cache", "weights, estimated", "cache, all", "graphs", "together", f"left of {CARD_MIB:,}"], lines)


def tables(folder, scratch, device):
    """device: options of bridge-test."""
    measured = Measured(folder, scratch, device)
    return (f"### Shapes and windows\n\n{shape_table(measured)}\n### Memory\n\nMiB.\n\n{memory_table(measured)}\n"
            f"### Bars\n\nMiB.\n\n{bar_table(measured)}\n### On a 24 GB card\n\nMiB.\n\n{card_table(measured)}")


def text_of(folder, device=None):
    """The tables. device: "local", or None for rpc-server's."""
    with tempfile.TemporaryDirectory() as scratch:
        if device == "local":
            return tables(folder, Path(scratch), ())
        with RpcDevice(folder / "rpc-server") as rpc:
            return tables(folder, Path(scratch), rpc.options)


def parse_args(arguments=None):
    parser = argparse.ArgumentParser(prog="scripts/paper-scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, default=ROOT / "build" / "bin", metavar="DIR", help="default: build/bin")
    parser.add_argument("--device", choices=["rpc", "local"], default="rpc", help="default: rpc")
    parser.add_argument("--into", type=Path, metavar="FILE", help="a document to put the tables into (default: stdout)")
    return parser.parse_args(arguments)


def main(arguments=None):
    options = parse_args(arguments)

    def work():
        text = text_of(options.programs, options.device)
        if not options.into:
            print(text, end="")
            return 0
        try:
            write_whole(options.into, put_between(MARKS, options.into.read_text(), f"\n{text}"))
        except ValueError as error:
            raise Failure(f"{options.into}: {error}") from None
        return 0

    return exit_code(work)


if __name__ == "__main__":
    raise SystemExit(main())
