"""The daemon's links to its relays, and the thread that resolves their names."""

from __future__ import annotations

import platform

from umaserve.daemon.relays.relay_backend import DaemonBackend
from umaserve.daemon.services import Services
from umaserve.net.loop import Loop
from umaserve.settings.daemon import Config
from umaserve.settings.reread import reread
from umaserve.settings.secret_file import read_secret
from umaserve.system.threads import JobThread
from umaserve.worker.dialer import Dialer
from umaserve.worker.relay_link import RelayLink, WorkerIdentity
from umaserve.worker.versions import RelayVersions, kept_in_state_directory


class DaemonLinks:
    """One link to each of the configured relays; without any, nothing at all. Raises ``ConfigError`` for a secret or a
    certificate that can't be used."""

    def __init__(self, loop: Loop, config: Config, services: Services) -> None:
        self._config = config
        self._links: list[RelayLink] = []
        self.threads: list[JobThread] = []
        """Threads of the links, to be watched."""
        if not config.relay:
            return
        name = config.worker_name or platform.node() or "worker"
        self._mine = WorkerIdentity(self._read_secret(), config.relay_provider, name, config.parallel)
        self._resolving = JobThread("resolving", loop.wake)
        self.threads.append(self._resolving)
        self._dialer = Dialer(loop, self._resolving.submit, config.relay_ca_file)
        backend = DaemonBackend(services)
        versions = RelayVersions(kept_in_state_directory(), config.relay)
        self._links = [
            RelayLink(loop, self._dialer, url, self._mine, backend, lambda: None, versions) for url in config.relay
        ]

    def _read_secret(self) -> str:
        return read_secret(self._config.worker_secret, self._config.worker_secret_file, "worker_secret_file")

    def reread_files(self) -> None:
        """Reread the secret and the certificate authorities, for later connections."""
        if self._links:
            self._mine.secret = reread(self._read_secret, self._mine.secret)
            self._dialer.reread_authorities()

    @property
    def over(self) -> bool:
        """Whether all links are done, after ``drain``."""
        return all(link.over for link in self._links)

    def collect(self) -> None:
        """Run the callbacks of resolved names."""
        if self._links:
            self._resolving.collect()

    def start(self) -> None:
        for link in self._links:
            link.start()

    def say_models(self) -> None:
        """Tell the relays that the models have changed."""
        for link in self._links:
            link.say_models()

    def drain(self) -> None:
        """Take no new requests, finish what runs, then disconnect."""
        for link in self._links:
            link.drain()

    def close(self) -> None:
        """The time to drain is over."""
        for link in self._links:
            link.close()

    def stop(self) -> None:
        """Stop the thread."""
        if self._links:
            self._resolving.stop(0)
