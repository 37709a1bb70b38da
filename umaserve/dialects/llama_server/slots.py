"""llama-server's ``/slots``: the answers in work, in as many slots as are decoded at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson

from umaserve.core.errors import Fault, RequestError
from umaserve.core.events import ModelInfo, SlotFile
from umaserve.dialects.facts import Facts, RunningAnswer
from umaserve.dialects.llama_server.requests import NativeRequest
from umaserve.dialects.llama_server.schemas import SlotFileName
from umaserve.dialects.llama_server.settings import generation_settings
from umaserve.dialects.parameters import json_body
from umaserve.wire.fields import out_of_range
from umaserve.wire.http_head import Request

_ITS_OWN = ("stop", "logit_bias", "grammar", "grammar_triggers", "preserved_tokens", "dry_sequence_breakers")
"""Settings with a client's texts, or that llama-server doesn't list here."""


def slots(info: ModelInfo, running: Sequence[RunningAnswer], *, wants_idle: bool) -> bytes:
    """The body of ``GET /slots`` for a model and the answers that it runs; raises ``RequestError`` where none is
    idle if one is wanted."""
    if wants_idle and len(running) >= info.parallel:
        raise RequestError(Fault.QUEUE_FULL, "slots", "no slot is idle; try again later", retry_after_s=1)
    idle = [None] * (info.parallel - len(running))
    return orjson.dumps([_slot(at, answer, info.context_tokens) for at, answer in enumerate([*running, *idle])])


def slot_action(
    info: ModelInfo, facts: Facts, request: Request, answered: Callable[[bytes | RequestError], None]
) -> None:
    """Do what ``POST /slots/{id}`` asks for, and call ``answered`` with the reply's body; raises ``RequestError``. What
    is cached belongs to no slot: where it is erased, any slot's number stands for all."""
    slot, action = request.path.rpartition("/")[2], request.query.get("action", "")
    if not (slot.isdecimal() and int(slot) < info.parallel):
        raise out_of_range("id", f"a number from 0 to {info.parallel - 1}", f'"{slot[:32]}"')
    if action == "erase":
        answered(orjson.dumps({"id_slot": int(slot), "n_erased": facts.erase_cached(info.name)}))
        return
    if action not in ("save", "restore"):
        raise out_of_range("action", '"erase" or "save" or "restore"', f'"{action[:32]}"')
    filename = SlotFileName.view(json_body(request.body)).filename

    def done(result: SlotFile | RequestError) -> None:
        answered(result if isinstance(result, RequestError) else _file(int(slot), action, result))

    if action == "save":
        facts.save_slot(info.name, int(slot), filename, done)
    else:
        facts.restore_slot(info.name, filename, done)


def _file(slot: int, action: str, file: SlotFile) -> bytes:
    tokens, n_bytes = ("n_saved", "n_written") if action == "save" else ("n_restored", "n_read")
    told = {"id_slot": slot, "filename": file.filename, tokens: file.tokens, n_bytes: file.n_bytes}
    return orjson.dumps({**told, "timings": {f"{action}_ms": file.took_s * 1000}})


def _slot(at: int, answer: RunningAnswer | None, context_tokens: int) -> dict[str, Any]:
    slot: dict[str, Any] = {
        "id": at,
        "n_ctx": context_tokens,
        "speculative": False,
        "is_processing": answer is not None,
    }
    if answer is None:
        return slot
    limit = answer.request.max_tokens
    asked = NativeRequest((), -1 if limit is None else limit)
    params = generation_settings(answer.request, asked)
    slot |= {
        "id_task": answer.number,
        "n_prompt_tokens": answer.prompt_tokens,
        "n_prompt_tokens_processed": answer.computed_tokens,
        "n_prompt_tokens_cache": answer.reused_tokens,
        "params": {name: value for name, value in params.items() if name not in _ITS_OWN},
        "next_token": [
            {
                "has_next_token": True,
                "n_remain": -1 if limit is None else limit - answer.generated_tokens,
                "n_decoded": answer.generated_tokens,
            }
        ],
    }
    return slot if answer.prompt is None else slot | {"prompt": answer.prompt}
