"""Keeps the latest tokens of each tenant's ended requests, where the drafts of its other requests are looked up."""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque

from umaserve.serving.said import SaidTokens
from umaserve.serving.session import Session
from umaserve.serving.work import sequence

CAPACITY = 1 << 15
"""Tokens kept of a scope, in 512 KiB."""
MAX_SCOPES = 16
"""Scopes kept, in 8 MiB: the one whose latest request started first goes first."""
MAX_OF_REQUEST = 1 << 13
"""The last tokens that are taken from one request."""
MAX_WAITING = 32
"""Ended requests that are still to be added: more of them end faster than they are worth."""
TOKENS_A_TURN = 256
"""Tokens that are added at a time: 0.2 ms."""
OVERLAP = 32
"""Tokens before what is new in a request that are added again: by them, the new ones are found."""


class TenantTexts:
    """Of one model, by the scopes in which cached prefixes are reused."""

    def __init__(self) -> None:
        self._by_scope: OrderedDict[str, SaidTokens] = OrderedDict()
        self._waiting: deque[tuple[SaidTokens, array[int]]] = deque()
        self._added = 0
        """Of the first that waits."""

    def of(self, scope: str) -> SaidTokens:
        """What was said in ``scope``."""
        said = self._by_scope.pop(scope, None) or SaidTokens(CAPACITY)
        self._by_scope[scope] = said
        if len(self._by_scope) > MAX_SCOPES:
            self._by_scope.popitem(last=False)
        return said

    def ended(self, session: Session) -> None:
        """Have the tokens of an ended request added, from behind its media on. The prefix that it reused was said
        before."""
        if session.said is None or not session.generated or len(self._waiting) == MAX_WAITING:
            return
        prepared, tokens = session.prepared, sequence(session)
        assert prepared is not None
        text_from = prepared.spans[-1].end if prepared.spans else 0
        begin = max(text_from, session.reused - OVERLAP, len(tokens) - MAX_OF_REQUEST)
        self._waiting.append((session.said, array("i", tokens[begin:])))

    @property
    def incomplete(self) -> bool:
        """Whether ``add_some`` has more to add."""
        return bool(self._waiting)

    def add_some(self) -> None:
        """Add the next tokens of ended requests."""
        if not self._waiting:
            return
        said, tokens = self._waiting[0]
        for token in tokens[self._added : self._added + TOKENS_A_TURN]:
            said.append(token)
        self._added += TOKENS_A_TURN
        if self._added >= len(tokens):
            said.close()
            self._waiting.popleft()
            self._added = 0

    def clear(self) -> None:
        """Forget all; running requests still refer to what they look up."""
        self._by_scope.clear()
        self._waiting.clear()
        self._added = 0
