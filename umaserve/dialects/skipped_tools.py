"""Tools that another service would run itself: programs offer them to every server."""

from __future__ import annotations

import logging
from functools import lru_cache

log = logging.getLogger(__name__)


@lru_cache(maxsize=256)
def log_ignored(kind: str) -> None:
    """Log once that tools of this type are skipped: programs send them with each request."""
    log.warning("ignored tools of type %r, which this server doesn't run (logged once)", kind)
