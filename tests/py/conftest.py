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
