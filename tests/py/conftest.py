from pathlib import Path

import pytest

from server_process import ROOT, need_model, need_program


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def model() -> Path:
    """The default model as a file; skips where it has not been fetched."""
    return need_model()


@pytest.fixture(scope="session")
def program():
    """program("llama-kv-policy") is the path of a built program; skips where it has not been built."""
    return need_program


def pytest_collection_modifyitems(items):
    """Tests that may take longest, by their time limit, begin first: at the end nobody should wait for one."""
    items.sort(key=lambda item: -max((mark.args[0] for mark in item.iter_markers("timeout")), default=0))
