"""Which exchange answers an endpoint."""

from __future__ import annotations

from collections.abc import Mapping

from umaserve.daemon.http.exchange import Responder
from umaserve.daemon.http.exchanges.kept_exchange import KeptExchange
from umaserve.daemon.http.exchanges.question_exchange import QuestionExchange
from umaserve.daemon.http.exchanges.speech_exchange import SpeechExchange
from umaserve.daemon.http.exchanges.text_exchange import TextExchange
from umaserve.daemon.http.exchanges.tool_exchange import ToolExchange
from umaserve.daemon.services import Services
from umaserve.dialects.facts import Facts
from umaserve.dialects.http import ErrorShape
from umaserve.dialects.routes import (
    CallingTextReply,
    EngineQuestion,
    FormReply,
    KeptTextReply,
    Posted,
    SpeechReply,
    TextReply,
)
from umaserve.net.input_budget import InputShare
from umaserve.sessions.caller import Caller


def new_exchange(
    services: Services,
    facts: Facts,
    endpoint: Posted,
    errors: ErrorShape,
    responder: Responder,
    caller: Caller,
    share: InputShare,
    headers: Mapping[str, str],
) -> QuestionExchange | TextExchange | SpeechExchange:
    """``share``: as in ``Exchange``. ``headers``: the request's, their names in lower case."""
    match endpoint:
        case EngineQuestion():
            return QuestionExchange(services, facts, endpoint, errors, responder, caller, share)
        case KeptTextReply():
            return KeptExchange(services, responder, endpoint.new_body(facts), caller, share, headers)
        case CallingTextReply():
            return ToolExchange(services, responder, endpoint.new_body(facts), caller, share, headers)
        case TextReply():
            return TextExchange(services, responder, endpoint.new_body(facts), caller, share, headers)
        case FormReply():
            body = endpoint.new_body(facts, headers.get("content-type", ""))
            return TextExchange(services, responder, body, caller, share, headers)
        case SpeechReply():
            return SpeechExchange(services, responder, endpoint.new_body(facts), caller, share)
    raise TypeError(endpoint)
