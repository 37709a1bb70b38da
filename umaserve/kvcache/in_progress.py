"""Prompts that are being computed: others may wait for what they begin with, or find it saved at their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from umaserve.kvcache.checkpoints import Checkpoints
from umaserve.kvcache.host_cache import HostCache
from umaserve.kvcache.prefix_cache import MIN_REUSED, Match, PrefixCache
from umaserve.sessions.engine_api import without_parts
from umaserve.sessions.session import Session


class _Prompt(NamedTuple):
    session: Session
    checkpoints: Checkpoints


class PromptsInProgress:
    """The prompts of the sessions that have a slot."""

    def __init__(self, host: HostCache | None, *, cuttable: bool) -> None:
        """``cuttable``: sequences can be cut to a prefix, and so need no checkpoints."""
        self._host = host
        self._cuttable = cuttable
        self._prefixes = PrefixCache()
        """Prompts that are not complete, by session id."""
        self._prompts: dict[int, _Prompt] = {}
        """Prompts of the sessions that have a slot, by session id."""

    def begin(self, session: Session, scope: str, tokens: Sequence[int], *, shared: bool) -> None:
        """Begin a prompt: ``session`` goes on with ``tokens`` where its cached prefix ends. ``shared``: whether it is
        to be saved for later sessions."""
        self._prefixes.put(session.id, scope, tokens)
        checkpoints = Checkpoints()
        if not self._cuttable and self._host is not None and shared:
            common, _tokens = self._host.nearest(scope, tokens)
            checkpoints = Checkpoints(tokens, session.computed, known=common)
        self._prompts[session.id] = _Prompt(session, checkpoints)

    def match(self, scope: str, tokens: Sequence[int]) -> Match | None:
        """The session that is now computing the longest prefix of ``tokens``; ``None`` if too short to reuse.

        Where sequences can't be cut, that session gets a checkpoint at the end of the prefix.
        """
        found = self._prefixes.match(scope, tokens[:-1])
        if found is None or found.length < MIN_REUSED:
            return None
        if self._cuttable:
            return found
        session, checkpoints = self._prompts[found.holder]
        length = checkpoints.at(without_parts(tokens, found.length), session.computed)
        return None if length is None else found._replace(length=length)

    def before_checkpoint(self, session: Session, end: int) -> int:
        """``end``, or the next checkpoint of the session's prompt, if that comes before."""
        prompt = self._prompts.get(session.id)
        return end if prompt is None else prompt.checkpoints.before(end, session.computed)

    def is_checkpoint(self, session: Session, length: int) -> bool:
        """Whether the session's prompt is saved at this length."""
        return length in self._prompts[session.id].checkpoints

    def complete(self, session: Session) -> None:
        """Mark a session's prompt as computed: nobody has to wait for it."""
        self._prefixes.remove(session.id)

    def forget(self, session: Session) -> None:
        """Forget a session that has lost its slot."""
        self._prefixes.remove(session.id)
        self._prompts.pop(session.id, None)
