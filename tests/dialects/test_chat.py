"""``/ws/chat`` without a model: what a client may ask for, in which words it is refused, and what comes back when."""

from __future__ import annotations

import base64
import itertools
import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from standin import StandInEngine, StandInVoice, SteppedWorker, answer, heard
from thought_tokens import split_tokens
from world import DaemonWorld

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import (
    Finished,
    FinishReason,
    Loading,
    Metrics,
    Output,
    Placed,
    Prefilled,
    Spoken,
    Started,
    Token,
    Usage,
    VoiceInfo,
    Waiting,
)
from umaserve.core.requests import Attachment, Audio, ChatTurn, Generate, Image, Media, Sampling, Speaking, Video
from umaserve.daemon.relays.relay_backend import DaemonBackend
from umaserve.dialects.chat import conversation as chat
from umaserve.dialects.chat.conversation import OURS, ChatDialect
from umaserve.dialects.chat.request import SYSTEM_PROMPTS
from umaserve.dialects.content import joined
from umaserve.dialects.dialect import Dialect, Reply
from umaserve.dialects.parameters import RequestLimits
from umaserve.scheduler.scheduler import Scheduler
from umaserve.sessions.session import Hold
from umaserve.sessions.targets import Targets
from umaserve.settings.daemon import Config
from umaserve.speech.voice import SAMPLE_RATE
from umaserve.stages.spoken import SpokenAnswer
from umaserve.wire import fields
from umaserve.wire.relay_messages import Request

# A busy machine is no fault of the code.

LIMITS = RequestLimits(max_prompt_bytes=64)
VOICE = VoiceInfo(("en", "de"), clones=False)
HELLO = [{"role": "user", "content": "Hello!"}]
READ = Generate(
    "chat_1",
    (ChatTurn("user", "Hello!"),),
    max_tokens=512,
    sampling=Sampling(temperature=0.7, top_p=0.8),
    enable_thinking=False,
    splits_thoughts=True,
)
DONE = Finished(FinishReason.STOP, Usage(42, 15))

Message = dict[str, Any]


def dialect(*, voice: VoiceInfo | None = VOICE, key: str | None = None, limits: RequestLimits = LIMITS) -> ChatDialect:
    return ChatDialect(limits, voice, lambda: "chat_1", None if key is None else key.__eq__)


def test_messages_without_a_model_mean_the_handshakes() -> None:
    for named, model in (({}, "b"), ({"model": "default"}, "b"), ({"model": None}, "b"), ({"model": "a"}, "a")):
        asked = ChatDialect(LIMITS, VOICE, lambda: "chat_1", asked_model="b")
        assert tell(asked, **named).model == model


def tell(asked: ChatDialect, **fields: Any) -> Generate:
    return asked.receive(json.dumps({"messages": HELLO, **fields}).encode())


def running(**fields: Any) -> ChatDialect:
    asked = dialect()
    tell(asked, **fields)
    return asked


def refusal(asked: ChatDialect, **fields: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        tell(asked, **fields)
    return raised.value


def messages(reply: Reply | None) -> list[Message]:
    if reply is None:
        return []
    return [json.loads(payload) for payload in (*reply.before, reply.payload)]


def sent(asked: ChatDialect, *outputs: Output) -> list[Message]:
    return [message for output in outputs for message in messages(asked.send(output))]


# What a request says.


def test_a_request_with_no_more_than_it_needs() -> None:
    assert tell(dialect()) == READ


def test_the_contracts_own_example_but_for_its_recording() -> None:
    request = tell(
        dialect(),
        streaming=True,
        generation={"max_new_tokens": 256, "length_penalty": 1.1},
        tts={"enabled": True},
        image={"max_slice_nums": None},
        omni_mode=False,
        enable_thinking=True,
    )
    assert (request.max_tokens, request.spoken, request.enable_thinking) == (256, Speaking(), True)
    assert request.sampling == Sampling(temperature=0.7, top_p=0.8, length_penalty=1.1)


@pytest.mark.parametrize(
    ("cap", "wanted", "given"), [(None, 10**9, 10**9), (100, None, 100), (100, 99, 99), (100, 513, 100)]
)
def test_an_answer_has_what_is_asked_for_within_the_operators_cap(
    cap: int | None, wanted: int | None, given: int
) -> None:
    asked = dialect(limits=RequestLimits(64, cap))
    assert tell(asked, generation={"max_new_tokens": wanted}).max_tokens == given


def test_cached_prefixes_are_used_unless_the_request_says_no() -> None:
    assert tell(dialect()).cache_prompt
    assert not tell(dialect(), generation={"cache_prompt": False}).cache_prompt


def test_content_may_be_a_list_of_texts() -> None:
    parts = [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "Reply."}]
    turns = [{"role": "system", "content": parts}, {"role": "user", "content": ""}]
    assert tell(dialect(), messages=turns).prompt == (ChatTurn("system", "Be brief.\nReply."), ChatTurn("user", ""))


@pytest.mark.parametrize(
    "fields",
    [
        dict.fromkeys(["streaming", "generation", "tts", "image", "omni_mode", "enable_thinking", "auth"]),
        {"generation": dict.fromkeys(["max_new_tokens", "temperature", "top_p", "length_penalty", "cache_prompt"])},
        {"tts": {"enabled": False, "mode": "voice_cloning", "ref_audio_path": "/etc/passwd", "language": "xx"}},
        {"image": {"max_slice_nums": 9, "use_image_id": False}, "omni_mode": True},
        {"session": "x", "Streaming": 5, "generation": {"speed": 9}, "image": {"size": "x"}},
    ],
)
def test_what_is_null_or_unknown_or_for_speech_and_images_that_are_not_there_changes_nothing(fields: Message) -> None:
    asked = dialect(voice=None)
    assert tell(asked, **fields) == READ
    assert [message["type"] for message in sent(asked, Token("a", 1))] == ["chunk"]


LOOK = {"image": {"max_slice_nums": 9, "use_image_id": False}, "omni_mode": True}


def item(kind: str, **more: Any) -> Message:
    return {"type": kind, "text" if kind == "text" else "data": "ab", **more}


@pytest.mark.parametrize(
    ("items", "fields", "content", "media"),
    [
        ([item("image")], {}, "", {0: Image("ab", "data", numbered=True)}),
        ([item("image")], LOOK, "", {0: Image("ab", "data", 9, False)}),
        ([item("audio")], LOOK, "", {0: Audio("ab", "data", 16_000)}),
        ([item("audio", sample_rate=384_000)], {}, "", {0: Audio("ab", "data", 384_000)}),
        ([item("video")], {}, "", {0: Video("ab", "data")}),
        ([item("video", stack_frames=16)], LOOK, "", {0: Video("ab", "data", True, 16, 9)}),
        (
            [item("text"), item("text"), item("image"), item("text"), item("audio")],
            {},
            "ab\nabab",
            {5: Image("ab", "data", numbered=True), 7: Audio("ab", "data", 16_000)},
        ),
    ],
)
def test_media_stand_where_their_items_stood(
    items: list[Message], fields: Message, content: str, media: dict[int, Media]
) -> None:
    (_system, turn) = tell(
        dialect(), messages=[{"role": "system", "content": "Be brief."}, {"role": "user", "content": items}], **fields
    ).prompt
    paths = [f"messages[1].content[{i}].data" for i, one in enumerate(items) if one["type"] != "text"]
    attached = (replace(one, field=path) for one, path in zip(media.values(), paths, strict=True))
    attachments = tuple(map(Attachment, media, attached))
    assert turn == ChatTurn("user", content, attachments=attachments)


@given(st.lists(st.text(max_size=3) | st.just(Image("ab", "data")), max_size=12), st.sampled_from(["", "\n"]))
def test_the_parts_can_be_told_from_what_they_were_joined_to(parts: list[str | Image], between: str) -> None:
    content, attachments = joined(parts, between)
    edges = [0, *(attachment.at for attachment in attachments), len(content)]
    runs = [content[start:end] for start, end in itertools.pairwise(edges)]
    texts: list[list[str]] = [[]]
    for part in parts:
        if isinstance(part, str):
            texts[-1].append(part)
        else:
            texts.append([])
    assert runs == [between.join(run) for run in texts]


def test_as_many_media_as_there_may_be() -> None:
    turns = [{"role": "user", "content": [item("image")] * 32}] * 2
    assert sum(len(turn.attachments) for turn in tell(dialect(), messages=turns).prompt) == 64


def test_media_are_no_part_of_a_prompts_bytes() -> None:
    tell(dialect(), **user([{"type": "image", "data": "A" * 1000}, {"type": "text", "text": "x" * 64}]))
    error = refusal(dialect(), **user([item("image"), {"type": "text", "text": "x" * 65}]))
    assert error.fault is Fault.PROMPT_TOO_LARGE


@pytest.mark.parametrize("mode", ["default", "voice_cloning"])
def test_a_voice_that_clones_is_given_the_recording(mode: str) -> None:
    asked = dialect(voice=VoiceInfo(("en",), clones=True))
    tts = {"mode": mode, "ref_audio_data": "ab", "ref_audio_path": "ignored.wav"}
    assert tell(asked, tts=tts).spoken == Speaking(Audio("ab", "tts.ref_audio_data", 16_000))


@pytest.mark.parametrize(
    ("tts", "spoken"),
    [
        ({}, Speaking()),
        ({"ref_audio_data": ""}, Speaking()),
        ({"ref_audio_data": "ab", "enabled": False}, None),
    ],
)
def test_without_a_recording_the_daemons_own_voice_speaks(tts: Message, spoken: Speaking | None) -> None:
    assert tell(dialect(voice=VoiceInfo(("en",), clones=True)), tts=tts).spoken == spoken


@pytest.mark.parametrize("name", ["auth", "\\u0061uth"])
def test_what_is_to_be_recorded_has_no_key_in_it(name: str) -> None:
    asked = ChatDialect(LIMITS, None, lambda: "chat_1", recorded=True)
    request = asked.receive(f'{{"{name}":"uma-secret","messages":[{{"role":"user","content":"Hello!"}}]}}'.encode())
    assert request.recorded is not None
    assert json.loads(request.recorded) == {"messages": HELLO}
    plain = b'{ "messages": [{"role":"user","content":"Hello!"}] }'
    assert ChatDialect(LIMITS, None, lambda: "chat_1", recorded=True).receive(plain).recorded == plain


def test_what_is_recorded_of_long_media_has_them_and_no_key() -> None:
    data = "A" * (1 << 20)
    messages = [{"role": "user", "content": [{"type": "image", "data": data}]}]
    asked = ChatDialect(LIMITS, None, lambda: "chat_1", authenticate=lambda key: True, recorded=True)
    request = asked.receive(json.dumps({"auth": "uma-secret", "messages": messages}).encode())
    assert request.recorded is not None
    assert json.loads(request.recorded) == {"messages": messages}
    (turn,) = request.prompt
    assert turn.attachments[0].media == Image(memoryview(data.encode()), "messages[0].content[0].data", None, True)


def test_the_daemons_own_recording_is_cloned_where_a_mode_wants_one_or_its_path_is_named() -> None:
    own = Audio("ab", "ref_audio", 16_000)
    voice = VoiceInfo(("en",), clones=True, reference=own, reference_path="voices/eve.wav")
    for tts in ({"mode": "voice_cloning"}, {"mode": "audio_roleplay"}, {"ref_audio_path": "voices/eve.wav"}):
        assert tell(dialect(voice=voice), tts=tts).spoken == Speaking(own)
    assert tell(dialect(voice=voice), tts={}).spoken == Speaking()
    theirs = tell(dialect(voice=voice), tts={"mode": "voice_cloning", "ref_audio_data": "cd"}).spoken
    assert theirs == Speaking(Audio("cd", "tts.ref_audio_data", 16_000))


def test_only_cloning_needs_a_recording() -> None:
    voice = VoiceInfo(("en",), clones=True)
    assert refusal(dialect(voice=voice), tts={"mode": "voice_cloning"}).message == (
        'tts.ref_audio_data: expected a recording where mode is "voice_cloning", since the daemon has none of its own'
    )
    assert tell(dialect(voice=voice), tts={"mode": "audio_roleplay"}).spoken == Speaking()


def test_a_path_is_the_daemons_own() -> None:
    voice = VoiceInfo(("en",), clones=True, reference=Audio("ab", "ref_audio", 16_000), reference_path="eve.wav")
    assert refusal(dialect(voice=voice), tts={"ref_audio_path": "/etc/passwd"}).message == (
        "tts.ref_audio_path: expected to be absent, or what the daemon's --ref-audio names; send ref_audio_data instead"
    )


@pytest.mark.parametrize("mode", ["default", "audio_assistant", "omni"])
@pytest.mark.parametrize("named", [{"ref_audio_data": "ab"}, {"ref_audio_path": "assets/eve.wav"}])
@pytest.mark.parametrize("streaming", [False, True])
def test_a_voice_that_does_not_clone_speaks_as_itself_and_says_so(mode: str, named: Message, streaming: bool) -> None:
    asked = dialect()
    assert tell(asked, streaming=streaming, tts={"mode": mode, **named}).spoken == Speaking()
    assert sent(asked, Prefilled(42)) == [{"type": "prefill_done", "input_tokens": 42, "voice": "default"}]


@pytest.mark.parametrize(
    "tts",
    [
        {},
        {"mode": "audio_roleplay"},
        {"ref_audio_data": "", "ref_audio_path": ""},
        {"ref_audio_data": "ab", "enabled": False},
    ],
)
def test_where_no_other_voice_was_named_nothing_is_said_of_it(tts: Message) -> None:
    assert sent(running(tts=tts), Prefilled(42)) == [{"type": "prefill_done", "input_tokens": 42}]


def test_a_recording_that_is_cloned_is_not_told_as_ignored() -> None:
    asked = dialect(voice=VoiceInfo(("en",), clones=True))
    tell(asked, tts={"ref_audio_data": "ab"})
    assert sent(asked, Prefilled(42)) == [{"type": "prefill_done", "input_tokens": 42}]


@pytest.mark.parametrize("clones", [False, True])
def test_a_recording_of_more_than_a_minute_is_refused_by_its_length(clones: bool) -> None:
    voice = VoiceInfo(("en",), clones=clones)
    longest = base64.b64encode(bytes(60 * 16_000 * 4)).decode()
    spoken = tell(dialect(voice=voice), tts={"ref_audio_data": longest}).spoken
    assert spoken == Speaking(Audio(longest, "tts.ref_audio_data", 16_000) if clones else None)
    error = refusal(dialect(voice=voice), tts={"ref_audio_data": longest + "AAAA"})
    assert (error.fault, error.message) == (
        Fault.BAD_REQUEST,
        "tts.ref_audio_data: expected at most 60 s of float32 samples of 16000 Hz in base64, 5120000 characters, "
        "got 5120004",
    )


@pytest.mark.parametrize("mode", SYSTEM_PROMPTS)
def test_a_mode_gives_a_system_prompt_to_a_conversation_that_has_none(mode: str) -> None:
    voice = VoiceInfo(("en",), clones=True, reference=Audio("ab", "ref_audio", 16_000))
    turns = tell(dialect(voice=voice), tts={"mode": mode}).prompt
    system = () if SYSTEM_PROMPTS[mode] is None else (ChatTurn("system", str(SYSTEM_PROMPTS[mode])),)
    assert turns == (*system, *READ.prompt)
    own = {"role": "system", "content": "Be brief."}
    assert tell(dialect(voice=voice), messages=[own, *HELLO], tts={"mode": mode}).prompt == (
        ChatTurn("system", "Be brief."),
        *READ.prompt,
    )


@pytest.mark.parametrize(
    ("tag", "language"), [("en", "en"), ("EN", "en"), ("en-GB", "en"), ("de_AT", "de"), ("", ""), (None, "")]
)
def test_languages_that_the_voice_speaks(tag: str | None, language: str) -> None:
    assert tell(dialect(), tts={"language": tag}).spoken == Speaking(language=language)


def user(content: object) -> Message:
    return {"messages": [{"role": "user", "content": content}]}


CANT = "since this daemon's voice can't clone another"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"messages": None}, "messages: expected an array of 1 to 1024 messages, got null"),
        ({"messages": []}, "messages: expected an array of 1 to 1024 messages, got 0"),
        ({"messages": [5]}, "messages[0]: expected an object, got a whole number"),
        ({"messages": [{}]}, 'messages[0].role: expected "system" or "user" or "assistant", got null'),
        (
            {"messages": [{"role": "tool", "content": ""}]},
            'messages[0].role: expected "system" or "user" or "assistant", got "tool"',
        ),
        (user(None), "messages[0].content: expected a string or an array of content, got null"),
        (user([]), "messages[0].content: expected an array of 1 to 256 items, got 0"),
        (user(["x"]), "messages[0].content[0]: expected an object, got a string"),
        (user([{"type": "text"}]), "messages[0].content[0].text: expected a string, got null"),
        (
            user([{"type": "file", "data": ""}]),
            'messages[0].content[0].type: expected "text" or "image" or "audio" or "video", got "file"',
        ),
        (
            user([{"type": "text", "text": "a"}, {"type": "audio", "data": ""}]),
            "messages[0].content[1].data: expected a non-empty string, got an empty one",
        ),
        (user([{"type": "image"}]), "messages[0].content[0].data: expected a non-empty string, got null"),
        (
            user([{"type": "video", "data": []}]),
            "messages[0].content[0].data: expected a non-empty string, got an array",
        ),
        (
            user([{"type": "audio", "data": "A", "sample_rate": 999}]),
            "messages[0].content[0].sample_rate: expected a whole number from 1000 to 384000, got 999",
        ),
        (
            user([{"type": "video", "data": "A", "stack_frames": 17}]),
            "messages[0].content[0].stack_frames: expected a whole number from 1 to 16, got 17",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "data": "A"}] * 13}] * 5},
            "messages: expected at most 64 images, sounds and videos in all, got 65",
        ),
        ({"streaming": "yes"}, "streaming: expected true or false, got a string"),
        ({"enable_thinking": 1}, "enable_thinking: expected true or false, got a whole number"),
        ({"omni_mode": 1}, "omni_mode: expected true or false, got a whole number"),
        ({"generation": 5}, "generation: expected an object, got a whole number"),
        (
            {"generation": {"max_new_tokens": 0}},
            "generation.max_new_tokens: expected a whole number from 1, got 0",
        ),
        ({"generation": {"temperature": -1}}, "generation.temperature: expected a number from 0 to 10, got -1"),
        ({"generation": {"top_p": 0}}, "generation.top_p: expected a number above 0 up to 1, got 0"),
        ({"generation": {"length_penalty": 0}}, "generation.length_penalty: expected a number from 0.1 to 10, got 0"),
        ({"image": []}, "image: expected an object, got an array"),
        ({"image": {"max_slice_nums": 0}}, "image.max_slice_nums: expected a whole number from 1 to 64, got 0"),
        ({"image": {"use_image_id": 1}}, "image.use_image_id: expected true or false, got a whole number"),
        ({"tts": True}, "tts: expected an object, got a boolean"),
        ({"tts": {"enabled": "yes"}}, "tts.enabled: expected true or false, got a string"),
        ({"tts": {"ref_audio_data": 5}}, "tts.ref_audio_data: expected a string, got a whole number"),
        (
            {"tts": {"mode": "audio_roleplay", "ref_audio_data": "AAAA"}},
            f'tts.ref_audio_data: expected to be absent where mode is "audio_roleplay", {CANT}',
        ),
        (
            {"tts": {"mode": "audio_roleplay", "ref_audio_path": "../voice.wav"}},
            f'tts.ref_audio_path: expected to be absent where mode is "audio_roleplay", {CANT}',
        ),
        (
            {"tts": {"mode": "voice_cloning", "ref_audio_data": "AAAA"}},
            f'tts.mode: expected "default" or "audio_assistant" or "omni" or "audio_roleplay", {CANT}, '
            'got "voice_cloning"',
        ),
        (
            {"tts": {"language": "zh"}},
            'tts.language: expected "en" or "de", which this daemon\'s voice speaks, got "zh"',
        ),
    ],
)
def test_a_request_that_is_refused(fields: Message, message: str) -> None:
    asked = dialect()
    error = refusal(asked, **fields)
    assert (error.fault, error.message) == (Fault.BAD_REQUEST, message)
    reply = asked.refuse(error)
    assert messages(reply) == [{"type": "error", "error": message}]
    assert (reply.close, reply.code) == (True, 1008)


def test_a_mode_that_is_none_of_the_contracts() -> None:
    assert refusal(dialect(), tts={"mode": "sing"}).message.endswith('"voice_cloning", got "sing"')


def test_a_daemon_without_a_voice_says_what_to_install() -> None:
    assert refusal(dialect(voice=None), tts={}).message == (
        "tts.enabled: expected false, since this daemon has no voice: its operator can pip install 'umaserve[speech]'"
    )


def test_a_conversation_may_have_as_many_bytes_as_a_prompt() -> None:
    turns = [
        {"role": "user", "content": "é" * 16},
        {"role": "assistant", "content": [{"type": "text", "text": "x" * 32}]},
    ]
    tell(dialect(), messages=turns)
    error = refusal(dialect(), messages=[*turns, *HELLO])
    assert (error.fault, error.message) == (Fault.PROMPT_TOO_LARGE, "messages: expected at most 64 bytes, got 70")


@pytest.mark.parametrize(
    ("payload", "message"),
    [(b"Hello", "payload: not valid JSON: "), (b"[]", "payload: expected an object, got an array")],
)
def test_a_payload_that_is_no_object(payload: bytes, message: str) -> None:
    with pytest.raises(RequestError, match=f"^{re.escape(message)}"):
        dialect().receive(payload)


def test_a_second_message_is_an_error_that_ends_the_first() -> None:
    asked = running()
    error = refusal(asked)
    assert error.message == "payload: expected one message per connection, got another"
    assert asked.refuse(error).close
    with pytest.raises(RuntimeError):
        asked.send(Token("a", 1))


@pytest.mark.parametrize("wrong", [None, 5, "", "mellon"])
def test_a_message_without_its_key_is_refused_before_it_is_read(wrong: object) -> None:
    asked = dialect(key="sesame")
    error = refusal(asked, auth=wrong, messages=5)
    assert (error.fault, error.message[:5]) == (Fault.UNAUTHORIZED, "auth:")
    assert asked.refuse(error)[1:] == (True, (), 1008)
    assert tell(dialect(key="sesame"), auth="sesame") == READ


@pytest.mark.parametrize("fault", Fault)
def test_the_close_code_tells_the_clients_faults_from_ours(fault: Fault) -> None:
    reply = dialect().fail(RequestError(fault, "request", "why"))
    assert (reply.close, reply.code) == (True, 1011 if fault in OURS else 1008)


@pytest.mark.parametrize("filler", [b"[]", b"{}", b'"a,b"', b"0"])
def test_a_message_of_too_many_values_is_not_parsed(filler: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "MAX_VALUES", 40)
    monkeypatch.setattr(fields, "_COUNTED_AT_ONCE", 16)
    with pytest.raises(RequestError) as raised:
        dialect().receive(b"[" + b",".join([filler] * 41))
    assert raised.value.message == "payload: expected at most 40 commas and brackets, got more"
    assert tell(dialect(), x="." * 1000) == READ


@given(st.recursive(st.integers(0, 9), lambda inner: st.lists(inner) | st.dictionaries(st.just("k"), inner)))
def test_no_more_values_are_parsed_than_may_be(value: Any) -> None:
    payload, n = json.dumps(value).encode(), n_values(value)
    if n > 1:
        with pytest.raises(RequestError, match=r"^payload: expected at most"):
            fields.parse_json(payload, min(n - 2, len(payload) - 1))
    assert fields.parse_json(payload, 2 * n) == value


def n_values(value: Any) -> int:
    inner = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return 1 + sum(map(n_values, inner))


# What comes back.


SAID = {"text": "Hello", "generated_tokens": 15, "input_tokens": 42}


def test_a_stream_and_its_messages() -> None:
    asked: Dialect = running(tts={})
    outputs = (Started(), Placed(), Prefilled(42), Token("Hel", 1), Token("", 2), Spoken(b"1234"), Token("lo", 3), DONE)
    replies = [asked.send(output) for output in outputs]
    assert [message for reply in replies for message in messages(reply)] == [
        {"type": "prefill_done", "input_tokens": 42},
        {"type": "chunk", "text_delta": "Hel", "audio_data": None},
        {"type": "chunk", "text_delta": "", "audio_data": base64.b64encode(b"1234").decode()},
        {"type": "chunk", "text_delta": "lo", "audio_data": None},
        {"type": "done", **SAID, "audio_data": None, "recording_session_id": None},
    ]
    assert [reply.close for reply in replies if reply] == [False] * 4 + [True]
    assert replies[-1] is not None
    assert replies[-1].code == 1000


@pytest.mark.parametrize(("tts", "audio"), [({}, "MTIzNDU2Nzg="), (None, None)])
def test_without_a_stream_the_end_has_it_all(tts: Message | None, audio: str | None) -> None:
    asked = running(streaming=False, tts=tts)
    spoken = [Spoken(b"1234"), Spoken(b"5678")] if tts is not None else []
    assert sent(asked, Prefilled(42), Token("Hel", 1), *spoken, Token("lo", 2), DONE) == [
        {"type": "prefill_done", "input_tokens": 42},
        {"type": "done", **SAID, "audio_data": audio, "recording_session_id": None},
    ]


def test_the_end_names_the_recording() -> None:
    done = sent(running(), replace(DONE, recording="chat_0a1b2c3d4e5f"))[-1]
    assert done["recording_session_id"] == "chat_0a1b2c3d4e5f"


def test_who_waits_is_told_where_and_who_does_not_is_told_nothing() -> None:
    asked = running()
    assert sent(asked, Loading(0.5, 1.0), Started()) == []
    queue = (Waiting(3, 5, None), Waiting(3, 5, None), Waiting(1, 2, 1.5), Placed(), Waiting(1, 1, 1.0))
    assert sent(asked, *queue) == [
        {"type": "queued", "position": 3, "estimated_wait_s": None, "queue_length": 5, "ticket_id": "chat_1"},
        {"type": "queue_update", "position": 1, "estimated_wait_s": 1.5, "queue_length": 2},
        {"type": "queue_done"},
    ]


@pytest.mark.parametrize("output", [Started(), Token("a", 1), Spoken(b""), DONE, Metrics({})])
def test_output_before_a_request_or_after_its_end_is_our_bug(output: Output) -> None:
    ended = running()
    ended.send(DONE)
    for asked in (dialect(), ended):
        with pytest.raises(RuntimeError):
            asked.send(output)


# Thoughts.


def cut(text: str, ends: list[int]) -> list[str]:
    edges = [0, *sorted(end % (len(text) + 1) for end in ends), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


ENDS = st.lists(st.integers(0, 100), max_size=12)


@given(ends=ENDS)
@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("Hello <think>there</think>.", "Hello <think>there</think>."),
        ("<think>\nA greeting.</thin>k\n</think>\n\nHello!", "Hello!"),
        (" \n<think></think>Hello </think> <think>", "Hello </think> <think>"),
        ("<think>no end </think", ""),
        ("<think>no answer</think> \n", ""),
        ("<thin", "<thin"),
        ("\n <thing>", "\n <thing>"),
        ("  ", "  "),
        ("", ""),
    ],
)
def test_thoughts_at_the_beginning_are_left_out_however_the_text_is_cut(text: str, left: str, ends: list[int]) -> None:
    pieces = cut(text, ends)
    for enable_thinking, shown in ((False, left), (True, text)):
        asked = running(enable_thinking=enable_thinking)
        told = sent(asked, *split_tokens(pieces), DONE)
        assert "".join(message["text_delta"] for message in told[:-1]) == told[-1]["text"] == shown


# Speech.


class Answer:
    """A spoken answer between made-up tokens and a list of outputs."""

    def __init__(self, *unspeakable: str, speaker: Audio | None = None) -> None:
        self.outputs: list[Output | RequestError] = []
        self.worker = SteppedWorker()
        self.over: list[SpokenAnswer] = []
        voice = StandInVoice(*unspeakable)
        self.spoken = SpokenAnswer(voice, self.worker, self.outputs.append, self.over.append, Speaking(speaker))

    def take(self, *texts: str) -> None:
        for text in texts:
            self.spoken.take(Token(text, 1))

    @property
    def said(self) -> list[str]:
        return [heard(output.sound) for output in self.outputs if isinstance(output, Spoken)]


def test_all_is_handed_on_at_once_and_the_end_waits_for_the_last_sentence() -> None:
    one = Answer()
    one.spoken.take(Prefilled(3))
    one.take("One", ". Two.", " Three")
    one.spoken.take(DONE)
    assert one.outputs == [Prefilled(3), Token("One", 1), Token(". Two.", 1), Token(" Three", 1)]
    while one.worker.jobs:
        assert DONE not in one.outputs
        one.worker.step()
    assert one.said == ["One.", "Two.", "Three"]
    assert one.outputs[-1] == DONE
    assert one.over == [one.spoken]


@given(ends=ENDS)
def test_thoughts_are_never_spoken(ends: list[int]) -> None:
    one = Answer()
    for token in split_tokens(cut("<think>Well. A greeting.</think>\nHello. There.", ends)):
        one.spoken.take(token)
    one.spoken.take(DONE)
    while one.worker.jobs:
        one.worker.step()
    assert one.said == ["Hello.", "There."]


def test_a_long_sentence_comes_in_segments_that_clients_take_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = np.linspace(-1, 1, 5 * SAMPLE_RATE, dtype=np.float32)
    monkeypatch.setattr(StandInVoice, "speak", lambda *_: sound)
    one = Answer()
    one.take("One. Two")
    one.worker.step()
    segments = [output.sound for output in one.outputs if isinstance(output, Spoken)]
    assert [len(pcm) // 4 for pcm in segments] == [2 * SAMPLE_RATE, 2 * SAMPLE_RATE, SAMPLE_RATE]
    assert b"".join(segments) == sound.tobytes()


def test_a_reader_that_is_behind_holds_the_next_sentence() -> None:
    one = Answer()
    one.take("One. Two. Three. ")
    one.spoken.hold()
    one.worker.step()
    assert one.said == ["One."]
    assert not one.worker.jobs
    one.spoken.release()
    one.worker.step()
    assert one.said == ["One.", "Two."]
    one.spoken.hold()
    one.spoken.abandon()
    one.spoken.release()
    while one.worker.jobs:
        one.worker.step()
    assert one.said == ["One.", "Two."]


def test_a_failing_voice_ends_the_answer_with_its_words() -> None:
    one = Answer("Two")
    one.take("One. Two. Three. ")
    one.worker.step()
    one.worker.step()
    failure = one.outputs[-1]
    assert isinstance(failure, RequestError)
    assert (failure.fault, failure.message) == (Fault.DECODE_FAILED, "tts: told to fail")
    assert not one.worker.jobs
    assert one.over[-1] is one.spoken


def test_a_mistake_of_ours_in_handing_on_its_sound_ends_the_answer(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = Answer()
    one.take("One. Two. ")
    deliver = one.spoken._deliver

    def fail_at_sound(output: Output | RequestError) -> None:
        if isinstance(output, Spoken):
            raise LookupError("a mistake of ours")
        deliver(output)

    monkeypatch.setattr(one.spoken, "_deliver", fail_at_sound)
    one.worker.step()
    failure = one.outputs[-1]
    assert isinstance(failure, RequestError)
    assert failure.message == "tts: the server failed on the answer's speech"
    assert one.over[-1] is one.spoken
    assert "a mistake of ours" in caplog.text


def test_a_recording_that_is_none_ends_the_answer_as_the_clients_mistake() -> None:
    one = Answer(speaker=Audio("AAAA", "tts.ref_audio_data", 16_000))
    one.spoken.hold()
    one.spoken.take(Prefilled(3))
    one.worker.step()
    failure = one.outputs[-1]
    assert isinstance(failure, RequestError)
    assert failure.fault is Fault.BAD_REQUEST
    assert failure.message == "tts.ref_audio_data: expected float32 samples, 4 bytes each, at least one, got 3 bytes"
    assert not one.worker.jobs
    assert one.over[-1] is one.spoken


def test_an_error_of_the_answer_comes_at_once() -> None:
    one = Answer()
    one.take("One. Two. ")
    error = RequestError(Fault.TIMED_OUT, "request", "why")
    one.spoken.take(error)
    assert one.outputs[-1] is error
    while one.worker.jobs:
        one.worker.step()
    assert one.outputs[-1] is error


# The whole of it, on the stand-in engine, by the way that relayed conversations come.

CONFIG = Config(max_tokens=512)
TYPES = {
    "queued": "q",
    "queue_update": "u",
    "queue_done": "x",
    "prefill_done": "p",
    "chunk": "c",
    "done": "d",
    "error": "e",
}
ORDER = re.compile("(qu*(x(pc*)?)?|pc*)?e?|(qu*x)?pc*d")
"""What may have come of a conversation at any time."""


class Client:
    """Implements ``worker.backend.Reply``."""

    def __init__(self, body: Message) -> None:
        self.body = body
        self.received: list[Message] = []
        self.closed = self.left = self.behind = False

    def chunk(self, text: str, status: int, headers: object) -> None:
        assert not self.closed
        assert not self.left
        self.received.append(json.loads(text))

    def complete(self, status: int, headers: object, body: str, token_counts: object = None) -> None:
        assert (status, body) == (200, "")
        assert not self.closed
        self.closed = True

    @property
    def types(self) -> str:
        return "".join(TYPES[message["type"]] for message in self.received)

    @property
    def said(self) -> str:
        parts = [message["audio_data"] for message in self.received if message.get("audio_data")]
        return "".join(heard(base64.b64decode(part)) for part in parts)

    def check(self, unspeakable: str) -> None:
        """That the order is kept, and an answer that came to its end is whole."""
        types = self.types
        assert ORDER.fullmatch(types), types
        assert self.closed == (types[-1:] in ("d", "e")), "the connection ends with its last message"
        if types.endswith("d"):
            (turn,) = self.body["messages"]
            text = answer(turn["content"], self.body["generation"]["max_new_tokens"])
            spoken = self.body["tts"] is not None
            assert self.received[-1]["text"] == text
            assert self.said == (text if spoken else "")
            if self.body["streaming"]:
                assert "".join(message["text_delta"] for message in self.received if message["type"] == "chunk") == text
                assert self.received[-1]["audio_data"] is None
            else:
                assert "c" not in types
            assert unspeakable not in text or not spoken


class Daemon(DaemonWorld):
    """With a scheduler, and a voice that speaks when it is told to."""

    def __init__(self, unspeakable: str = "#") -> None:
        engine = StandInEngine(slots=1, cells=2000, sequence_tokens=700)
        super().__init__(CONFIG, engine, StandInVoice(unspeakable))
        self.scheduler = Scheduler(
            self.sessions, engine, self.compute, self.preparing, self.preparing, Targets(1.0, 0.08), self.clock
        )
        self.backend = DaemonBackend(self.services)
        self.clients: list[tuple[Client, Any]] = []

    def connect(self, content: str = "hello", **body: Any) -> Client:
        client = Client({"messages": [{"role": "user", "content": content}], **body})
        request = Request(str(len(self.clients)), "stand-in", "/ws/chat", True, json.dumps(client.body))
        self.clients.append((client, self.backend.start(request, client)))
        return client

    def turn(self, seconds: float = 0.01) -> None:
        self.clock.now += seconds
        self.compute.step()
        self.preparing.step()
        self.scheduler.pump()
        self.scheduler.deliver()
        super().turn()

    def finish(self) -> None:
        for _ in range(5000):
            if self.scheduler.idle and self.speech.idle and not self.speaking.jobs and not self.compute.jobs:
                return
            self.turn()
            self.speaking.step()
        raise AssertionError("it never came to an end")


@pytest.fixture
def served():
    made = Daemon()
    yield made
    made.close()


def test_a_conversation_with_speech(served: Daemon) -> None:
    client = served.connect(streaming=True, tts={}, generation={"max_new_tokens": 450})
    for _ in range(1000):
        served.turn()
    assert served.scheduler.idle, "the engine is free while the voice is not"
    assert re.fullmatch("pc+", client.types)
    assert not served.speech.idle
    served.finish()
    client.check("#")
    assert client.types.endswith("d")
    assert sum(bool(message.get("audio_data")) for message in client.received) > 1


def test_a_client_that_leaves_costs_neither_engine_nor_voice_anything_more(served: Daemon) -> None:
    client = served.connect(tts={}, generation={"max_new_tokens": 450})
    for _ in range(300):
        served.turn()
    client.left = True
    served.clients[0][1].abort()
    served.turn()
    served.turn()
    assert list(served.sessions.running()) == []
    assert served.speech.idle
    served.finish()


def test_a_client_that_is_behind_holds_its_session_and_its_speech(served: Daemon) -> None:
    client = served.connect(streaming=True, tts={}, generation={"max_new_tokens": 450})
    for _ in range(250):
        served.turn()
    served.clients[0][1].pause(True)
    served.speaking.step()
    for _ in range(5):
        served.turn()
    so_far = len(client.received)
    (session,) = served.sessions.running()
    assert session.holds == {Hold.READER}
    for _ in range(50):
        served.turn()
        served.speaking.step()
    assert len(client.received) == so_far
    served.clients[0][1].pause(False)
    served.finish()
    client.check("#")
    assert client.types.endswith("d")


def test_who_really_waits_is_told_where_it_stands(served: Daemon) -> None:
    first, second, third = (served.connect(tts=None, generation={"max_new_tokens": 60}) for _ in range(3))
    for seconds in (0.0, 0.0, 0.0, 0.5, 1.0):
        served.turn(seconds)
        served.scheduler.tell_waiting()
    served.finish()
    for client in (first, second, third):
        client.body["streaming"] = True
        client.check("#")
    assert [client.types.rstrip("cd") for client in (first, second, third)] == ["p", "qxp", "qxp"]
    assert [client.received[0]["position"] for client in (second, third)] == [1, 2]


def test_what_is_spoken_when_the_daemon_ends_is_told_so(served: Daemon) -> None:
    client = served.connect(tts={}, generation={"max_new_tokens": 5})
    for _ in range(30):
        served.turn()
    served.speech.fail_all(RequestError(Fault.SHUTTING_DOWN, "request", "the server is shutting down"))
    assert client.received[-1] == {"type": "error", "error": "request: the server is shutting down"}
    assert client.closed
    served.finish()


class Conversations(RuleBasedStateMachine):
    """Whatever happens, and in whatever order, each client hears what the contract says, in its order, to one end."""

    @initialize(unspeakable=st.sampled_from(["#", "#", "a", "q"]))
    def begin(self, unspeakable: str) -> None:
        self.unspeakable = unspeakable
        self.daemon = Daemon(unspeakable)

    def teardown(self) -> None:
        if not hasattr(self, "daemon"):
            return
        for client, job in self.daemon.clients:
            if client.behind and not (client.left or client.closed):
                job.pause(False)
        self.daemon.finish()
        for client, _job in self.daemon.clients:
            client.check(self.unspeakable)
            assert client.closed != client.left
        assert list(self.daemon.sessions.running()) == []
        self.daemon.close()

    def there(self) -> list[tuple[Client, Any]]:
        return [(client, job) for client, job in self.daemon.clients if not (client.left or client.closed)]

    @precondition(lambda self: len(self.there()) < 6)
    @rule(
        content=st.sampled_from(["hello", "so long", "?ends", "?when it likes", "refuse"]),
        streaming=st.booleans(),
        spoken=st.booleans(),
        n=st.sampled_from([1, 5, 60, 230]),
    )
    def connect(self, content: str, streaming: bool, spoken: bool, n: int) -> None:
        tts = {"language": "en"} if spoken else None
        self.daemon.connect(content, streaming=streaming, tts=tts, generation={"max_new_tokens": n})

    @rule(n=st.sampled_from([1, 3, 40, 300]))
    def compute(self, n: int) -> None:
        for _ in range(n):
            self.daemon.turn()

    @rule()
    def speak(self) -> None:
        self.daemon.speaking.step()
        self.daemon.turn()

    @rule()
    def wait(self) -> None:
        self.daemon.turn(1.5)
        self.daemon.scheduler.tell_waiting()
        self.daemon.turn()

    @precondition(lambda self: self.there())
    @rule(data=st.data(), behind=st.booleans())
    def pause(self, data: st.DataObject, behind: bool) -> None:
        client, job = data.draw(st.sampled_from(self.there()))
        client.behind = behind
        job.pause(behind)

    @precondition(lambda self: self.there())
    @rule(data=st.data(), what=st.sampled_from(["nothing", "nothing", "leave", "say more"]))
    def misbehave(self, data: st.DataObject, what: str) -> None:
        client, job = data.draw(st.sampled_from(self.there()))
        if what == "leave":
            client.left = True
            job.abort()
        elif what == "say more":
            job.frame("{}")
            assert client.types.endswith("e")

    @invariant()
    def all_is_in_order(self) -> None:
        for client, _job in self.daemon.clients if hasattr(self, "daemon") else ():
            client.check(self.unspeakable)


TestConversations = Conversations.TestCase
TestConversations.settings = settings(max_examples=examples(60), stateful_step_count=25)
