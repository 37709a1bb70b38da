"""An HTTP request that takes time to answer, from its body to the end of its reply."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from umaserve.daemon.http.kept_exchange import KeptExchange
from umaserve.daemon.http.question_exchange import QuestionExchange
from umaserve.daemon.http.responder import Responder
from umaserve.daemon.http.speech_exchange import SpeechExchange
from umaserve.daemon.http.text_exchange import TextExchange
from umaserve.daemon.services import Services
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import EngineQuestion, ErrorShape, FormReply, KeptTextReply, SpeechReply, TextReply
from umaserve.net.input_budget import InputShare
from umaserve.sessions.caller import Caller

Endpoint = EngineQuestion | TextReply | FormReply | SpeechReply


class Exchange(Protocol):
    """From a request's body to the end of its reply."""

    def start(self, content: bytes) -> None:
        """Read the body and start what it asks for; an error becomes the reply."""

    def release(self) -> None:
        """The reply's high-water mark is no longer exceeded."""

    def abandon(self) -> None:
        """The client has disconnected."""


def new_exchange(
    services: Services,
    facts: Facts,
    endpoint: Endpoint,
    errors: ErrorShape,
    responder: Responder,
    caller: Caller,
    memory: InputShare,
    headers: Mapping[str, str],
) -> Exchange:
    """``memory`` counts the body until its images and sounds are no longer needed. ``headers``: the request's, their
    names in lower case."""
    match endpoint:
        case EngineQuestion():
            return QuestionExchange(services, facts, endpoint, errors, responder, caller, memory)
        case KeptTextReply():
            return KeptExchange(services, responder, endpoint.new_body(facts), caller, memory, headers)
        case TextReply():
            return TextExchange(services, responder, endpoint.new_body(facts), caller, memory, headers)
        case FormReply():
            body = endpoint.new_body(facts, headers.get("content-type", ""))
            return TextExchange(services, responder, body, caller, memory, headers)
        case SpeechReply():
            return SpeechExchange(services, facts, endpoint, errors, responder, caller)
