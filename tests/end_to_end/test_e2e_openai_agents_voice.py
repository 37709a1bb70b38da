"""OpenAI's Agents SDK with sound: its realtime sessions, and its pipeline of transcription, agent and speech."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import pytest
import standin_projectors as projectors
from daemon import Daemon
from openai import AsyncOpenAI, OpenAI

pytest.importorskip("hibari", reason="hibari-tts is not installed")
pytest.importorskip("agents.voice", reason="openai-agents is not installed (umaserve[peers])")

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, function_tool, set_tracing_disabled
from agents.realtime import (
    RealtimeAgent,
    RealtimeModelSendRawMessage,
    RealtimeRunner,
    RealtimeSession,
    RealtimeSessionEvent,
)
from agents.voice import (
    AudioInput,
    OpenAIVoiceModelProvider,
    SingleAgentVoiceWorkflow,
    VoicePipeline,
    VoicePipelineConfig,
)

set_tracing_disabled(True)
RATE = 24_000
PACKET = 2 * RATE // 50
"""Bytes of 20 ms, as a microphone sends them."""
HANGS_S = 300
MODEL = "default"
N_TOKENS = 40
RESULT = "The sky is sunny."
TEXT = {"output_modalities": ["text"], "turn_detection": None}
# The SDK has no setting for it. At random, one answer in twenty is of emoji alone, which nobody can speak.
GREEDY = RealtimeModelSendRawMessage(
    message={"type": "session.update", "other_data": {"session": {"type": "realtime", "temperature": 0}}}
)
Events = list[RealtimeSessionEvent]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A daemon that hears by a tiny projector of random weights."""
    folder = tmp_path_factory.mktemp("daemon")
    flags = ("--http", "127.0.0.1:0", "--mmproj", str(projectors.audio(folder / "mmproj.gguf")), "--no-speculation")
    daemon = Daemon(folder, *flags, env={"UMA_THREADS": "1"})
    yield f"http://{daemon.http}"
    assert daemon.stop() == 0, daemon.logs
    assert "Traceback" not in daemon.logs, daemon.logs


@pytest.fixture(scope="module")
def question(url: str) -> bytes:
    """A spoken question, with silence on both sides: the daemon's own voice asks it."""
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        sound = client.audio.speech.create(
            model="any", voice="any", input="How are you today, my friend?", response_format="pcm"
        ).content
    return bytes(RATE) + sound + bytes(2 * RATE)


def talk(
    url: str,
    agent: RealtimeAgent[Any],
    say: Callable[[RealtimeSession], Any],
    over: Callable[[RealtimeSession, RealtimeSessionEvent], Any],
    **settings: Any,
) -> tuple[Events, list[Any]]:
    """The events of a session until ``over`` one of them, and its history."""
    address = url.replace("http://", "ws://") + f"/v1/realtime?model={MODEL}"
    settings = {"model_name": MODEL, "max_output_tokens": N_TOKENS, **settings}
    told: Events = []

    async def session() -> list[Any]:
        config: Any = {"url": address, "headers": {"Authorization": "none"}, "initial_model_settings": settings}
        async with await RealtimeRunner(agent).run(model_config=config) as session:
            await session.model.send_event(GREEDY)
            await say(session)
            async for event in session:
                told.append(event)
                assert event.type != "error", event
                if await over(session, event):
                    break
            return session._history

    return told, asyncio.run(asyncio.wait_for(session(), HANGS_S))


async def ends(_session: RealtimeSession, event: RealtimeSessionEvent) -> bool:
    return event.type == "agent_end"


def sound_of(events: Events) -> bytes:
    return b"".join(event.audio.data for event in events if event.type == "audio")


def said(item: Any) -> str:
    return "".join(part.transcript if part.type == "audio" else part.text for part in item.content)


def test_realtime_text(url: str) -> None:
    _, (asked, answered) = talk(url, RealtimeAgent(name="counter"), lambda it: it.send_message("Count."), ends, **TEXT)
    assert (asked.role, answered.role) == ("user", "assistant")
    assert said(answered)


def test_realtime_tool(url: str) -> None:
    calls = []

    @function_tool
    def look_outside(city: Literal["Paris"]) -> str:
        """Tells the weather of a city."""
        calls.append(city)
        return RESULT

    async def called(_session: RealtimeSession, event: RealtimeSessionEvent) -> bool:
        # It must call one again in each answer, so this doesn't wait for one without.
        return event.type == "agent_end" and len(calls) > 1

    agent = RealtimeAgent(name="forecaster", tools=[look_outside])
    events, history = talk(
        url, agent, lambda it: it.send_message("What is the weather in Paris?"), called, tool_choice="required", **TEXT
    )
    assert set(calls) == {"Paris"}
    assert next(event.output for event in events if event.type == "tool_end") == RESULT
    assert history[1].output == RESULT


def test_realtime_handoff(url: str) -> None:
    async def handed(_session: RealtimeSession, event: RealtimeSessionEvent) -> bool:
        return event.type == "handoff"

    gardener = RealtimeAgent(name="gardener", instructions="You know all plants.")
    events, _ = talk(
        url,
        RealtimeAgent(name="porter", handoffs=[gardener]),
        lambda it: it.send_message("Are there roses?"),
        handed,
        tool_choice="required",
        **TEXT,
    )
    assert events[-1].type == "handoff"
    assert events[-1].to_agent is gardener


def test_realtime_speech(url: str, question: bytes) -> None:
    # All settings but the model's are the SDK's own, semantic_vad among them.
    agent = RealtimeAgent(name="greeter", instructions="You greet.")
    events, (_, answered) = talk(url, agent, lambda it: it.send_message("Say good morning."), ends)
    seconds = len(sound_of(events)) / (2 * RATE)
    assert 0.02 < seconds / len(said(answered)) < 0.2


def test_realtime_spoken_question(url: str, question: bytes) -> None:
    async def speak(session: RealtimeSession) -> None:
        for start in range(0, len(question), PACKET):
            await session.send_audio(question[start : start + PACKET])

    events, (asked, answered) = talk(
        url, RealtimeAgent(name="friend"), speak, ends, turn_detection={"type": "server_vad"}
    )
    assert asked.content[0].type == "input_audio"
    assert said(answered)
    assert sound_of(events)


@pytest.mark.parametrize("detection", [None, {"type": "server_vad"}], ids=["manual", "server_vad"])
def test_realtime_interruption(url: str, question: bytes, detection: Any) -> None:
    async def interrupted(session: RealtimeSession, event: RealtimeSessionEvent) -> bool:
        if event.type == "audio":
            await session.interrupt()
        raw = event.data if event.type == "raw_model_event" else None
        return raw is not None and raw.type == "raw_server_event" and raw.data["type"] == "conversation.item.truncated"

    events, _ = talk(
        url,
        RealtimeAgent(name="counter"),
        lambda it: it.send_message("Count from 1 to 100."),
        interrupted,
        turn_detection=detection,
    )
    assert any(event.type == "audio_interrupted" for event in events)


def test_voice_pipeline(url: str, question: bytes) -> None:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    settings = ModelSettings(temperature=0, max_tokens=N_TOKENS)
    agent = Agent(name="friend", model=OpenAIChatCompletionsModel(MODEL, client), model_settings=settings)
    provider = OpenAIVoiceModelProvider(openai_client=client)
    pipeline = VoicePipeline(
        workflow=SingleAgentVoiceWorkflow(agent),
        config=VoicePipelineConfig(model_provider=provider, tracing_disabled=True),
    )

    async def heard() -> int:
        result = await pipeline.run(AudioInput(np.frombuffer(question, np.int16)))
        return sum([len(event.data) async for event in result.stream() if event.type == "voice_stream_event_audio"])

    assert asyncio.run(asyncio.wait_for(heard(), HANGS_S)) > RATE // 10
