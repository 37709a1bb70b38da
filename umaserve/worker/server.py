"""The worker program: links and backend put together, start, reload and drain."""

from __future__ import annotations

import logging
import os
import platform

from umaserve.net.loop import Loop
from umaserve.settings.reread import reread
from umaserve.settings.secret_file import read_secret
from umaserve.settings.worker import WorkerConfig
from umaserve.system import systemd
from umaserve.system.descriptors import raise_descriptor_limit
from umaserve.system.signals import Signals
from umaserve.system.threads import JobThread, ThreadWatch
from umaserve.worker.dialer import Dialer
from umaserve.worker.http_backend import HttpBackend, HttpSettings
from umaserve.worker.relay_link import RelayLink, WorkerIdentity
from umaserve.worker.versions import RelayVersions, kept_in_state_directory

log = logging.getLogger(__name__)

FAREWELL_S = 2.0
"""How long queued output may take to be read after the drain timeout."""

RESOLVER_S = 1.0
"""How long a running look-up may delay the exit."""


class WorkerServer:
    """One worker. ``run`` blocks until it ends and returns the exit status."""

    def __init__(self, config: WorkerConfig) -> None:
        """Raises ``ConfigError`` for unusable secrets and certificates."""
        self._config = config
        self._loop = Loop()
        self._signals = Signals(self._loop, lambda: None, self._reread_files)
        self._resolving = JobThread("resolving", self._loop.wake)
        self._dialer = Dialer(self._loop, self._resolving.submit, config.ca_file)
        self._http = HttpSettings(
            config.backend,
            self._read_backend_key(),
            config.models,
            config.max_concurrent,
            config.request_timeout,
            config.max_response_bytes,
        )
        self._backend = HttpBackend(self._loop, self._dialer, self._http)
        name = config.name or platform.node() or "worker"
        self._mine = WorkerIdentity(self._read_secret(), config.provider, name, config.max_concurrent)
        versions = RelayVersions(kept_in_state_directory(), config.relay)
        self._links = [
            RelayLink(self._loop, self._dialer, url, self._mine, self._backend, self._on_ack, versions)
            for url in config.relay
        ]
        self._started = self._ready = self._draining = False
        self._models: tuple[str, ...] = ()
        """The models that the links announced last."""

    def run(self) -> int:
        raise_descriptor_limit(self._config.max_concurrent, "max_concurrent")
        self._signals.handle()
        systemd.feed_watchdog(self._loop.call_later, ThreadWatch([self._resolving]).stuck)
        systemd.notify("STATUS=connecting")
        self._refresh()
        self._loop.run(self._turn)
        self._signals.restore()
        # A hanging look-up may still wake the loop later, which must then stay open.
        if self._resolving.stop(RESOLVER_S):
            self._loop.close()
        log.info("stopped")
        return os.EX_OK

    def stop(self) -> None:
        """Drain and end, as on the first SIGTERM; safe from any thread."""
        self._signals.stop()

    # -- files ---------------------------------------------------------------------------------------------------

    def _read_secret(self) -> str:
        return read_secret(self._config.worker_secret, self._config.worker_secret_file, "worker_secret_file")

    def _read_backend_key(self) -> str:
        return read_secret(self._config.backend_key, self._config.backend_key_file, "backend_key_file")

    def _reread_files(self) -> None:
        """On SIGHUP, for future connections. A file that can't be used changes nothing."""
        log.info("reloading secrets and certificate authorities")
        self._mine.secret = reread(self._read_secret, self._mine.secret)
        self._http.key = reread(self._read_backend_key, self._http.key)
        self._dialer.reread_authorities()

    # -- links and models ----------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self._config.models:
            self._loop.call_later(self._config.refresh_interval, self._refresh)
        self._backend.refresh(self._refreshed)

    def _refreshed(self) -> None:
        models = tuple(self._backend.models)
        changed, self._models = models != self._models, models
        if self._draining:
            return
        if not self._started:
            # Only now, so that a relay without other workers knows the models from the start.
            self._started = True
            for link in self._links:
                link.start()
        elif changed:
            for link in self._links:
                link.say_models()

    def _on_ack(self) -> None:
        if not self._ready:
            self._ready = True
            systemd.notify("READY=1\nSTATUS=working")

    def _turn(self) -> None:
        """One turn of the loop, phase by phase."""
        ready = self._loop.poll()
        self._resolving.collect()
        self._loop.serve(ready)
        self._loop.run_due()
        self._end_if_over()
        self._loop.flush()

    # -- the end -------------------------------------------------------------------------------------------------

    def _end_if_over(self) -> None:
        if self._signals.count and not self._draining:
            self._drain()
        if self._draining and all(link.over for link in self._links):
            self._loop.stop()

    def _drain(self) -> None:
        self._draining = True
        systemd.notify_stopping(self._config.drain_timeout + FAREWELL_S + RESOLVER_S)
        running = sum(link.running for link in self._links)
        log.info("draining", extra={"fields": {"running": running, "timeout_s": self._config.drain_timeout}})
        for link in self._links:
            link.drain()
        self._loop.call_later(self._config.drain_timeout, self._end_drain)

    def _end_drain(self) -> None:
        for link in self._links:
            link.close()
        self._loop.call_later(FAREWELL_S, self._loop.stop)
