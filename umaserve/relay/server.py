"""The relay's server: puts listeners, connections and pool together; start, drain and end."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from umaserve.access.attempts import FailedAttempts
from umaserve.access.gate import Gate, Names
from umaserve.access.keys import KeyFile
from umaserve.core.errors import ConfigError
from umaserve.core.exposition import exposition
from umaserve.http.connection import Client, HttpConnection
from umaserve.net.channel import Channel
from umaserve.net.listeners import Listener
from umaserve.net.loop import Loop
from umaserve.net.tcp import tcp_sockets
from umaserve.net.tls import Tls, server_context
from umaserve.relay.http.admin import Admin
from umaserve.relay.http.site import AccessChecks, RelaySite
from umaserve.relay.peers.peers import Peers, RedisConfig
from umaserve.relay.pool.accounts import Accounts
from umaserve.relay.pool.outcomes import COUNTED
from umaserve.relay.pool.pool import Pool, PoolLimits
from umaserve.settings.addresses import is_loopback, parse_address
from umaserve.settings.relay import RelayConfig
from umaserve.settings.reread import reread
from umaserve.settings.secret_file import read_secret
from umaserve.system import systemd
from umaserve.system.descriptors import raise_descriptor_limit
from umaserve.system.memory import resident_bytes
from umaserve.system.signals import Signals
from umaserve.system.threads import JobThread, ThreadWatch

if TYPE_CHECKING:
    from umaserve.relay.peers.redis_link import Credentials
    from umaserve.relay.traces import Traces

log = logging.getLogger(__name__)

FAREWELL_S = 1.0
"""How long clients may take to read their last output when all else is done."""


class RelayServer:
    """A relay. ``run`` blocks until it ends and returns the exit status."""

    def __init__(self, config: RelayConfig) -> None:
        """Raises ``ConfigError`` for secrets, certificates and files that can't be used."""
        self._config = config
        self._loop = Loop()
        self._signals = Signals(self._loop, lambda: None, self._reread_files)
        self._tls = server_context(config.tls_cert, config.tls_key) if config.tls_cert else None
        limits = PoolLimits(
            queue_len=config.max_queue_len,
            queue_timeout=config.queue_timeout,
            request_timeout=config.request_timeout,
            silence=config.idle_timeout,
            response_bytes=config.max_response_bytes,
        )
        self._traces = _traces(config.otel_endpoint) if config.otel_endpoint else None
        self._pool = Pool(self._loop, limits, None if self._traces is None else self._traces.follow)
        keys = KeyFile.made(config.client_keys, self._loop.now) if config.client_keys else None
        names = Names(config.listen, config.allow_host, config.allow_origin, config.cors_origin)
        gate = Gate(names, keys)
        self._accounts = Accounts(keys, self._loop.now) if keys is not None else None
        failed = FailedAttempts(self._loop.now)
        self._doors = doors = AccessChecks(gate, self._read_worker_secret(), self._accounts, failed)
        # Counted separately: workers with a wrong secret must not lock out operators at the same address.
        attempts = FailedAttempts(self._loop.now)
        self._admin = admin = Admin(
            self._pool,
            keys,
            self._accounts,
            self._read_admin_token(),
            attempts,
            self._stats,
            self._metrics,
            config.drain_timeout,
        )
        self._leaving = False
        self._redis_password = self._read_redis_password()
        credentials = self._redis_credentials if config.redis_password_file else None
        self._peers: Peers | None = None
        if config.redis:
            meeting = RedisConfig(config.redis, config.provider, credentials)
            self._peers = Peers(self._loop, meeting, self._pool, self._accounts)
        self._site = RelaySite(
            self._loop,
            config,
            self._pool,
            doors,
            admin,
            self._metrics,
            lambda: self._leaving,
        )
        self._started_at = self._loop.now()
        self._clients: set[Client] = set()
        self._listeners: list[Listener] = []
        self._passed: list[socket.socket] = []
        self._ending = False

    def run(self) -> int:
        """Run until the relay ends, and return the exit status. Raises ``ConfigError`` where it can't listen."""
        raise_descriptor_limit(self._config.max_connections, "max_connections")
        self._passed = self._passed_sockets()
        for sock in self._passed or tcp_sockets(*parse_address(self._config.listen)):
            self._listeners.append(Listener(self._loop, sock, self._accept))
            host, port = sock.getsockname()[:2]
            log.info("listening", extra={"fields": {"at": f"[{host}]:{port}" if ":" in host else f"{host}:{port}"}})
        self._signals.handle()
        threads: Sequence[JobThread] = ()
        if self._peers is not None:
            threads = self._peers.threads
            self._peers.start()
        systemd.feed_watchdog(self._loop.call_later, ThreadWatch(threads).stuck)
        systemd.notify("READY=1\nSTATUS=relaying")
        try:
            self._loop.run(self._turn)
        finally:
            self._stop_listening()
        for client in list(self._clients):
            client.channel.abort()
        if self._traces is not None:
            self._traces.stop()
        self._signals.restore()
        # A hanging thread may still wake the loop later, which must then stay open.
        if self._peers is None or self._peers.stop():
            self._loop.close()
        log.info("stopped")
        return os.EX_OK

    def stop(self) -> None:
        """Drain and end, as for the first SIGTERM; safe from any thread."""
        self._signals.stop()

    def _passed_sockets(self) -> list[socket.socket]:
        """Sockets of the service manager, instead of the setting's."""
        passed = [sock for _, sock in systemd.listen_fds()]
        for sock in passed:
            if sock.family == socket.AF_UNIX:
                raise ConfigError(f"{sock.getsockname()} from the service manager: expected a TCP socket")
            host = sock.getsockname()[0]
            if not (self._config.client_keys or self._config.insecure or is_loopback(host)):
                raise ConfigError(f"{host} from the service manager: expected loopback, or client_keys, or insecure")
        return passed

    def _stop_listening(self) -> None:
        for listener in self._listeners:
            listener.close()
        self._listeners.clear()

    # -- files ---------------------------------------------------------------------------------------------------

    def _read_worker_secret(self) -> str:
        return read_secret(self._config.worker_secret, self._config.worker_secret_file, "worker_secret_file")

    def _read_admin_token(self) -> str:
        return read_secret(self._config.admin_token, self._config.admin_token_file, "admin_token_file")

    def _read_redis_password(self) -> str:
        return read_secret("", self._config.redis_password_file, "redis_password_file")

    def _redis_credentials(self) -> Credentials:
        """Credentials for Redis; called on a thread."""
        user, password = self._config.redis_user, self._redis_password
        return (user, password) if user else (password,)

    def _reread_files(self) -> None:
        """Reread certificates and secrets, for SIGHUP. A file that can't be used changes nothing; connected workers and
        clients stay connected. Client keys are reread without it."""
        log.info("reloading certificate and secrets")
        cert, key = self._config.tls_cert, self._config.tls_key
        if self._tls is not None:
            self._tls = reread(lambda: server_context(cert, key), self._tls)
        self._doors.worker_secret = reread(self._read_worker_secret, self._doors.worker_secret)
        self._admin.token = reread(self._read_admin_token, self._admin.token)
        self._redis_password = reread(self._read_redis_password, self._redis_password)

    # -- clients and workers -------------------------------------------------------------------------------------

    def _accept(self, sock: socket.socket) -> None:
        if len(self._clients) >= self._config.max_connections:
            sock.close()
            self._pool.totals["connections_refused"] += 1
            return
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        cipher = None if self._tls is None else Tls(self._tls)
        config = self._config
        channel = Channel(
            self._loop, sock, high_water=config.tx_high_water, stall_timeout=config.idle_timeout, cipher=cipher
        )
        peer = _address(sock)
        self._clients.add(HttpConnection(self._loop, self._site, channel, peer, self._replace, self._clients.discard))

    def _replace(self, old: Client, new: Client) -> None:
        self._clients.discard(old)
        self._clients.add(new)

    # -- numbers -------------------------------------------------------------------------------------------------

    def _metrics(self, keys: Sequence[str]) -> bytes:
        """Metrics in Prometheus' format, with the usage of these keys."""
        used = {name: self._accounts.shown(name) for name in keys} if self._accounts is not None else {}
        return exposition(None, self._stats(), keys=used)

    def _stats(self) -> Mapping[str, int | float | str]:
        pool, totals = self._pool, self._pool.totals
        return {
            "relay_uptime_s": round(self._loop.now() - self._started_at, 3),
            "relay_connections": len(self._clients),
            "relay_workers": len(pool.workers),
            "relay_peers": len(pool.elsewhere),
            "relay_queue_length": len(pool.queue),
            "relay_in_flight": len(pool.in_flight),
            **{f"relay_{name}_total": totals[name] for name in COUNTED},
            "relay_rss_bytes": resident_bytes(),
        }

    def _turn(self) -> None:
        """One turn of the loop, phase by phase."""
        ready = self._loop.poll()
        if self._peers is not None:
            self._peers.collect()
        self._loop.serve(ready)
        self._loop.run_due()
        self._end_if_over()
        self._loop.flush()

    # -- the end -------------------------------------------------------------------------------------------------

    def _end_if_over(self) -> None:
        if self._signals.count and not self._leaving:
            self._leave()
        if self._pool.closing and not self._ending and not self._pool.in_flight:
            self._ending = True
            self._pool.end_all()
            self._loop.call_later(FAREWELL_S, self._loop.stop)
            for client in list(self._clients):
                client.close()
        if self._ending and not any(client.channel.queued for client in self._clients):
            self._loop.call_soon(self._loop.stop)

    def _leave(self) -> None:
        """Drain, after the time that load balancers need to see ``/health/ready`` say no."""
        self._leaving = True
        config = self._config
        systemd.notify_stopping(config.drain_grace + config.drain_timeout + FAREWELL_S)
        if config.drain_grace:
            about = {"grace_s": config.drain_grace}
            log.info(
                "shutting down after a grace period, in which requests are still accepted", extra={"fields": about}
            )
            self._loop.call_later(config.drain_grace, self._drain)
        else:
            self._drain()

    def _drain(self) -> None:
        if self._passed:
            # Whoever comes now waits in their backlog for the next relay.
            self._stop_listening()
        timeout_s = self._config.drain_timeout
        fields = {"in_flight": len(self._pool.in_flight), "queued": len(self._pool.queue)}
        log.info("draining", extra={"fields": {**fields, "timeout_s": timeout_s}})
        # Scheduled before the workers' own drain timers, so that remaining clients are told of the shutdown.
        self._loop.call_later(timeout_s, self._pool.end_all)
        self._pool.shut_down("the relay is shutting down", timeout_s)


def _traces(endpoint: str) -> Traces:
    # Imported only where it is wanted: it may not be there, and takes time.
    try:
        from umaserve.net.collector import sending
        from umaserve.relay.traces import Traces
    except ImportError as error:
        problem = f"otel_endpoint is set, and OpenTelemetry is not installed ({error})"
        raise ConfigError(f"{problem}: pip install 'umaserve[otel]', or remove the setting") from None
    return Traces(sending(endpoint))


def _address(sock: socket.socket) -> str:
    """The peer's IP address; "gone" where it has already disconnected."""
    try:
        host: str = sock.getpeername()[0]
    except OSError as error:
        log.debug("the address of a peer is unknown: %s", error)
        return "gone"
    return host
