"""The route table: the paths of all dialects, and the daemon's own."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

from umaserve.dialects.anthropic.routes import DIALECT as ANTHROPIC
from umaserve.dialects.batches.routes import DIALECT as BATCHES
from umaserve.dialects.chat.routes import DIALECT as CHAT
from umaserve.dialects.generate.routes import DIALECT as GENERATE
from umaserve.dialects.generate.routes import REST_DIALECT as GENERATE_REST
from umaserve.dialects.http import ErrorShape
from umaserve.dialects.llama_server.routes import DIALECT as LLAMA_SERVER
from umaserve.dialects.mcp.routes import DIALECT as MCP
from umaserve.dialects.ollama.routes import DIALECT as OLLAMA
from umaserve.dialects.openai.errors import ERRORS
from umaserve.dialects.openai.routes import DIALECT as OPENAI
from umaserve.dialects.realtime.routes import DIALECT as REALTIME
from umaserve.dialects.responses.routes import DIALECT as RESPONSES
from umaserve.dialects.routes import (
    Conversation,
    Dispatch,
    EngineQuestion,
    FileUpload,
    FormReply,
    HttpDialect,
    Route,
    TextReply,
    path_pattern,
)
from umaserve.settings.daemon import Config

DIALECTS = (OPENAI, RESPONSES, BATCHES, REALTIME, ANTHROPIC, OLLAMA, LLAMA_SERVER, GENERATE, GENERATE_REST, CHAT, MCP)


class Found(NamedTuple):
    """A route, and the dialect that it is of."""

    route: Route
    dialect: HttpDialect


class Routes:
    """Finds what answers a path."""

    def __init__(self, dialects: Sequence[HttpDialect]) -> None:
        self._exact: dict[str, Found] = {}
        self._patterns: dict[re.Pattern[str], Found] = {}
        """The longest first: it says most."""
        self._shared: dict[str, Routes] = {}
        self._errors: dict[str, ErrorShape] = {}
        """By the header of ``_shared``."""
        self._absent = {request: instead for dialect in dialects for request, instead in dialect.absent.items()}
        for dialect in dialects:
            if dialect.shared is not None:
                alone = replace(dialect, routes=dialect.shared.routes, aliases={}, shared=None)
                self._shared[dialect.shared.header] = Routes([alone])
                self._errors[dialect.shared.header] = dialect.errors
            for path, route in dialect.routes.items():
                if "{" in path:
                    self._patterns[path_pattern(path)] = Found(route, dialect)
                else:
                    self._exact[path] = Found(route, dialect)
            self._patterns = dict(sorted(self._patterns.items(), key=lambda item: -len(item[0].pattern)))
            self._exact |= {alias: self._exact[path] for alias, path in dialect.aliases.items()}

    def find(self, path: str, headers: Iterable[str] = ()) -> Found | None:
        """What answers requests with these headers, given by their names; ``None`` where there is none."""
        for name in self._shared.keys() & headers:
            if found := self._shared[name].find(path):
                return found
        if found := self._exact.get(path):
            return found
        for pattern, found in self._patterns.items():
            if pattern.fullmatch(path):
                return found
        return None

    def instead(self, method: str, path: str) -> str | None:
        """What to do instead of a request of a known API that isn't served; ``None`` for others."""
        return self._absent.get(f"{method} {path}")

    def errors(self, path: str, headers: Collection[str] = ()) -> ErrorShape:
        """The error shape of requests with these headers: that of the dialect which has the path, or one above it, or
        whose header it is, else OpenAI's."""
        above = path
        while above:
            if found := self.find(above, headers):
                return found.dialect.errors
            above = above.rpartition("/")[0]
        return next((errors for header, errors in self._errors.items() if header in headers), ERRORS)

    def max_bodies(self, config: Config) -> dict[str, int]:
        """The largest body in bytes of each path that takes one."""
        return {
            path: max_body_bytes(each, config)
            for path, (route, _) in self._exact.items()
            for each in route.each
            if each.method == "POST"
        }


def max_body_bytes(route: Route, config: Config) -> int:
    """The largest body, or message of a conversation, that a route takes."""
    match route.endpoint:
        case TextReply(media=True) | EngineQuestion(media=True) | Dispatch(media=True) | Conversation(media=True):
            return config.max_chat_bytes
        case FormReply():
            return config.max_chat_bytes
        case FileUpload():
            return min(config.max_chat_bytes, config.store_bytes // 4)
    return config.max_frame_bytes
