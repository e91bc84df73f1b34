import openai
import pytest

from server_process import TIMEOUT, ServerProcess, need_model


@pytest.fixture(scope="session")
def model():
    return need_model()


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    with ServerProcess(model, tmp_path_factory.mktemp("server") / "server.log") as process:
        yield process


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", timeout=TIMEOUT, max_retries=0) as client:
        yield client
