"""pytest plugin for llama.cpp's own server tests: local models and policies, every outcome noted as it comes.

Loaded with `-p headwisekv.suite.plugin` into a run of the tests as the package has them. The presets name models of a hub; LLAMA_CACHE is a
folder of local models under those names (hub.py), and what would fetch them does nothing. From the environment:
  SUITE_OUTCOMES  file to which every outcome is added as a line of JSON; tests it has already are left out
  SUITE_POLICIES  JSON object: model repository of a preset, or "router" -> policy; without it no policy is used
"""

import json
import os
from pathlib import Path

import pytest

OUTCOMES = Path(os.environ["SUITE_OUTCOMES"])
POLICIES = json.loads(os.environ.get("SUITE_POLICIES") or "{}")
POLICY_VARIABLE = "LLAMA_ARG_KV_POLICY"
POOLING_VARIABLE = "LLAMA_ARG_POOLING"


def set_variable(name, value):
    if value:
        os.environ[name] = value
    else:
        os.environ.pop(name, None)


def policy_of(server):
    """A router hands its environment on to the servers it starts, which all have the same model."""
    if not server.model_hf_repo:
        return POLICIES.get("router")
    return POLICIES.get(server.model_hf_repo.partition(":")[0])


@pytest.hookimpl(trylast=True)
def pytest_sessionstart(session):
    import utils  # theirs; their conftest.py has put it on the path by now

    start = utils.ServerProcess.start

    def start_with_policy(self, *args, **kwargs):
        self.offline = True
        set_variable(POLICY_VARIABLE, policy_of(self))
        # the embedding model of the presets names its pooling in its file
        set_variable(POOLING_VARIABLE, "mean" if self.server_embeddings else None)
        return start(self, *args, **kwargs)

    utils.ServerProcess.start = start_with_policy
    utils.ServerPreset.load_all = staticmethod(lambda: None)


def noted():
    if not OUTCOMES.exists():
        return set()
    return {json.loads(line)["test"] for line in OUTCOMES.read_text(encoding="utf-8").splitlines()}


def pytest_collection_modifyitems(config, items):
    done = noted()
    left = [item for item in items if item.nodeid not in done]
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in done])
    items[:] = left
    print(f"\nSUITE {len(done)} noted, {len(left)} to run", flush=True)


reports = {}


def pytest_runtest_logreport(report):
    """The first of setup, call and teardown that did not pass tells the outcome."""
    seen = reports.setdefault(report.nodeid, {"outcome": None, "why": "", "seconds": 0.0})
    seen["seconds"] += report.duration
    if report.outcome != "passed" and seen["outcome"] in (None, "passed"):
        seen["outcome"] = report.outcome if report.when == "call" or report.outcome == "skipped" else "error"
        seen["why"] = reason(report)
    elif report.when == "call" and seen["outcome"] is None:
        seen["outcome"] = "passed"


def reason(report):
    if isinstance(report.longrepr, tuple):  # of a skipped test: file, line, reason
        return str(report.longrepr[2])[:300]
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = (crash.message if crash else str(report.longrepr)).strip().splitlines() or [""]
    return lines[0][:300]


def pytest_runtest_logfinish(nodeid, location):
    seen = reports.pop(nodeid, None)
    if seen is None or seen["outcome"] is None:  # interrupted
        return
    with OUTCOMES.open("a", encoding="utf-8") as file:
        file.write(json.dumps({"test": nodeid, **seen, "seconds": round(seen["seconds"], 2)}) + "\n")
