"""Slot files from an enemy, who knows the format and makes the checksum right again: refused with a reason, and the server goes on.

What a file can hold is tried in all its parts by tests/test-slot-file.c and fuzz-slot-file; here the server is asked, with files of its own
that were altered.
"""

import os
import random
import struct

import psutil
import pytest
import tiny_gguf
from kv_policy_server import EXACT, complete, make_policy, slot, words
from server_process import ServerProcess
from slot_file import SlotFile, seal

pytestmark = pytest.mark.server

PROMPT = words(1, 300)
MORE = PROMPT + words(2, 20)
N_RANDOM = 120


@pytest.fixture(scope="module", params=["llama", "gemma4", "qwen35"])
def attacked(request, tmp_path_factory):
    """A server, a good file of it, and what it answers after that one is restored."""
    folder = tmp_path_factory.mktemp(request.param)
    model = folder / "model.gguf"
    tiny_gguf.make_model(model, request.param, seed=2)
    (folder / "slots").mkdir()
    policy = make_policy(folder, model, (16, 48, 130), 1024)
    with ServerProcess(model, folder / "log", *EXACT, "--kv-policy", str(policy), "--slot-save-path", str(folder / "slots"),
                       "--kv-policy-checkpoint-mib", "64", ctx=1024) as server:
        complete(server, PROMPT[:150])
        complete(server, PROMPT)
        assert act(server, "save", "good.bin").status_code == 200
        expected = complete(server, MORE)[0]
        yield server, folder / "slots", (folder / "slots" / "good.bin").read_bytes(), expected


def act(server, action, name):
    return server.post(f"/slots/0?action={action}", {"filename": name})


def send(attacked, data):
    server, slots, _, _ = attacked
    (slots / "bad.bin").write_bytes(data)
    return act(server, "restore", "bad.bin")


def still_good(attacked):
    server, _, _, expected = attacked
    assert act(server, "restore", "good.bin").status_code == 200
    tokens, cached = complete(server, MORE)
    assert tokens == expected and cached >= 295


def refused(attacked, change, reason):
    """The file with a change is refused for this reason, and what the slot held serves on."""
    server, _, good, expected = attacked
    file = SlotFile(good)
    change(file)
    complete(server, MORE)
    before = slot(server)["checkpoint_tokens"]
    answer = send(attacked, file.pack())
    assert answer.status_code == 400, answer.text
    assert reason in answer.json()["error"]["message"]
    assert slot(server)["checkpoint_tokens"] == before
    tokens, cached = complete(server, MORE)
    assert tokens == expected and cached >= 295


def test_taken_apart_and_put_together_it_is_the_same(attacked):
    good = attacked[2]
    assert SlotFile(good).pack() == good
    still_good(attacked)


def test_tokens_without_a_state(attacked):
    refused(attacked, lambda file: setattr(file, "state", b""), "too early")

    def empty(file):
        """The state of a slot that has nothing: no cells in any part, so that it is well formed for a plain cache."""
        file.state = file.state[:4] + struct.pack("<I", 0)

    refused(attacked, empty, "does not hold the positions")


def test_other_tokens(attacked):
    def change(file):
        tokens = bytearray(file.tokens)
        tokens[-40] ^= 1
        file.tokens = bytes(tokens)

    refused(attacked, change, "other tokens")

    def leave_out(file):
        """One token less, with the number before them."""
        n = struct.unpack_from("<I", file.tokens, 8)[0]
        file.tokens = file.tokens[:8] + struct.pack("<I", n - 1) + file.tokens[12:12 + 4 * (n - 1)] + file.tokens[12 + 4 * n:]

    refused(attacked, leave_out, "position")


def test_cut_and_reversed_checkpoints(attacked):
    refused(attacked, lambda file: file.checkpoints.reverse(), "rising")
    refused(attacked, lambda file: file.checkpoints.append(file.checkpoints[-1]), "rising")
    refused(attacked, lambda file: file.checkpoints[0][1][0].pop(), "too early")
    refused(attacked, lambda file: file.checkpoints[0][1][0].append(0), "more bytes")
    refused(attacked, lambda file: file.checkpoints[0][1].__setitem__(0, file.checkpoints[1][1][0]), "other tokens")
    refused(attacked, lambda file: file.checkpoints[0][1][0].__setitem__(0, len(file.blocks)), "expected one of")
    refused(attacked, lambda file: file.checkpoints[0][0].__setitem__(2, 5), "positions")
    refused(attacked, lambda file: file.blocks.insert(0, b""), "block of 0 bytes")


def test_altered_positions(attacked):
    """The first cell of the first cache says that it is at another position."""
    for position in (-1, 299, 300, 2**31 - 1):
        def change(file, position=position):
            file.state = file.state[:8] + struct.pack("<i", position) + file.state[12:]

        refused(attacked, change, "position")


def test_anything(attacked):
    """Random changes with a right checksum: a file is refused or taken, and whatever the rows hold, the server answers."""
    server, _, good, _ = attacked
    rng = random.Random(1)
    taken = 0
    for _ in range(N_RANDOM):
        data = bytearray(good)
        for _ in range(rng.choice((1, 1, 2, 5))):
            # most of a file is rows, where nothing can be told: half of the changes go where the structure is
            at = rng.choice((rng.randrange(24, len(data) - 8), rng.randrange(24, 3000), rng.randrange(len(data) - 3000, len(data) - 8)))
            width = rng.choice((1, 4, 8))
            data[at:at + width] = rng.choice((rng.randbytes(width), b"\xff" * width, b"\0" * width, struct.pack("<Q", rng.randrange(300))[:width]))
        answer = send(attacked, seal(bytes(data)))
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 200:
            taken += 1
            for prompt in (MORE, PROMPT[:160] + words(3, 10)):
                assert server.post("/completion", {"prompt": prompt, "n_predict": 2, "temperature": 0}).status_code == 200
        else:
            assert answer.json()["error"]["message"].startswith("Unable to restore slot: ")
    assert 0 < taken < N_RANDOM
    still_good(attacked)


@pytest.mark.parametrize("attacked", ["llama"], indirect=True)
class TestOneModel:
    """What does not depend on the model."""

    def test_a_huge_file_is_not_read(self, attacked):
        """2 GiB of nothing, with and without a right beginning."""
        server, slots, good, _ = attacked
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        read = process.io_counters().read_chars
        for head in (b"", good[:24], good[:16] + struct.pack("<Q", 2**31), good[:16] + struct.pack("<Q", 2**31) + good[24:1000]):
            with (slots / "huge.bin").open("wb") as file:
                file.write(head)
            os.truncate(slots / "huge.bin", 2**31)
            assert act(server, "restore", "huge.bin").status_code == 400
        (slots / "huge.bin").unlink()
        assert process.memory_info().rss - before < 16 * 2**20
        assert process.io_counters().read_chars - read < 64 * 2**20
        still_good(attacked)

    def test_a_long_conversation_and_a_small_context(self, attacked, tmp_path):
        """The reason is its length, not a lack of room beside slots that are not there."""
        server, slots, _, _ = attacked
        model, policy = (server.command[server.command.index(option) + 1] for option in ("-m", "--kv-policy"))
        with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", policy, "--slot-save-path", str(slots), ctx=256) as small:
            answer = act(small, "restore", "good.bin")
            assert answer.status_code == 400
            message = answer.json()["error"]["message"]
            assert "tokens, expected at most the 256 that a slot of this server holds" in message and "room" not in message

    def test_names(self, attacked):
        """Ours, and those that are too long with what we add: the caller's fault, and nothing is told of the server's folders."""
        server, slots, _, _ = attacked
        for name in ("talk.partial", ".talk.bin.partial", "x" * 250, "x" * 255):
            for action in ("save", "restore"):
                answer = act(server, action, name)
                assert answer.status_code == 400, answer.text
                assert str(slots) not in answer.text
        assert act(server, "save", "x" * 246).status_code == 200
        assert sorted(path.name for path in slots.iterdir() if path.name.startswith((".", "talk"))) == []
