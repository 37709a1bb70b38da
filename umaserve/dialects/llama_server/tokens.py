"""llama-server's ``/tokenize`` and ``/detokenize``."""

from __future__ import annotations

import orjson

from umaserve.core.queries import Detokenize, Detokenized, Tokenize, Tokenized
from umaserve.dialects.llama_server.schemas import TokenizeRequest
from umaserve.dialects.parameters import RequestLimits, check_prompt_bytes, token_ids
from umaserve.wire.fields import Fields


def parse_tokenize(fields: Fields, limits: RequestLimits) -> tuple[Tokenize, bool]:
    """Parse a body of ``POST /tokenize``, and whether it wants each token's text; raises ``RequestError``."""
    given = TokenizeRequest.view(fields)
    text = given.content
    check_prompt_bytes(len(text.encode()), limits, "content")
    return Tokenize(text, given.add_special, given.parse_special), given.with_pieces


def tokenize_result(answer: Tokenized, *, with_pieces: bool) -> bytes:
    """Token ids; ``with_pieces`` with each one's text, or its bytes as numbers if they are not valid UTF-8."""
    if not with_pieces:
        return orjson.dumps({"tokens": list(answer.ids)})
    pieces = zip(answer.ids, answer.pieces, strict=True)
    return orjson.dumps({"tokens": [{"id": token, "piece": _text_or_bytes(piece)} for token, piece in pieces]})


def parse_detokenize(fields: Fields, limits: RequestLimits) -> Detokenize:
    """Parse a body of ``POST /detokenize``; raises ``RequestError``."""
    return Detokenize(token_ids(fields.values.get("tokens"), "tokens", limits))


def detokenize_result(answer: Detokenized) -> bytes:
    return orjson.dumps({"content": answer.text})


def _text_or_bytes(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)
