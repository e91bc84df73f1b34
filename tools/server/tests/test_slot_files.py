"""Slot files under a policy: what is saved comes back with its rings and checkpoints, or not at all."""

import os
import re
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest
import requests
import tiny_gguf
from kv_policy_server import EXACT, make_policy, metrics, slot, words
from kv_policy_server import complete as complete_plain
from server_process import ServerProcess

pytestmark = pytest.mark.server

WINDOWS = (16, 48, 130)
TURNS = [[1, *words(i, 149)] for i in range(6)]  # each begins with <s>, which nothing else has
PROMPT = sum(TURNS, [])
MORE = {"message_delimiters": [{"role": "user", "delimiter": "<s>"}]}


def complete(server, prompt, **more):
    return complete_plain(server, prompt, **MORE, **more)


def save(server, name, i=0):
    return server.post(f"/slots/{i}?action=save", {"filename": name})


def restore(server, name, i=0):
    return server.post(f"/slots/{i}?action=restore", {"filename": name})


@pytest.fixture(scope="module", params=["llama", "gemma4", "qwen35"])
def arch(request):
    return request.param


@pytest.fixture(scope="module")
def tiny(arch, tmp_path_factory):
    folder = tmp_path_factory.mktemp(arch)
    model = folder / "model.gguf"
    tiny_gguf.make_model(model, arch, seed=2)
    (folder / "slots").mkdir()
    return folder, model, make_policy(folder, model, WINDOWS, 2048)


def serve(folder, model, policy, *args, **kwargs):
    return ServerProcess(model, folder / "server.log", *EXACT, *(("--kv-policy", str(policy)) if policy else ()), "--slot-save-path",
                         str(folder / "slots"), "--kv-policy-checkpoint-mib", "64", *args, ctx=2048, **kwargs)


@pytest.fixture(scope="module")
def saved(tiny):
    """A saved conversation, and what the server that saved it answers to what may follow."""
    folder, model, policy = tiny
    follow_ups = [PROMPT + words(2, 60),                    # goes on
                  PROMPT[:890] + words(3, 60),               # takes words back
                  sum(TURNS[:2], []) + [1] + words(4, 300)]  # comes back to the third turn
    with serve(folder, model, policy) as server:
        complete(server, PROMPT)
        before = slot(server)
        answer = save(server, "talk.bin")
        assert answer.status_code == 200, answer.text
        assert answer.json()["n_written"] == (folder / "slots" / "talk.bin").stat().st_size
        expected = [complete(server, prompt)[0] for prompt in follow_ups]
    return before, answer.json(), follow_ups, expected


def test_after_a_restart_it_goes_on_as_before(tiny, saved):
    folder, model, policy = tiny
    before, answer, follow_ups, expected = saved
    with serve(folder, model, policy) as server:
        got = restore(server, "talk.bin")
        assert got.status_code == 200, got.text
        assert got.json()["n_restored"] == answer["n_saved"]
        assert got.json()["n_read"] == answer["n_written"]
        after = slot(server)
        for key in ("groups", "checkpoints", "checkpoint_tokens", "checkpoint_bytes", "checkpoint_bytes_shared"):
            assert after[key] == before[key], key
        assert after["checkpoints"] > 0
        # the same tokens, and no more is processed than since the nearest checkpoint
        for prompt, tokens, common in zip(follow_ups, expected, (900, 890, 301), strict=True):
            nearest = max(n for n in slot(server)["checkpoint_tokens"] if n <= common)
            got, cached = complete(server, prompt)
            assert got == tokens
            assert cached >= nearest - 1 and cached > 0
    # cold
    with serve(folder, model, policy) as server:
        assert [complete(server, prompt, cache=False)[0] for prompt in follow_ups] == expected


def peak_rss(server):
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024


def test_what_is_restored_and_what_was_there_are_not_both_in_memory(tmp_path):
    """The slot is full, and the file as large: one copy of a state is made at a time."""
    model = tmp_path / "wide.gguf"
    tiny_gguf.make_model(model, "llama", seed=2, n_head=8, n_head_kv=8)  # 16 KiB of rows for each token
    (tmp_path / "slots").mkdir()
    prompts = [words(i, 3500) for i in (1, 2)]
    with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", str(make_policy(tmp_path, model, (64, 4096), 8192)), "--slot-save-path",
                       str(tmp_path / "slots"), "--ctx-checkpoints", "0", "--cache-ram", "0", ctx=4096) as server:
        for i, prompt in enumerate(prompts):
            complete_plain(server, prompt, 1)
            if i == 0:
                assert save(server, "talk.bin").status_code == 200
        size = (tmp_path / "slots" / "talk.bin").stat().st_size
        assert size > 20 * 2**20
        Path(f"/proc/{server.process.pid}/clear_refs").write_text("5")  # the peak begins anew
        before = peak_rss(server)
        assert restore(server, "talk.bin").status_code == 200
        assert peak_rss(server) - before < 1.5 * size
        assert complete_plain(server, prompts[0] + words(3, 20), 1)[1] >= 3400


def test_checkpoints_of_a_file_stand_for_the_limit_with_all_others(tmp_path):
    """Others have filled the memory for checkpoints: those of the file are held against them, and the least useful ones go."""
    model = tmp_path / "wide.gguf"
    tiny_gguf.make_model(model, "llama", seed=2, n_head=8, n_head_kv=8)
    (tmp_path / "slots").mkdir()
    limit = 24
    with ServerProcess(model, tmp_path / "log", *EXACT, "--kv-policy", str(make_policy(tmp_path, model, (64, 700), 2048)), "--slot-save-path",
                       str(tmp_path / "slots"), "--kv-policy-checkpoint-mib", str(limit), "--cache-ram", "0", "--metrics", "--no-kv-unified",
                       ctx=4096, slots=2) as server:
        complete(server, PROMPT, id_slot=0)
        n_saved = slot(server, 0)["checkpoints"]
        assert n_saved > 2
        assert save(server, "talk.bin").status_code == 200
        server.post("/slots/0?action=erase")
        other = sum(([1, *words(50 + i, 149)] for i in range(12)), [])
        complete(server, other, id_slot=1)
        alone = slot(server, 1)["checkpoints"]
        assert metrics(server)["checkpoint_bytes"] > 0.7 * limit * 2**20
        assert restore(server, "talk.bin").status_code == 200
        assert metrics(server)["checkpoint_bytes"] <= limit * 2**20
        both = [slot(server, i)["checkpoints"] for i in (0, 1)]
        assert 2 <= both[0] <= n_saved and 2 <= both[1] < alone, (both, n_saved, alone)


def refused(server, name, *reasons, answers=True):
    """The file is refused with the reason, and the slot is as it was; `answers`: so are its answers."""
    if answers:
        complete(server, words(9, 200))
    before = slot(server)
    answer = restore(server, name)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error" and error["code"] == 400
    for reason in reasons:
        assert reason in error["message"]
    after = slot(server)
    assert {k: after[k] for k in ("groups", "checkpoint_tokens")} == {k: before[k] for k in ("groups", "checkpoint_tokens")}
    if not answers:
        return
    tokens, cached = complete(server, words(9, 200) + words(10, 30))
    assert cached >= 195
    assert complete(server, words(9, 200) + words(10, 30), cache=False)[0] == tokens


def test_damaged_files_are_refused(tiny, saved):
    folder, model, policy = tiny
    whole = (folder / "slots" / "talk.bin").read_bytes()

    def put(name, data):
        (folder / "slots" / name).write_bytes(data)
        return name

    def flipped(at):
        data = bytearray(whole)
        data[at] ^= 1
        return bytes(data)

    with serve(folder, model, policy) as server:
        refused(server, put("short.bin", whole[:-1]), "truncated")  # and there is something in the slot now
        refused(server, put("half.bin", whole[:len(whole) // 2]), "truncated", str(len(whole)), answers=False)
        refused(server, put("head.bin", whole[:20]), "truncated", answers=False)
        refused(server, put("long.bin", whole + b"x"), "damaged", str(len(whole)), answers=False)
        refused(server, put("empty.bin", b""), "no slot file", answers=False)
        refused(server, put("text.bin", b"Dear slot, "), "no slot file", answers=False)
        refused(server, put("version.bin", flipped(8)), "version", answers=False)
        for i, at in enumerate((30, len(whole) // 3, len(whole) // 2, len(whole) - 100, len(whole) - 1)):
            refused(server, put(f"flip-{i}.bin", flipped(at)), "checksum", answers=False)
        refused(server, "missing.bin", "no such file", answers=False)
        (folder / "slots" / "link.bin").symlink_to(folder / "slots" / "talk.bin")
        refused(server, "link.bin", "no such file")
        assert restore(server, "talk.bin").status_code == 200


def test_another_policy_is_refused(tiny, saved):
    folder, model, _ = tiny
    with serve(folder, model, make_policy(folder, model, (16, 48, 140), 2048)) as server:
        refused(server, "talk.bin", "another KV policy")


def test_another_model_is_refused(tiny, saved, arch):
    folder, _, policy = tiny
    other = folder / "other.gguf"  # of the same shape
    tiny_gguf.make_model(other, arch, seed=3)
    with serve(folder, other, policy) as server:
        refused(server, "talk.bin", "another model")


def test_other_cache_types_are_refused(tiny, saved):
    folder, model, policy = tiny
    with serve(folder, model, policy, "-ctk", "f16") as server:
        refused(server, "talk.bin", "another kind of cache", "K f32", "K f16")


def test_a_small_slot_refuses_a_long_conversation(tiny, saved):
    folder, model, policy = tiny
    with serve(folder, model, policy, "--no-kv-unified", slots=4) as server:
        refused(server, "talk.bin", "another kind of cache")
    with serve(folder, model, policy, "--kv-unified", "--kv-unified-per-slot", "600", slots=2) as server:
        refused(server, "talk.bin", "tokens")


def test_with_and_without_a_policy_are_two_formats(tiny, saved):
    folder, model, policy = tiny
    with serve(folder, model, None) as server:
        assert restore(server, "talk.bin").status_code == 400
        complete(server, PROMPT)
        assert save(server, "plain.bin").status_code == 200
    assert (folder / "slots" / "plain.bin").read_bytes()[:4] == b"qsgg"  # llama.cpp's own
    with serve(folder, model, policy) as server:
        refused(server, "plain.bin", "no slot file")


@pytest.mark.parametrize("arch", ["llama"], indirect=True, scope="module")
class TestFiles:
    """What does not depend on the model."""

    def test_names_cannot_leave_the_folder(self, tiny):
        folder, model, policy = tiny
        with serve(folder, model, policy) as server:
            complete(server, PROMPT[:50])
            for name in ("../out.bin", "/tmp/out.bin", "a/b.bin", "..", ".", "", "a\\b.bin", "x\x00y", "..\\out.bin", "\uff0e\uff0e/out.bin"):
                for action in (save, restore):
                    answer = action(server, name)
                    assert answer.status_code == 400, name
                    assert answer.json()["error"]["type"] == "invalid_request_error"
        assert not (folder / "out.bin").exists()

    def test_no_room_beside_another_slot(self, tiny, saved):
        folder, model, policy = tiny
        with serve(folder, model, policy, "--kv-unified", "--cache-ram", "0", slots=2) as server:
            other, _ = complete(server, words(5, 1300), id_slot=1)
            complete(server, words(9, 200), id_slot=0)
            before = slot(server, 0), slot(server, 1)
            answer = restore(server, "talk.bin")
            assert answer.status_code == 400 and "no room" in answer.json()["error"]["message"]
            assert (slot(server, 0), slot(server, 1)) == before
            tokens, cached = complete(server, words(9, 200) + words(10, 30), id_slot=0)
            assert cached == 200
            assert complete(server, words(9, 200) + words(10, 30), cache=False, id_slot=0)[0] == tokens
            assert complete(server, words(5, 1300), id_slot=1)[0] == other

    def test_a_checkpoint_of_other_words_is_not_kept(self, tiny):
        """One that ends with the first token that differs: the server's own rule keeps it."""
        folder, model, policy = tiny
        with serve(folder, model, policy) as server:
            complete(server, PROMPT)
            assert 150 in slot(server)["checkpoint_tokens"]
            other = [*PROMPT[:149], 4 + (PROMPT[149] - 3) % 250, *words(5, 100)]
            tokens, cached = complete(server, other)
            assert cached <= 149 and 150 not in slot(server)["checkpoint_tokens"]
            assert save(server, "other.bin").status_code == 200
            assert restore(server, "other.bin").status_code == 200
            assert complete(server, other)[0] == tokens == complete(server, other, cache=False)[0]

    def test_a_link_is_replaced_not_followed(self, tiny):
        folder, model, policy = tiny
        victim = folder / "victim.txt"
        victim.write_text("mine")
        (folder / "slots" / "trap.bin").symlink_to(victim)
        (folder / "slots" / ".trap2.bin.partial").symlink_to(victim)
        with serve(folder, model, policy) as server:
            complete(server, PROMPT[:50])
            assert save(server, "trap.bin").status_code == 200
            assert save(server, "trap2.bin").status_code == 500
        assert victim.read_text() == "mine"
        assert not (folder / "slots" / "trap.bin").is_symlink()
        (folder / "slots" / ".trap2.bin.partial").unlink()

    def test_a_full_disk_leaves_the_old_file(self, tiny):
        folder, model, policy = tiny
        server = serve(folder, model, policy)
        # a limit on the size of files stands for the disk; its signal would come first
        server.command = ["sh", "-c", 'trap "" XFSZ; exec "$@"', "sh", *server.command]
        with server:
            complete(server, PROMPT[:50])
            assert save(server, "old.bin").status_code == 200
            old = (folder / "slots" / "old.bin").read_bytes()
            complete(server, PROMPT)
            subprocess.run(["prlimit", "--pid", str(server.process.pid), f"--fsize={len(old)}:{len(old)}"], check=True)
            answer = save(server, "old.bin")
            assert answer.status_code == 500
            assert "cannot write" in answer.json()["error"]["message"]
            assert complete(server, PROMPT + words(2, 30))[1] >= len(PROMPT) - 4
        assert (folder / "slots" / "old.bin").read_bytes() == old
        assert not list((folder / "slots").glob(".*.partial"))

    def test_killed_in_the_middle_of_a_save(self, tiny):
        """kill -9 while it saves again and again: the file is always a whole one."""
        folder, model, policy = tiny
        slots = folder / "slots"
        partial = slots / ".kept.bin.partial"
        for i in range(12):
            with serve(folder, model, policy) as server:
                if i > 0:
                    assert restore(server, "kept.bin").status_code == 200
                complete(server, PROMPT[:500 + 20 * i])
                assert save(server, "kept.bin").status_code == 200
                stop = threading.Event()

                def save_on(server=server, stop=stop):
                    while not stop.is_set():
                        try:
                            save(server, "kept.bin")
                        except requests.RequestException:
                            break

                saver = threading.Thread(target=save_on)
                saver.start()
                time.sleep(0.1 + 0.013 * i)
                os.kill(server.process.pid, signal.SIGKILL)
                server.process.wait(10)
                stop.set()
                saver.join()
            if partial.exists():
                break
        else:
            pytest.fail("no kill came in the middle")
        # what is left over is no hindrance
        with serve(folder, model, policy) as server:
            assert restore(server, "kept.bin").status_code == 200
            assert complete(server, PROMPT[:520] + words(2, 30))[1] > 0
            assert save(server, "kept.bin").status_code == 200
        assert not partial.exists()
