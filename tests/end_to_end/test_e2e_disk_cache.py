"""What a daemon has computed, the next one reads: with the same answer, and whatever has become of the file."""

from __future__ import annotations

from pathlib import Path

from daemon import Daemon
from http_wire import ask

from umaserve.access.keys import KeyFile

PROMPT = " ".join(map(str, range(1, 120)))
"""Some 350 tokens that go on as anybody would, far from a tie."""


def answer(daemon: Daemon, **fields) -> tuple[str, int]:
    *tokens, end = daemon.ask(PROMPT, max_tokens=8, ignore_eos=True, **fields)
    return "".join(token["text"] for token in tokens), end["usage"]["prefix_reused_tokens"]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.kv"))


def test_a_restarted_daemon_reuses_what_was_computed(own_daemon, tmp_path: Path) -> None:
    flags = ["--kv-cache", str(tmp_path / "kv"), "--no-speculation"]
    first = own_daemon(*flags)
    text, _ = answer(first)
    assert first.stop() == 0, first.logs
    (file,) = files(tmp_path / "kv")
    second = own_daemon(*flags)
    second.wait_for(lambda values: values["disk_cache_bytes"] > 0)
    said, reused = answer(second)
    assert (said, reused > 300) == (text, True)
    values = second.metrics()
    assert values["disk_cache_hits_total"] == 1
    assert values["disk_cache_tokens_total"] >= reused
    assert second.stop() == 0, second.logs
    # One byte of the data, which only reading all of it finds.
    data = bytearray(file.read_bytes())
    data[-100] ^= 1
    file.write_bytes(data)
    third = own_daemon(*flags)
    third.wait_for(lambda values: values["disk_cache_bytes"] > 0)
    assert answer(third) == (text, 0)
    assert "kv_cache: removed" in third.logs


def test_a_slot_is_saved_and_restored_by_name(own_daemon, tmp_path: Path) -> None:
    flags = ["--http", "127.0.0.1:0", "--kv-cache", str(tmp_path / "kv"), "--slot-save-path", str(tmp_path / "slots")]
    first = own_daemon(*flags, "--no-speculation")
    text, _ = answer(first)

    def act(daemon: Daemon, action: str, filename: str = "counting.bin") -> tuple[int, dict]:
        reply = ask(daemon, "POST", f"/slots/0?action={action}", {"filename": filename})
        return reply.status, reply.json

    status, saved = act(first, "save")
    assert (status, saved["id_slot"], saved["filename"]) == (200, 0, "counting.bin")
    assert saved["n_saved"] > 300
    assert saved["n_written"] == (tmp_path / "slots" / "counting.bin").stat().st_size
    assert saved["timings"]["save_ms"] > 0
    assert act(first, "save", "../kv/x")[0] == 400
    assert first.stop() == 0, first.logs
    for file in files(tmp_path / "kv"):
        file.unlink()
    second = own_daemon(*flags, "--no-speculation")
    assert act(second, "restore", "others")[0] == 404
    status, restored = act(second, "restore")
    assert (status, restored["n_restored"], restored["n_read"]) == (200, saved["n_saved"], saved["n_written"])
    said, reused = answer(second)
    assert (said, reused > 300) == (text, True)
    assert second.stop() == 0, second.logs


def test_what_is_not_to_be_cached_is_not_written(own_daemon, tmp_path: Path) -> None:
    daemon = own_daemon("--kv-cache", str(tmp_path / "kv"))
    answer(daemon, cache_prompt=False)
    assert daemon.stop() == 0, daemon.logs
    assert not files(tmp_path / "kv")


def test_a_tenant_does_not_find_what_another_has_left(own_daemon, tmp_path: Path) -> None:
    keys = KeyFile(str(tmp_path / "keys"), missing_ok=True)
    alice, bob = (keys.add(name) for name in ("alice", "bob"))
    flags = ("--http", "127.0.0.1:0", "--api-keys", str(tmp_path / "keys"), "--kv-cache", str(tmp_path / "kv"))
    body = {"model": "any", "prompt": PROMPT, "max_tokens": 2}

    def reused(daemon: Daemon, key: str) -> int:
        response = ask(daemon, "POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"})
        return response.json["usage"]["prompt_tokens_details"]["cached_tokens"]

    first = own_daemon(*flags)
    assert reused(first, alice) == 0
    assert first.stop() == 0, first.logs
    second = own_daemon(*flags)
    second.wait_for(lambda values: values["disk_cache_bytes"] > 0)
    assert reused(second, bob) == 0
    assert reused(second, alice) > 300
