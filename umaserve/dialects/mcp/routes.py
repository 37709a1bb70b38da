"""The path of the Model Context Protocol."""

from __future__ import annotations

from umaserve.dialects.mcp.errors import ERRORS
from umaserve.dialects.mcp.methods import answer
from umaserve.dialects.mcp.reference import REFERENCE
from umaserve.dialects.routes import Dispatch, HttpDialect, Route

DIALECT = HttpDialect("mcp", {"/mcp": Route("POST", Dispatch(answer, media=True))}, ERRORS, REFERENCE)
