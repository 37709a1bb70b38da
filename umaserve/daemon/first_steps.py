"""What a person who has started a daemon may type next, with the addresses at which it really listens."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping

from umaserve.daemon.listeners import HTTP, Place
from umaserve.settings.addresses import is_wildcard, parse_address
from umaserve.settings.daemon import Config
from umaserve.system.unix_sockets import path_to_call


def first_steps(program: str, config: Config, places: Iterable[Place], environ: Mapping[str, str]) -> str:
    """Lines for a terminal. ``program``: umaserve as it is typed; ``environ``: the daemon's, which other terminals have
    too, but for ``UMA_SOCK``."""
    by_protocol: dict[str, Place] = {}
    for place in places:
        if place.protocol != HTTP or place.is_tcp:
            by_protocol.setdefault(place.protocol, place)
    lines = []
    if json := by_protocol.get("json"):
        there = "" if json.at == path_to_call(environ) else f" --socket {shlex.quote(os.path.abspath(json.at))}"
        lines += [f'{program} ask{there} "Why is the sky blue?"', f"{program} metrics{there}"]
    ending = "Ctrl-C ends the daemon.\n"
    if http := by_protocol.get(HTTP):
        url = _url(http)
        key = ' -H "Authorization: Bearer KEY"' if config.api_keys else ""
        lines.append(f"curl {url}/v1/models{key}")
        ending = f"or open {url} in a browser. {ending}" if config.page else ending
    if not lines:
        return ""
    return "".join(["Now type in another terminal:\n", *(f"  {line}\n" for line in lines), ending])


def _url(place: Place) -> str:
    host, port = parse_address(place.at)
    scheme = "https" if place.encrypted else "http"
    return f"{scheme}://localhost:{port}" if is_wildcard(host) else f"{scheme}://{place.at}"
