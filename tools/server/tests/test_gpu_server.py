"""llama-server with its cache on a device that is not the CPU, beside one on the CPU: the same answers, and files that move between them.

F32 weights and an F32 cache: there the order of additions, which differs between devices, changes no choice.
"""

import pytest
import tiny_gguf
from kv_policy_server import EXACT, ask, complete, make_policy, metrics, slot, words
from server_process import ServerProcess

pytestmark = [pytest.mark.server, pytest.mark.gpu]

CONTEXT = 1024
WINDOWS = (16, 48, 130)  # in rings of 256 cells
ON = {"device": ("-ngl", "99"), "cpu": ("--device", "none")}
TURNS = [[1, *words(i, 149)] for i in range(4)]  # each begins with <s>, which nothing else has
MORE = {"message_delimiters": [{"role": "user", "delimiter": "<s>"}]}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """model and policy of an architecture, made once"""
    folder, made = tmp_path_factory.mktemp("gpu-server"), {}

    def get(arch, **options):
        name = "-".join([arch, *options])
        if name not in made:
            (folder / name).mkdir()
            model = folder / name / "model.gguf"
            tiny_gguf.make_model(model, arch, seed=2, **options)
            made[name] = model, make_policy(folder / name, model, WINDOWS, CONTEXT)
        return made[name]

    return get


def serve(where, models, folder, *args):
    model, policy = models
    (folder / "slots").mkdir(exist_ok=True)
    return ServerProcess(model, folder / f"{where}.log", *EXACT, "--kv-policy", str(policy), "-ub", "128", "--metrics", "--cache-ram", "0",
                         "--slot-save-path", str(folder / "slots"), "--kv-policy-checkpoint-mib", "64", *ON[where], *args, ctx=CONTEXT)


def held_by(server):
    """Bytes of the cache on each device, as /props has them."""
    return {device["name"]: device["kv_bytes"] for device in server.get("/props").json()["kv_policy"]["memory"]["devices"] if device["kv_bytes"]}


def talk(server):
    """Turns, an edited one, and what is held at the end."""
    prompts = [sum(TURNS[:i + 1], []) for i in range(4)]
    edited = prompts[1] + [1, *words(77, 90)]
    return [complete(server, prompt, 6, **MORE) for prompt in [*prompts, edited, prompts[3]]]


@pytest.mark.parametrize("arch", ["llama", "qwen35"])
def test_conversations_move_between_devices(arch, models, tmp_path):
    """Turns, checkpoints, slot files: each kind of device goes on with what the other one saved."""
    model = models(arch)
    next_prompt = sum(TURNS, []) + [1, *words(5, 60)]
    back = sum(TURNS[:3], []) + [1, *words(6, 60)]

    said, seen, held = {}, {}, {}
    for where in ON:
        with serve(where, model, tmp_path) as server:
            said[where] = talk(server)
            assert server.post("/slots/0?action=save", {"filename": where}).status_code == 200
            seen[where], held[where] = slot(server), held_by(server)
    assert said["device"] == said["cpu"]
    assert said["device"][4][1] >= 298  # the edited turn began at a checkpoint
    assert seen["device"]["checkpoint_tokens"] == seen["cpu"]["checkpoint_tokens"] != []
    assert list(held["cpu"]) == ["CPU"] and "CPU" not in held["device"]

    for where, other in (("device", "cpu"), ("cpu", "device")):
        with serve(where, model, tmp_path) as server:
            assert server.post("/slots/0?action=restore", {"filename": other}).status_code == 200
            assert slot(server)["checkpoint_tokens"] == seen[other]["checkpoint_tokens"]
            said[where] = [complete(server, prompt, 6, **MORE) for prompt in (next_prompt, back)]
            if where == "cpu":
                cold = [complete(server, prompt, 6, cache=False)[0] for prompt in (next_prompt, back)]
    assert said["device"] == said["cpu"]
    assert [tokens for tokens, _ in said["cpu"]] == cold
    assert said["cpu"][0][1] >= 590 and said["cpu"][1][1] >= 449  # what was saved is used


def test_mtp_changes_no_token(models, tmp_path):
    model = models("qwen35", n_nextn=1)
    prompt = words(3, 300)
    with serve("cpu", model, tmp_path) as server:
        expected, _ = complete(server, prompt, 40)
    with serve("device", model, tmp_path, "--spec-type", "draft-mtp", "--spec-draft-n-max", "3") as server:
        answer = ask(server, prompt, 40)
    assert answer["tokens"] == expected
    assert answer["timings"]["draft_n"] > 0


def test_the_page_has_its_figures(models, tmp_path):
    """What the page reads of a server whose cache is on a device."""
    with serve("device", models("llama"), tmp_path) as server:
        complete(server, sum(TURNS, []), 8)
        shown, seen, counted = server.get("/props").json()["kv_policy"], slot(server), metrics(server)
        assert list(held_by(server).values()) == [shown["bytes"]] and "CPU" not in held_by(server)
    assert shown["bytes"] + shown["bytes_saved"] == shown["bytes_plain"] == counted["bytes_plain"]
    assert sum(sum(layer["bytes"]) for layer in shown["layers"]) == shown["bytes"]
    used = {group["window"]: group["n_cells_used"] for group in seen["groups"]}
    assert list(used) == ["full", *WINDOWS]
    assert used["full"] == 600 + 7
    for group in seen["groups"]:
        assert group["n_cells"] % 256 == 0  # whole blocks
        assert group["window"] == "full" or group["window"] <= group["n_cells_used"] <= group["n_cells"] < 600
        assert counted[f'cells_used{{window="{group["window"]}",type_k="f32",type_v="f32"}}'] == group["n_cells_used"]
