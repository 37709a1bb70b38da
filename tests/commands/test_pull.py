"""``umaserve pull`` from a hub on loopback, and ``umaserve models remove``."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from standin_hub import StandinHub, standin_hub

from umaserve.commands.hub import MAX_FILES, Offer, RemoteFile, Repository, keep_to_hub, named, offers
from umaserve.commands.models import remove
from umaserve.commands.pull import chosen, listing, run
from umaserve.core.errors import ConfigError

MODEL = b"GGUF" + bytes(300_000)
PROJECTOR = b"GGUF" + bytes(1000)


@pytest.fixture
def hub() -> Iterator[StandinHub]:
    with standin_hub() as hub:
        hub.repositories["org/Seer-GGUF"] = {
            "README.md": b"# Seer",
            "Seer-Q4_K_M.gguf": MODEL,
            "Seer-Q8_0.gguf": MODEL + MODEL,
            "mmproj-F16.gguf": PROJECTOR,
        }
        yield hub


def umaserve(hub: StandinHub, tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_ETAG_TIMEOUT": "5"}
    environ |= {"UMA_MODELS_DIR": str(tmp_path / "models")}
    command = [sys.executable, "-m", "umaserve", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120)


@pytest.fixture
def refusal(hub: StandinHub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """What ``umaserve pull`` says where it has to refuse: without a process, which would load the hub's library."""
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)

    def refused(*arguments: str) -> str:
        with pytest.raises(ConfigError) as raised:
            run(["--models-dir", str(tmp_path / "models"), *arguments], lambda text: None)
        message = str(raised.value)
        assert len(message.splitlines()) == 1
        return message

    return refused


def test_a_model_is_pulled_with_its_projector_and_removed(hub: StandinHub, tmp_path: Path) -> None:
    pulled = umaserve(hub, tmp_path, "pull", "hf.co/org/Seer-GGUF")
    assert pulled.returncode == 0, pulled.stderr
    assert "--model Seer-Q4_K_M" in pulled.stdout
    folder = tmp_path / "models" / "Seer-Q4_K_M"
    assert {path.name for path in folder.glob("*.gguf")} == {"Seer-Q4_K_M.gguf", "mmproj-F16.gguf"}
    assert (folder / "Seer-Q4_K_M.gguf").read_bytes() == MODEL
    listed = umaserve(hub, tmp_path, "models", "--model", "Seer-Q4_K_M").stdout
    assert listed.split()[:2] == ["*", "Seer-Q4_K_M"]
    assert f"with {folder}/mmproj-F16.gguf" in listed
    assert "org/Seer-GGUF:Q4_K_M" in listed, "the hub's name means it too"
    assert "exists already" in umaserve(hub, tmp_path, "pull", "org/Seer-GGUF:q4_k_m").stderr
    assert umaserve(hub, tmp_path, "models", "remove", "Seer").returncode == 2
    removed = umaserve(hub, tmp_path, "models", "remove", "Seer-Q4_K_M")
    assert removed.returncode == 0, removed.stderr
    assert not folder.exists()


def test_an_interrupted_download_goes_on_where_it_was(hub: StandinHub, tmp_path: Path) -> None:
    chunk = huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE
    content = b"GGUF" + os.urandom(chunk + 100_000)
    hub.repositories["org/Large"] = {"Large-Q8_0.gguf": content}
    hub.cut["Large-Q8_0.gguf"] = chunk + 50_000
    pulled = umaserve(hub, tmp_path, "pull", "org/Large")
    assert pulled.returncode == 0, pulled.stderr
    assert (tmp_path / "models/Large-Q8_0/Large-Q8_0.gguf").read_bytes() == content
    assert hub.ranges == [f"bytes={chunk}-"]


def test_a_damaged_file_is_not_kept(hub: StandinHub, tmp_path: Path) -> None:
    hub.damaged.add("Seer-Q4_K_M.gguf")
    pulled = umaserve(hub, tmp_path, "pull", "org/Seer-GGUF")
    assert (pulled.returncode, "damaged during the download" in pulled.stderr) == (2, True)
    assert not list((tmp_path / "models").glob("*.gguf"))
    assert not list((tmp_path / "models").glob("*/*.gguf"))
    hub.damaged.clear()
    assert umaserve(hub, tmp_path, "pull", "org/Seer-GGUF").returncode == 0


def test_a_download_leaves_that_of_another_quantization_alone(hub: StandinHub, tmp_path: Path) -> None:
    hub.damaged.add("Seer-Q8_0.gguf")
    umaserve(hub, tmp_path, "pull", "org/Seer-GGUF:Q8_0")
    (under_way,) = (tmp_path / "models/.pulling").iterdir()
    pulled = umaserve(hub, tmp_path, "pull", "org/Seer-GGUF:Q4_K_M")
    assert (pulled.returncode, list((tmp_path / "models/.pulling").iterdir())) == (0, [under_way])


def test_a_file_in_the_folders_place_is_said(hub: StandinHub, tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models/Seer-Q4_K_M").write_bytes(b"")
    pulled = umaserve(hub, tmp_path, "pull", "org/Seer-GGUF")
    assert (pulled.returncode, "Seer-Q4_K_M: can't be put there: " in pulled.stderr) == (2, True)
    assert "Traceback" not in pulled.stderr


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("org/none", "no such repository"),
        ("org/closed", "accept its terms"),
        ("not a name", "expected hf.co/ORG/REPOSITORY"),
        ("https://elsewhere.example/Seer-GGUF", "expected hf.co/ORG/REPOSITORY"),
        ("hf.co/Seer-GGUF", "expected hf.co/ORG/REPOSITORY"),
        ("org/Seer-GGUF:Q5_K_M", "no model has Q5_K_M, did you mean Q4_K_M?"),
        ("org/text", "no GGUF files"),
    ],
)
def test_what_cannot_be_had_is_said(hub: StandinHub, refusal: Callable[..., str], name: str, expected: str) -> None:
    hub.gated.add("org/closed")
    hub.repositories["org/text"] = {"README.md": b"text"}
    assert expected in refusal(name)


def test_a_file_that_would_leave_the_folder_is_refused(
    hub: StandinHub, refusal: Callable[..., str], tmp_path: Path
) -> None:
    hub.repositories["org/hostile"] = {"../../../x-Q8_0.gguf": MODEL}
    assert "expected the name of a file in it, got ../" in refusal("org/hostile")
    assert not [*tmp_path.rglob("*.gguf")]


@pytest.mark.parametrize(
    ("text", "quantization"),
    [
        ("org/Seer-GGUF", ""),
        ("hf.co/org/Seer-GGUF:Q8_0", "Q8_0"),
        ("https://huggingface.co/org/Seer-GGUF", ""),
        ("https://huggingface.co/org/Seer-GGUF/tree/main", ""),
        ("https://huggingface.co/org/Seer-GGUF/blob/main/Seer-Q8_0.gguf", "Seer-Q8_0"),
        ("https://hf.co/org/Seer-GGUF/resolve/main/q8/Seer-Q8_0.gguf?download=true", "Seer-Q8_0"),
    ],
)
def test_an_address_from_a_browser_names_its_repository(text: str, quantization: str) -> None:
    assert named(text) == ("org/Seer-GGUF", quantization)


@pytest.mark.parametrize(
    ("hub", "address", "refused"),
    [
        ("https://huggingface.co", "https://huggingface.co/a", ""),
        ("https://huggingface.co", "https://cas-bridge.xethub.hf.co/a", ""),
        ("https://mirror.example", "https://cdn.huggingface.co/a", ""),
        ("http://127.0.0.1:9", "http://127.0.0.1:9/a", ""),
        ("https://huggingface.co", "https://evilhf.co/a", "redirects to another host, evilhf.co: nothing was sent"),
        ("https://huggingface.co", "https://hf.co.evil.example/a", "redirects to another host, hf.co.evil.example"),
        ("https://huggingface.co", "https://169.254.169.254/a", "redirects to another host, 169.254.169.254"),
        ("https://huggingface.co", "http://huggingface.co/a", "redirects to huggingface.co without TLS"),
    ],
)
def test_a_daemons_download_keeps_to_the_hub(
    monkeypatch: pytest.MonkeyPatch, hub: str, address: str, refused: str
) -> None:
    factories: list[Callable[[], Any]] = []
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub)
    monkeypatch.setattr(huggingface_hub, "set_client_factory", factories.append)
    keep_to_hub()
    with factories[0]() as client:
        request = client.build_request("GET", address)
        check = client.event_hooks["request"][0]
        if not refused:
            check(request)
            return
        with pytest.raises(ConfigError, match=re.escape(refused)):
            check(request)


@pytest.mark.parametrize("path", ["a/../x.gguf", "./x.gguf", "/x.gguf", "a//x.gguf", "a\\..\\x.gguf", "\x1b[2Jx.gguf"])
def test_names_that_only_a_hostile_hub_has_are_refused(path: str) -> None:
    fine = [RemoteFile(name, 1, "") for name in ("odd\nname.md", "a/..b/x-Q4_0.gguf")]
    assert len(offers(Repository("org/fine", "main", tuple(fine)))) == 1
    with pytest.raises(ConfigError, match="expected the name of a file in it, got ") as raised:
        offers(Repository("org/hostile", "main", (*fine, RemoteFile(path, 1, ""))))
    assert str(raised.value).isprintable()


def test_an_unreachable_hub_is_said(tmp_path: Path) -> None:
    pulled = umaserve(StandinHub("http://127.0.0.1:1"), tmp_path, "pull", "org/name")
    assert (pulled.returncode, "the hub can't be reached" in pulled.stderr) == (2, True)


def test_all_quantizations_are_listed_with_whether_they_fit(hub: StandinHub, tmp_path: Path) -> None:
    header, small, large = umaserve(hub, tmp_path, "pull", "--list", "org/Seer-GGUF").stdout.splitlines()
    assert header.split() == ["QUANTIZATION", "SIZE", "NAME"]
    assert small.split() == ["Q4_K_M", "294.0", "KiB", "fits", "Seer-Q4_K_M"]
    assert large.split()[0] == "Q8_0"
    assert not (tmp_path / "models").exists()


def test_sizes_are_told_alike(hub: StandinHub, tmp_path: Path) -> None:
    hub.repositories["org/One"] = {"One-Q8_0.gguf": b"GGUF" + bytes((3 << 20) - 4)}
    assert " 3.0 MiB " in umaserve(hub, tmp_path, "pull", "--list", "org/One").stdout
    assert "One-Q8_0: 3.0 MiB in 1 file; " in umaserve(hub, tmp_path, "pull", "org/One").stderr


def test_a_file_that_cannot_be_checked_is_told(hub: StandinHub, tmp_path: Path) -> None:
    hub.told["Seer-Q4_K_M.gguf"] = {"lfs": None}
    pulled = umaserve(hub, tmp_path, "pull", "org/Seer-GGUF")
    assert pulled.returncode == 0
    assert pulled.stderr.count("has no SHA-256") == 1
    assert "Seer-Q4_K_M.gguf: the hub has no SHA-256 of it, so it is not checked\n" in pulled.stderr


@pytest.mark.parametrize(
    ("told", "said"),
    [
        ({"size": "many"}, "expected a size from 1 to 1125899906842624 bytes, got many"),
        ({"size": None}, "expected a size from 1 to 1125899906842624 bytes, got None"),
        ({"size": 0}, "expected a size from 1 to 1125899906842624 bytes, got 0"),
        ({"size": -5}, "expected a size from 1 to 1125899906842624 bytes, got -5"),
        ({"size": True}, "expected a size from 1 to 1125899906842624 bytes, got True"),
        ({"size": 1 << 60}, "expected a size from 1 to 1125899906842624 bytes, got 1152921504606846976"),
        ({"lfs": {"sha256": "x", "size": 1, "pointerSize": 1}}, "expected a SHA-256 of 64 hexadecimal digits, got x"),
        ({"lfs": 5}, "the hub's answer can't be read: "),
    ],
)
def test_what_a_hub_says_of_files_is_checked(
    hub: StandinHub, refusal: Callable[..., str], told: dict[str, object], said: str
) -> None:
    hub.told["Seer-Q8_0.gguf"] = told
    hub.told["README.md"] = {"size": 0, "lfs": None}
    assert said in refusal("--list", "org/Seer-GGUF")


def test_a_repository_of_too_many_files_is_refused(hub: StandinHub, refusal: Callable[..., str]) -> None:
    hub.repositories["org/many"] = {f"M{number}-Q8_0.gguf": b"GGUF" for number in range(MAX_FILES + 1)}
    expected = f"org/many: expected at most {MAX_FILES} GGUF files, got {MAX_FILES + 1}"
    assert refusal("--list", "org/many") == expected


def test_models_in_parts_and_in_folders_are_offered_whole() -> None:
    parts = tuple(RemoteFile(f"BF16/Big-BF16-0000{number}-of-00002.gguf", 9, "") for number in (1, 2))
    files = (*parts, RemoteFile("Big-Q4_0.gguf", 3, ""), RemoteFile("mmproj-BF16.gguf", 1, ""))
    small, big = offers(Repository("org/Big", "main", files))
    assert (small.name, small.quantization, small.size_bytes) == ("Big-Q4_0", "Q4_0", 4)
    assert (big.name, big.quantization, big.size_bytes) == ("Big-BF16", "BF16", 19)
    assert [file.path for file in big.files] == ["mmproj-BF16.gguf", *(part.path for part in parts)]
    assert "too large" in listing([small, big], 10)


def test_without_a_usual_quantization_one_must_be_named() -> None:
    found = [Offer(f"M-{kind}", kind, ()) for kind in ("Q2_K", "Q8_0")]
    with pytest.raises(ConfigError, match="name one after a colon: Q2_K, Q8_0"):
        chosen(found, "")
    assert chosen(found[:1], "").quantization == "Q2_K"
    assert chosen(found, "M-Q8_0").quantization == "Q8_0"


def test_what_exceeds_the_memory_is_not_pulled(hub: StandinHub, tmp_path: Path) -> None:
    huge = [Offer("M-Q8_0", "Q8_0", (RemoteFile("M-Q8_0.gguf", 1 << 60, ""),))]
    assert "too large" in listing(huge, 1 << 30)
    standins = tmp_path / "sitecustomize.py"
    standins.write_text("import umaserve.system.memory as memory\nmemory.available_bytes = lambda *_: 1 << 18\n")
    environ = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    environ["PYTHONPATH"] = f"{tmp_path}:{environ.get('PYTHONPATH', '')}"
    command = [sys.executable, "-m", "umaserve", "pull", "org/Seer-GGUF", "--models-dir", str(tmp_path / "models")]
    refused = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=120)
    assert (refused.returncode, "--list shows all" in refused.stderr) == (2, True)
    assert subprocess.run([*command, "--anyway"], capture_output=True, env=environ, timeout=120).returncode == 0


@pytest.mark.parametrize(
    "of_other", ["path = '{}/shared.gguf'", "path = '{0}/own.gguf'\ndraft_model = '{0}/shared.gguf'"]
)
def test_a_file_that_another_model_has_is_not_removed(tmp_path: Path, of_other: str) -> None:
    folder, file = tmp_path / "models", tmp_path / "umaserve.toml"
    folder.mkdir()
    for name in ("own", "shared"):
        (folder / f"{name}.gguf").write_bytes(MODEL)
    file.write_text(f"[models.shared]\npath = '{folder}/shared.gguf'\n[models.other]\n{of_other.format(folder)}\n")
    with pytest.raises(ConfigError, match="shared: its file is also that of other"):
        remove(["shared", "--models-dir", str(folder), "--config", str(file)], str)
    assert (folder / "shared.gguf").exists()
