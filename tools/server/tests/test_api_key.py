"""--api-key guards every endpoint that shows or changes state, and names of slot files stay in --slot-save-path."""

import os
import re
import socket

import pytest
import requests
from kv_policy_server import words
from server_process import ROOT, TIMEOUT, ServerProcess, need
from tiny_model import make_tiny

pytestmark = pytest.mark.server

KEY = "key-of-the-tests"

# no key needed, and why
PUBLIC = {
    "/health": "load balancers ask it, it says ok or loading",
    "/v1/health": "the same",
}

# only a router has them
ROUTER_ONLY = {("POST", "/models"), ("POST", "/models/load"), ("POST", "/models/unload"), ("GET", "/models/sse"), ("DELETE", "/models")}

BODY = {"prompt": words(1, 8), "messages": [{"role": "user", "content": "x"}], "input": "x", "content": "x", "tokens": [5], "n_predict": 1,
        "max_tokens": 1, "filename": "slot.bin", "conv_ids": []}


def routes():
    """(method, path) of every route, from the sources that the server was built from."""
    source = need(ROOT / "build" / "llama.cpp" / "tools" / "server" / "server.cpp", "run make build").read_text()
    text = source + "".join(path.read_text() for path in sorted((ROOT / "tools" / "server").glob("*.cpp")))
    methods = {"get": "GET", "post": "POST", "del": "DELETE"}
    return sorted({(methods[verb], path) for verb, path in re.findall(r'ctx_http\.(get|post|del) *\(\s*"([^"]+)"', text)})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("key")
    model, policy = make_tiny(folder)
    slots = folder / "outer" / "slots"
    slots.mkdir(parents=True)
    process = ServerProcess(model, folder / "log", "--kv-policy", str(policy), "--api-key", KEY, "--slot-save-path", str(slots), "--metrics", "--props",
                            ctx=1024, slots=2)
    process.slot_folder = slots
    with process as server:
        yield server


def ask(server, method, path, key=None, **options):
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return requests.request(method, server.url + path.replace(":id_slot", "0?action=save"), headers=headers, timeout=TIMEOUT,
                            **({"json": BODY} if method == "POST" else {}), **options)


def test_the_sources_name_the_routes():
    found = routes()
    assert len(found) > 40
    for route in [("GET", "/props"), ("POST", "/props"), ("GET", "/slots"), ("POST", "/slots/:id_slot"), ("GET", "/metrics"), ("POST", "/completion"),
                  ("POST", "/v1/chat/completions"), ("POST", "/tokenize"), ("POST", "/lora-adapters"), ("DELETE", "/v1/stream")]:
        assert route in found


@pytest.mark.parametrize("key", [None, "wrong", KEY[:-1], KEY + "x", KEY.upper()])
def test_every_route_asks_for_the_key(guarded, key):
    refused = 0
    for method, path in routes():
        answer = ask(guarded, method, path, key)
        if path in PUBLIC:
            assert answer.status_code == 200 and answer.json() == {"status": "ok"}
            continue
        assert answer.status_code == 401, f"{method} {path} without the key: {answer.status_code}"
        assert answer.json()["error"]["type"] == "authentication_error"
        refused += 1
    assert refused > 40


def test_every_route_takes_the_key(guarded):
    for method, path in routes():
        if (method, path) not in ROUTER_ONLY:
            assert ask(guarded, method, path, KEY).status_code != 401, f"{method} {path}"


def test_the_other_header(guarded):
    assert requests.get(guarded.url + "/props", headers={"X-Api-Key": KEY}, timeout=TIMEOUT).json()["kv_policy"]["sha256"]
    assert requests.get(guarded.url + "/props", headers={"X-Api-Key": "wrong"}, timeout=TIMEOUT).status_code == 401


def raw(server, method, path):
    """As it is on the line: requests would tidy the path up."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT) as client:
        client.sendall(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode("latin-1"))
        reply = b""
        while chunk := client.recv(65536):
            reply += chunk
    head, _, body = reply.partition(b"\r\n\r\n")
    return int(head.split()[1]), body


@pytest.mark.parametrize("path", ["/props", "//props", "/props/", "/./props", "/%70rops", "/health/../props", "/health/..%2fprops", "/health%2f..%2fprops",
                                  "/health;/../props", "/health?/../props", "/props?x=/health", "/props#/health", "http://x/props", "/PROPS", "/slots",
                                  "/metrics", "/%2fslots", "/health%00/props", "/index.html/../props", "/../props"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_no_spelling_goes_round_the_key(guarded, method, path):
    status, body = raw(guarded, method, path)
    assert b"sha256" not in body and b"n_ctx" not in body and b"llamacpp:" not in body
    if method == "GET" and not path.startswith("/health?"):
        assert status in (400, 401, 404)


def test_the_page_shows_no_state_without_the_key(guarded):
    answer = requests.get(guarded.url + "/", timeout=TIMEOUT)
    assert answer.status_code in (200, 401, 404)
    policy = requests.get(guarded.url + "/props", headers={"X-Api-Key": KEY}, timeout=TIMEOUT).json()["kv_policy"]
    assert policy["sha256"] not in answer.text


#
# names of slot files
#


def everything_but(folder):
    """Names and contents of what is beside the folder of the slots."""
    outer = folder.parent
    return {str(path): (path.read_bytes() if path.is_file() else None) for path in outer.rglob("*") if folder not in path.parents and path != folder}


def slot(server, action, name):
    return requests.post(f"{server.url}/slots/0?action={action}", json={"filename": name}, headers={"X-Api-Key": KEY}, timeout=TIMEOUT)


@pytest.fixture(scope="module")
def saved(guarded):
    """A slot with something in it, a good file of it in the folder and the same one beside the folder."""
    body = {"prompt": words(2, 50), "n_predict": 4, "id_slot": 0, "temperature": 0}
    assert requests.post(guarded.url + "/completion", json=body, headers={"X-Api-Key": KEY}, timeout=TIMEOUT).status_code == 200
    assert slot(guarded, "save", "good.bin").status_code == 200
    (guarded.slot_folder.parent / "secret.bin").write_bytes((guarded.slot_folder / "good.bin").read_bytes())
    return guarded


REFUSED = ["../secret.bin", "..", ".", "", "../../x", "a/../../secret.bin", "sub/x", "/tmp/x", "//x", "..\\secret.bin", "\\x", "C:\\x", "C:x", "x\0y",
           "../secret.bin\0.bin", "\0", "x\n", "x\x7f", " x", "x ", "x.", "\uff0e\uff0e\u2215secret.bin", "x\ufffdy", "\ufeffx", "x" * 256, "a*", "a?", "<a>", "a|b"]


@pytest.mark.parametrize("action", ["save", "restore"])
@pytest.mark.parametrize("name", REFUSED, ids=lambda name: ascii(name[:24]))
def test_names_that_could_leave_the_folder_are_refused(saved, action, name):
    outside, inside = everything_but(saved.slot_folder), sorted(os.listdir(saved.slot_folder))
    answer = slot(saved, action, name)
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert everything_but(saved.slot_folder) == outside
    assert sorted(os.listdir(saved.slot_folder)) == inside


@pytest.mark.parametrize("name", ["%2e%2e%2fsecret.bin", "..%2fsecret.bin", "%2fetc%2fpasswd", "%00", "~root", "$HOME", "-rf", "a b", "\u4e16\u754c"], ids=ascii)
def test_odd_names_are_names(saved, name):
    """Nothing is decoded or expanded: such a file is in the folder, or refused."""
    outside = everything_but(saved.slot_folder)
    answer = slot(saved, "save", name)
    assert everything_but(saved.slot_folder) == outside
    if answer.status_code == 200:
        assert (saved.slot_folder / name).is_file()
        assert slot(saved, "restore", name).status_code == 200
        (saved.slot_folder / name).unlink()
    else:
        assert answer.status_code == 400 and ".." in name


def test_a_save_does_not_write_through_a_link(saved):
    victim = saved.slot_folder.parent / "victim.txt"
    victim.write_text("mine")
    link = saved.slot_folder / "link.bin"
    link.symlink_to(victim)
    try:
        slot(saved, "save", "link.bin")
        assert victim.read_text() == "mine"
    finally:
        link.unlink()


def test_a_restore_does_not_read_through_a_link(saved):
    link = saved.slot_folder / "link2.bin"
    link.symlink_to(saved.slot_folder.parent / "secret.bin")
    try:
        assert slot(saved, "restore", "link2.bin").status_code == 400
    finally:
        link.unlink()


def test_a_folder_is_no_slot_file(saved):
    (saved.slot_folder / "folder").mkdir()
    try:
        assert slot(saved, "save", "folder").status_code >= 400
        assert slot(saved, "restore", "folder").status_code == 400
    finally:
        (saved.slot_folder / "folder").rmdir()
    assert slot(saved, "restore", "good.bin").status_code == 200


def test_the_right_name_still_works(saved):
    assert slot(saved, "restore", "good.bin").json()["n_restored"] > 50
