"""Settings of the daemon: relays that the daemon registers at."""

from __future__ import annotations

from dataclasses import dataclass

from umaserve.settings import link


@dataclass(frozen=True)
class Relay:
    """Relays that the daemon registers at."""

    relay: tuple[str, ...] = link.relay(
        "relays to register the model at",
        about='Relays to register the model at, at most 64 URLs, such as ["wss://relay.example.org"]. The daemon '
        "connects to each of them, reconnects after a lost connection, and takes as many requests at the same "
        "time as parallel says. Empty: none.",
    )
    worker_secret: str = link.worker_secret(
        "relay",
        about="The secret that the relay and its workers share; make one with openssl rand -hex 32. Use "
        'worker_secret_file unless only the daemon\'s user can read this file. --print-config shows "…" in its '
        "place, which cannot be loaded. relay needs this setting or worker_secret_file.",
    )
    worker_secret_file: str = link.worker_secret_file(
        "relay",
        about="File that contains only the worker secret, at most 4KiB. Only the daemon's user should be able to read "
        "it. Empty: none.",
    )
    worker_name: str = link.worker_name(
        about="The name to register with, for the relay's log and operators. Empty: the host name.",
    )
    # These variables are umaserve worker's too; those that begin with UMA_RELAY_ are the relay's alone.
    relay_provider: str = link.provider(
        env="UMA_WORKER_PROVIDER",
        about="The provider that the daemon belongs to, as the relay names it.",
    )
    relay_ca_file: str = link.ca_file(
        env="UMA_WORKER_CA_FILE",
        about="PEM file of certificate authorities to trust for relays, besides the system's. Empty: none.",
    )
