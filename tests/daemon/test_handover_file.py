"""What a daemon leaves to the next one: all of it comes back, and no other byte is taken for it."""

from __future__ import annotations

import dataclasses
import logging
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.events import Logprobs, Scored, Token
from umaserve.core.requests import Attachment, ChatTurn, Generate, Grammar, Image, Priority, Sampling, Syntax, TokenIds
from umaserve.daemon.handover_file import MAGIC, HandoverFile, Left, pack, unpack
from umaserve.dialects.generate.generation import Kept
from umaserve.dialects.generate.request import Options
from umaserve.remote.values import Malformed
from umaserve.sessions.caller import Caller
from umaserve.sessions.rates import RateLimits
from umaserve.sessions.resumed import Resumed

OPTIONS = Options(
    stream=True,
    echo_prompt=False,
    include_token_ids=True,
    include_timing=False,
    include_generated_text=True,
    reasoning="inline",
)
SCORED = Scored(5, b"\xe2\x82", -0.25)
RICH = Left(
    Caller("generate", "192.0.2.1", "garden", Priority.BACKGROUND, RateLimits(2.5, None), traceparent="00-1"),
    Kept(
        Generate(
            "gen_1",
            (ChatTurn("user", "See äöü", attachments=(Attachment(4, Image(memoryview(b"aGk="), "prompt[0]")),)),),
            sampling=Sampling(
                0.5, seed=7, logit_bias=((3, float("-inf")),), grammar=Grammar(Syntax.REGEX, "a+", "regex")
            ),
            stop=("\n",),
            chat_template_kwargs={"deep": [1, None, "x"]},
            lora=(("a", 0.5),),
        ),
        OPTIONS,
        "Once",
        "",
        (Token("Once", 5, Logprobs(SCORED, (SCORED,)), 0.1, 0.1),),
        (),
    ),
    Resumed("tiny", [5], "Once", "", 3, True, 1.5, 0.25, None),
    1e9,
)
ENDED = Left(
    Caller("generate", "192.0.2.2"),
    Kept(Generate("gen_2", "Once"), OPTIONS, "", "", None, (b"{}", b'{"type":"completion"}')),
    None,
    2e9,
)
WHOLE = pack([RICH, ENDED], 1 << 20)


def test_all_of_it_comes_back() -> None:
    assert unpack(WHOLE) == [RICH, ENDED]
    assert unpack(pack([], 0)) == []


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_no_other_byte_is_taken(at: int, flips: int) -> None:
    changed = bytearray(WHOLE)
    changed[at] ^= flips
    with pytest.raises(Malformed):
        unpack(bytes(changed))


@given(st.integers(0, len(WHOLE) - 1), st.binary(max_size=64))
def test_neither_less_nor_more_nor_another_file_is_taken(length: int, others: bytes) -> None:
    for data in (WHOLE[:length], WHOLE + others + b"\0", others, MAGIC + others):
        with pytest.raises(Malformed):
            unpack(data)


def test_the_first_give_way_where_there_is_little_room() -> None:
    room = len(pack([ENDED], 1 << 20)) - len(pack([], 0))
    assert unpack(pack([RICH, ENDED], room)) == [ENDED]
    assert unpack(pack([RICH, ENDED], room - 1)) == []


# -- the file ----------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> HandoverFile:
    return HandoverFile(str(tmp_path / "left"), 1 << 20)


def test_it_is_for_this_user_and_for_one_reader(file: HandoverFile, tmp_path: Path) -> None:
    (tmp_path / "left.part").write_text("of a daemon that was killed")
    file.write([RICH])
    assert os.listdir(tmp_path) == ["left"]
    assert (tmp_path / "left").stat().st_mode & 0o777 == 0o600
    assert file.take() == [RICH]
    assert os.listdir(tmp_path) == []
    assert file.take() == []


@pytest.mark.parametrize("content", [MAGIC, MAGIC + bytes(100), WHOLE[:-1], WHOLE + bytes(1 << 20)])
def test_a_damaged_one_costs_itself(
    file: HandoverFile, tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "left"
    path.write_bytes(content)
    path.chmod(0o600)
    assert file.take() == []
    assert not path.exists()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    file.write([ENDED])
    assert file.take() == [ENDED]


@pytest.mark.parametrize("kind", ["unknown format", "others may read it", "link", "pipe", "folder"])
def test_what_is_no_such_file_is_left_alone(
    file: HandoverFile, tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "left"
    match kind:
        case "unknown format":
            path.write_bytes(b"diary")
            path.chmod(0o600)
        case "others may read it":
            path.write_bytes(WHOLE)
            path.chmod(0o644)
        case "link":
            (tmp_path / "there").write_bytes(WHOLE)
            path.symlink_to(tmp_path / "there")
        case "pipe":
            os.mkfifo(path, 0o600)
        case _:
            path.mkdir()
    before = path.lstat()
    assert file.take() == []
    file.write([ENDED])
    assert os.path.samestat(path.lstat(), before)
    assert [record.levelno for record in caplog.records] == [logging.WARNING, logging.ERROR]


def test_a_folder_that_is_not_there_costs_the_generations_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = HandoverFile(str(tmp_path / "none" / "left"), 1 << 20)
    assert file.take() == []
    file.write([ENDED])
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


def test_one_that_is_larger_than_it_may_be_is_not_read(tmp_path: Path, file: HandoverFile) -> None:
    file.write([dataclasses.replace(ENDED, kept=dataclasses.replace(ENDED.kept, text="x" * 1000))])
    assert HandoverFile(str(tmp_path / "left"), 100).take() == []
    assert not (tmp_path / "left").exists()


def test_any_prompt_can_be_left() -> None:
    ids = dataclasses.replace(ENDED.kept, request=Generate("gen_3", TokenIds((1, 2))))
    left = dataclasses.replace(ENDED, kept=ids)
    assert unpack(pack([left], 1 << 20)) == [left]
