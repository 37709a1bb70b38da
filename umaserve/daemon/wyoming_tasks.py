"""What a client of the Wyoming protocol asks for, until it is answered: a text to speak, or speech to transcribe."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import Finished, Output, Spoken, Token
from umaserve.core.requests import Sound
from umaserve.daemon.exchange import Exchange
from umaserve.daemon.services import Services
from umaserve.daemon.text_to_speech_job import Heard, TextToSpeechJob
from umaserve.dialects.transcription import check_end, transcription
from umaserve.dialects.wyoming import replies, requests
from umaserve.dialects.wyoming.requests import Listening, PcmFormat, misplaced
from umaserve.net.input_budget import InputShare
from umaserve.sessions.caller import Caller
from umaserve.wire.pcm import mono
from umaserve.wire.wyoming import Event

SOUND = "audio-chunk"
"""The event that errors about a sound name."""


class Client(Protocol):
    """The connection of a task's client."""

    def send(self, event: Event) -> None: ...

    def done(self) -> None:
        """Take note that the task is answered."""

    def fail(self, error: RequestError) -> None:
        """End the connection, since the task failed."""

    def abort(self) -> None:
        """End the connection, after a bug of ours."""


class Synthesis(Exchange):
    """Synthesis of a text: ``synthesize``; or ``synthesize-start``, ``synthesize-chunk`` for each part of the text,
    ``synthesize-stop``."""

    EVENTS = frozenset({"synthesize", "synthesize-start", "synthesize-chunk", "synthesize-stop"})
    held_bytes = 0

    def __init__(self, services: Services, caller: Caller, share: InputShare, client: Client) -> None:
        super().__init__(services, caller, share, client.abort)
        self._limits = services.facts().limits
        self._client = client
        self._reading: TextToSpeechJob | None = None
        self._streams = False
        self._begun = False
        self._text_bytes = 0
        self.ready = True

    def take(self, event: Event) -> None:
        match event.type, self._reading:
            case "synthesize", None:
                text = self._text(event)
                self.ready = False
                self._begin(event).read(text)
            case "synthesize-start", None:
                self._streams = True
                self._begin(event)
            case "synthesize-chunk", TextToSpeechJob() as reading:
                reading.push(self._text(event))
            case "synthesize-stop", TextToSpeechJob() as reading:
                self.ready = False
                reading.finish()
            case "synthesize", _:
                pass  # The text once more, for servers that take it only whole.
            case _:
                raise misplaced(event.type)

    def _text(self, event: Event) -> str:
        text = requests.text_part(event.data, self._text_bytes, self._limits)
        self._text_bytes += len(text.encode())
        return text

    def _begin(self, event: Event) -> TextToSpeechJob:
        self._services.loaded()
        speaking = requests.speaking(event.data, self._services.speech.voice)
        self._reading = self.read_aloud("text", speaking, self._speak)
        return self._reading

    def _speak(self, output: Heard) -> None:
        if isinstance(output, RequestError):
            self._client.fail(output)
            return
        if not self._begun:
            self._begun = True
            self._client.send(replies.audio_start())
        if isinstance(output, Spoken):
            for chunk in replies.audio_chunks(output.sound):
                self._client.send(chunk)
            return
        self._client.send(replies.audio_stop())
        if self._streams:
            self._client.send(replies.synthesize_stopped())
        self.end()
        self._client.done()


class Transcription(Exchange):
    """Transcription of speech: ``transcribe``, which may be left out; ``audio-start``, ``audio-chunk`` for each part,
    ``audio-stop``."""

    EVENTS = frozenset({"transcribe", "audio-start", "audio-chunk", "audio-stop"})

    def __init__(self, services: Services, caller: Caller, share: InputShare, client: Client) -> None:
        super().__init__(services, caller, share, client.abort)
        self._client = client
        self._listening = Listening()
        self._format: PcmFormat | None = None
        self._sound = bytearray()
        """float32 samples."""
        self._text: list[str] = []
        self.ready = True

    @property
    def held_bytes(self) -> int:
        return len(self._sound)

    def take(self, event: Event) -> None:
        if event.type == "transcribe":
            self._listening = requests.listening(event.data)
        info = self._services.models.info(self._listening.model, self._caller)
        # One that has not been loaded yet is loaded for the transcript, and then refuses what it can't take.
        if info is not None and not info.hears:
            problem = "can't be used: this daemon's model takes no audio; its operator can load one that hears"
            raise RequestError(Fault.BAD_REQUEST, event.type, f"{problem}, with its projector (--mmproj)")
        match event.type:
            case "transcribe":
                pass  # Read above, since it names the model.
            case "audio-start":
                self._set_format(event)
            case "audio-chunk":
                self._hear(event)
            case "audio-stop":
                self._transcribe()
            case _:
                raise misplaced(event.type)

    def _set_format(self, event: Event) -> PcmFormat:
        found = requests.pcm_format(event.data)
        if self._format not in (None, found):
            raise RequestError(
                Fault.BAD_REQUEST, event.type, f"expected one format for all of the sound, {self._format}, got {found}"
            )
        self._format = found
        return found

    def _hear(self, event: Event) -> None:
        of = self._set_format(event)
        limit = self._services.config.max_chat_bytes
        n_samples, rest = divmod(len(event.payload), of.width * of.channels)
        if rest:
            raise RequestError(
                Fault.BAD_REQUEST, "payload_length", f"expected whole samples, got {len(event.payload)} bytes of {of}"
            )
        if len(self._sound) + 4 * n_samples > limit:
            raise RequestError(Fault.FRAME_TOO_LARGE, event.type, f"expected at most {limit // 4} samples, got more")
        self._sound += mono(event.payload, of.width, of.channels)

    def _transcribe(self) -> None:
        self.ready = False
        if self._format is None or not self._sound:
            self._finish()  # Nobody said anything.
            return
        sound, self._sound = self._sound, bytearray()
        facts = self._services.facts()
        request = transcription(
            Sound(memoryview(sound).toreadonly(), SOUND, self._format.rate),
            facts.new_id("transcript-"),
            facts.limits,
            facts.model(self._listening.model),
            language=self._listening.language,
            prompt=self._listening.words,
        )
        self._share.keep(len(sound))
        self.generate(replace(request, model=self._listening.model), self._hear_back)

    def _hear_back(self, output: Output | RequestError) -> None:
        match output:
            case RequestError():
                self._client.fail(output)
            case Token():
                self._text.append(output.said)
            case Finished():
                try:
                    check_end(output, SOUND)
                except RequestError as error:
                    self._client.fail(error)
                else:
                    self._finish()

    def _finish(self) -> None:
        self._client.send(replies.transcript("".join(self._text).strip(), self._listening.language))
        self.end()
        self._client.done()


Task = Synthesis | Transcription
"""Begins with the first event that it takes, and ends with ``done``, ``fail`` or ``abandon``."""
