"""A tiny model with a policy, and a data folder, for tests of scripts/eval that run programs."""

import subprocess

import tiny_gguf
from server_process import need_program


def make_tiny(folder):
    """tiny.gguf, text.txt and a policy.json with scores for it."""
    tiny_gguf.make_model(folder / "tiny.gguf", "llama", seed=1)
    text = folder / "text.txt"
    text.write_text("".join(f"In the year {n} the river rose to {n * 7 % 90} feet, and the town of mill {n % 13} was under water again.\n" for n in range(600)))
    subprocess.run([need_program("llama-seqcalib"), "-m", folder / "tiny.gguf", "-f", text, "-c", "1024", "--windows", "128,256", "--tau", "0.7", "-t", "1",
                    "-o", folder / "policy.json"], check=True, capture_output=True)
    return folder


def make_data(folder):
    """With the names of the shared one."""
    (folder / "books").mkdir()
    (folder / "ruler").mkdir()
    for name in ("essay-1", "sherlock-holmes", "pride-and-prejudice"):
        (folder / "books" / f"{name}.txt").write_text("".join(f"The {name} said on day {n} that birds often walk under light stones.\n" for n in range(1200)))
    (folder / "ruler" / "adjectivelist.txt").write_text("warm\ncold\n")
    (folder / "ruler" / "nounlist.txt").write_text("lamp\nhill\n")
    return folder
