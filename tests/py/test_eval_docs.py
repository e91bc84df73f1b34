"""Commands in the README and the docs: scripts and programs take the options that are written there. Links lead somewhere."""

import functools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from server_process import ROOT, need_program

from headwisekv import fetch_command, models, smoke
from headwisekv.bench import capacity, systems, systems_run
from headwisekv.evaluate import __main__ as cli
from headwisekv.paper import page as paper_page

EVALUATION = ("docs/evaluation.md", "docs/reproduce.md")
PAGES = ("README.md", "policies/README.md", "tools/seqcalib/README.md", "tools/kv-verify/README.md", "tools/kv-policy/README.md", "docs/paper-scale.md", *EVALUATION)
FOLDERS = ("docs", "ggml", "models", "policies", "scripts", "src", "tests", "tools")
MARKDOWN = sorted([*ROOT.glob("*.md"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.md"))])
OF_OTHERS = {"cmake", "cd", "pip", "lm_eval", "tau2", "nsys", "scripts/setup", "MODEL="}  # not ours to check


def commands(page):
    """Every command of the sh blocks, as words."""
    text = (ROOT / page).read_text()
    for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.split(" && "):
                words = shlex.split(part.replace("$MODEL", "model.gguf"), comments=True)
                if words:
                    yield [word for word in words if word != "&"]


def parse(words):
    """Reads our scripts' options; a wrong one is a SystemExit."""
    name, arguments = words[0], words[1:]
    if name == "make":
        if words[1:2] == ["eval"]:
            settings = dict(word.split("=", 1) for word in words[2:])
            assert settings.keys() <= {"ARGS", "DATA", "TEXT"}
            parse(["scripts/eval", *shlex.split(settings.get("ARGS", ""))])
        if words[1:2] == ["eval-rivals"]:
            settings = dict(word.split("=", 1) for word in words[2:])
            assert settings.keys() <= {"ARGS", "DATA", "TEXT"}
            parse(["scripts/eval", "rivals", *shlex.split(settings.get("ARGS", ""))])
    elif name == "scripts/eval":
        if arguments != ["--help"]:
            default = [] if arguments and not arguments[0].startswith("-") else ["all", "--model-file", "m", "--policy", "p"]
            if arguments[:1] == ["rivals"] and "--model-file" not in arguments:  # scripts/eval adds them
                default, arguments = ["rivals", "--model-file", "m", "--policy", "p"], arguments[1:]
            cli.read_options([*default, *arguments])
    elif name == "scripts/fetch":
        assert arguments == [fetch_command.TEXT] or arguments[0] in models.pin_files()
    elif words[:2] == ["scripts/bench", "systems"]:
        systems.parse_args(words[2:])
    elif words[:2] == ["scripts/bench", "capacity"]:
        capacity.parse_args(words[2:])
    elif name == "scripts/gpu-smoke":
        smoke.parse_args(["--model", "m", *arguments])
    elif name == "scripts/paper-scale":
        paper_page.parse_args(arguments)
    else:
        return False
    return True


@pytest.mark.unit
@pytest.mark.parametrize("page", EVALUATION)
def test_scripts_take_these_options(page):
    seen = [words for words in commands(page) if parse(words)]
    assert len(seen) >= 5


@functools.cache
def help_of(*command):
    return subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.mark.bridge
@pytest.mark.parametrize("page", PAGES)
def test_programs_have_these_options(page):
    for words in commands(page):
        program = Path(words[0])
        if program.parent.name == "bin" or program.name.startswith("llama-"):
            text = help_of(need_program(program.name), *(words[1:2] if program.name == "llama-kv-policy" else []))
        elif words[:2] == ["scripts/bench", "speed"]:
            text = help_of(sys.executable, ROOT / words[0], "speed")
        else:
            assert words[0] in OF_OTHERS or re.match(r"[A-Z]+=", words[0]) or parse(words), words
            continue
        for word in words[1:]:
            if word.startswith("-"):
                assert re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", text), (program.name, word)


def anchors(path):
    """Of a page's headings, as they are made from them."""
    titles = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.unit
@pytest.mark.parametrize("page", MARKDOWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


@pytest.mark.unit
def test_the_page_says_how_the_server_is_started():
    options = systems.parse_args(["--model", "m"])
    arguments = " ".join(map(str, systems_run.server_arguments(options, systems_run.Method("full"), 8192, True)))
    text = (ROOT / "docs" / "reproduce.md").read_text()
    flags = re.search(r"`(--no-warmup [^`]+)`", text)[1]
    assert flags in arguments


@pytest.mark.unit
def test_results_are_measured_or_said_not_to_be():
    text = (ROOT / "docs" / "results.md").read_text()
    assert "Not measured yet: `make eval`" in text or all(f"- {what}: " in text for what in ("machine", "commit", "policy", "command"))
