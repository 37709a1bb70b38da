"""The settings of the link between a relay and its workers, which several programs declare alike."""

from __future__ import annotations

from umaserve.settings.kinds import path, secret, urls, word
from umaserve.settings.sources import Conflict, not_both, setting


def relay(help: str, *, about: str = "") -> tuple[str, ...]:
    """Relays to dial."""
    return setting((), urls("https", "http", "wss", "ws"), "relay", f"{help}; list of URLs", about=about)


def worker_secret(group: str, *, about: str = "") -> str:
    """The secret itself; `check_worker_secret` and `umaserve.settings.secret_file.read_secret` know its partner."""
    help = "secret that a relay and its workers share; other users see a flag in the process list, a file they do not"
    return setting("", secret(), group, help, about=about, env="WORKER_SECRET")


def worker_secret_file(group: str, *, about: str = "") -> str:
    """The file that holds the secret."""
    return setting(
        "",
        path(or_empty=True),
        group,
        "file that contains only the worker secret",
        about=about,
        env="WORKER_SECRET_FILE",
    )


def worker_name(*, about: str = "") -> str:
    """The name that a worker registers with."""
    return setting("", word(or_empty=True), "relay", "name to register with; empty: the host name", about=about)


def provider(*, about: str = "", env: str = "") -> str:
    """The provider that a worker belongs to."""
    return setting(
        "local", word(), "relay", "provider that this worker belongs to, as the relay names it", about=about, env=env
    )


def ca_file(*, about: str = "", env: str = "") -> str:
    """Certificate authorities of the relay."""
    return setting(
        "",
        path(or_empty=True),
        "relay",
        "PEM file of certificate authorities to trust for relays, besides the system's",
        about=about,
        env=env,
    )


def check_worker_secret(value: str, file: str) -> None:
    """Raise `Conflict` unless exactly one of worker_secret and worker_secret_file is set."""
    keys = "worker_secret", "worker_secret_file"
    not_both(*keys, value, file)
    if not (value or file):
        advice = "make a secret with openssl rand -hex 32, and give it to the relay and to its workers"
        raise Conflict("neither worker_secret nor worker_secret_file is set: " + advice, *keys)
