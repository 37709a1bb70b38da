"""What a realtime session has done: responses, of text and sound, and transcripts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from umaserve.core.errors import RequestError
from umaserve.core.events import Finished, FinishReason, Output, Spoken, Token, Usage
from umaserve.core.requests import Generate, Speaking
from umaserve.daemon.exchange import Exchange
from umaserve.daemon.services import Services
from umaserve.dialects.realtime.answer import Answer, Event
from umaserve.dialects.realtime.listening import FIELD, Transcript
from umaserve.dialects.realtime.sound_formats import SpeechEncoder
from umaserve.dialects.transcription import check_end
from umaserve.sessions.caller import Caller
from umaserve.stages.spoken import SpokenAnswer

Send = Callable[[Iterator[Event]], None]


class TranscriptExchange(Exchange):
    """Has one sound written down."""

    def __init__(
        self,
        services: Services,
        caller: Caller,
        transcript: Transcript,
        send: Send,
        end: Callable[[Transcript, Iterator[Event]], None],
        broken: Callable[[], None],
    ) -> None:
        """``send`` gets events; ``end`` the last ones."""
        super().__init__(services, caller, services.input_budget.share(None), broken)
        self._transcript = transcript
        self._send = send
        self._end = end

    def start(self, request: Generate) -> None:
        """Begin; raises ``RequestError`` where the request is refused."""
        self.generate(request, self._take)

    def _take(self, output: Output | RequestError) -> None:
        match output:
            case Token():
                self._send(self._transcript.push(output))
            case Finished():
                self.end()
                try:
                    check_end(output, FIELD)
                except RequestError as error:
                    self._end(self._transcript, self._transcript.fail(error))
                else:
                    self._end(self._transcript, self._transcript.finish(output))
            case RequestError():
                self.abandon()
                self._end(self._transcript, self._transcript.fail(output))


class AnswerExchange(Exchange):
    """Answers one ``response.create``. What is spoken is the text without the calls of tools, so the voice isn't a
    stage of the session: it gets what ``answer`` makes of that."""

    def __init__(
        self,
        services: Services,
        caller: Caller,
        answer: Answer,
        send: Send,
        end: Callable[[Answer, Iterator[Event]], None],
        broken: Callable[[], None],
    ) -> None:
        """``send`` gets events; ``end`` the last ones."""
        super().__init__(services, caller, services.input_budget.share(None), broken)
        self._answer = answer
        self._send = send
        self._end = end
        self._speech: SpokenAnswer | None = None
        self._encoder = SpeechEncoder(answer.settings.output)

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return self.sessions[0].usage if self.sessions else Usage(0, 0)

    def start(self, request: Generate) -> None:
        """Begin; raises ``RequestError`` where the request is refused."""
        services = self._services
        if self._answer.settings.spoken:
            services.speech.check_room(services.config.max_queue)
        self.generate(request, self._take)
        if self._answer.settings.spoken:
            self._speech = services.speech.answer(self.sink(self._hear), Speaking())
            self._parts.append(self._speech)

    def _take(self, output: Output | RequestError) -> None:
        """Take an output of the model's."""
        match output:
            case RequestError():
                self._fail(output)
            case Token():
                self._send(self._answer.push(output.said))
                self._speak()
            case Finished():
                self._send(self._answer.finish_text(whole=output.reason is FinishReason.STOP))
                self._speak()
                if self._speech is None:
                    self._finish(output)
                else:
                    self._speech.take(output)

    def _speak(self) -> None:
        text = self._answer.take_text()
        if self._speech is not None and text:
            self._speech.take(Token(text, 0))

    def _hear(self, output: Output | RequestError) -> None:
        """Take an output of the voice's."""
        match output:
            case RequestError():
                self._fail(output)
            case Spoken():
                self._send(iter([self._answer.hear(self._encoder.encode(output.sound), output.text)]))
            case Finished():
                self._finish(output)

    def _finish(self, output: Finished) -> None:
        self.end()
        self._end(self._answer, self._answer.finish(output))

    def _fail(self, error: RequestError) -> None:
        self.abandon()
        self._end(self._answer, self._answer.fail(error))
