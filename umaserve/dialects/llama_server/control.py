"""llama-server's ``/v1/chat/completions/control``: steers a completion that runs, by its id."""

from __future__ import annotations

import orjson

from umaserve.core.commands import Cancel, EndThought, Modify, Pause, Resume, Steering
from umaserve.core.requests import Generate
from umaserve.dialects.facts import Facts
from umaserve.dialects.generate.request import modified
from umaserve.dialects.generate.schemas import Parameters
from umaserve.dialects.llama_server.schemas import ControlRequest
from umaserve.dialects.parameters import json_body
from umaserve.wire.fields import out_of_range


def control(body: bytes, facts: Facts) -> bytes:
    """Do what ``body`` asks for; the body of the answer. Raises ``RequestError``. That none runs is no error, as in
    llama-server: the request may cross the completion's end."""
    given = ControlRequest.view(json_body(body))
    action, parameters = given.action, given.parameters
    if action == "modify":
        # What is wrong with them is told whether one runs or not.
        modified(Generate(given.id, ""), parameters, facts.limits)
    if facts.steer(given.id, lambda request: _command(action, parameters, request, facts)):
        return orjson.dumps({"success": True})
    return orjson.dumps({"success": False, "message": "no active completion for this id"})


def _command(action: str, parameters: Parameters | None, request: Generate, facts: Facts) -> Steering | Cancel:
    match action:
        case "reasoning_end":
            return EndThought()
        case "pause":
            return Pause()
        case "resume":
            return Resume()
        case "cancel":
            return Cancel(request.id)
    return Modify(_modified(parameters, request, facts))


def _modified(parameters: Parameters | None, request: Generate, facts: Facts) -> Generate:
    wanted = modified(request, parameters, facts.limits)
    # The engine would refuse it too, with nobody there to tell.
    info, sampling = facts.model(request.model), wanted.sampling
    tokens = [*(token for token, _bias in sampling.logit_bias), *sampling.stop_token_ids]
    if info is not None and (most := max(tokens, default=0)) >= info.vocabulary:
        raise out_of_range("parameters", f"token ids below {info.vocabulary}, the vocabulary's size", most)
    return wanted
