"""All listening sockets, and the connection made of each accepted client."""

from __future__ import annotations

import functools
import logging
import socket
from collections.abc import Sequence
from typing import NamedTuple

from umaserve.core.errors import ConfigError, Fault, RequestError
from umaserve.daemon.connection import Connection
from umaserve.daemon.services import Services
from umaserve.daemon.wyoming import WyomingConnection
from umaserve.dialects.openai.errors import error_body
from umaserve.dialects.parameters import RequestLimits
from umaserve.dialects.uds.conversation import JsonDialect, LineDialect
from umaserve.dialects.wyoming import replies
from umaserve.http.connection import Client, HttpConnection, Site
from umaserve.net.channel import Channel
from umaserve.net.listeners import Listener, SocketFile
from umaserve.net.tcp import is_at, tcp_sockets
from umaserve.net.tls import Tls, server_context
from umaserve.sessions.caller import Caller
from umaserve.settings.addresses import is_loopback, parse_addresses, parse_place
from umaserve.settings.daemon import Config
from umaserve.settings.reread import reread
from umaserve.system import systemd
from umaserve.system.peer_credentials import peer_name
from umaserve.wire.framing import FrameCodec, LineCodec
from umaserve.wire.http11 import HttpCodec
from umaserve.wire.wyoming import encode

log = logging.getLogger(__name__)

HTTP = "http"
HTTP_FILE = "http_socket"
OLLAMA = "ollama"
WYOMING = "wyoming"
OLLAMA_ADDRESS = ("127.0.0.1", 11434)
"""Address at which Ollama's clients look for a server."""
NETWORK_LEAVES = 8
"""One in this many connections is reserved for the Unix sockets."""


class Place(NamedTuple):
    """Place where the daemon listens."""

    protocol: str
    at: str
    """HOST:PORT or a path."""
    is_tcp: bool
    encrypted: bool


class Listeners:
    """The listening sockets, once they are open, and the connected clients. Raises ``ConfigError`` for a certificate
    that can't be used."""

    def __init__(self, services: Services, site: Site, *, http_is_optional: bool = False) -> None:
        """``http_is_optional``: where the address of ``http`` can't be listened at, serve without it."""
        self._services = services
        self._config = services.config
        self._site = site
        self._listeners: list[Listener] = []
        self._passed: list[Listener] = []
        """Listeners on the service manager's sockets, which stay open when this daemon has ended."""
        self._files: list[SocketFile] = []
        self._http_is_optional = http_is_optional
        self.places: list[Place] = []
        self._past_bytes = [0, 0]
        """Bytes received and sent by connections that have ended."""
        config = services.config
        self._tls = server_context(config.tls_cert, config.tls_key) if config.tls_cert else None
        self.clients: set[Client] = set()

    def open(self) -> None:
        """Open all listening sockets, or none and raise ``ConfigError``."""
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        config = self._config
        given: dict[str, list[socket.socket]] = {}
        for name, sock in systemd.listen_fds():
            given.setdefault(self._take(name, sock), []).append(sock)
        if given.keys() <= {HTTP, HTTP_FILE, OLLAMA, WYOMING}:
            self._listen(config.protocol, self._file(config.socket))
        for setting in (HTTP, HTTP_FILE, WYOMING):
            if setting in given:
                _compare(setting, getattr(config, setting), given[setting])
        if config.wyoming and WYOMING not in given:
            place = parse_place(config.wyoming)
            for sock in [self._file(place)] if isinstance(place, str) else tcp_sockets(*place):
                self._listen(WYOMING, sock)
        if config.ollama and OLLAMA not in given:
            for sock in tcp_sockets(*OLLAMA_ADDRESS):
                self._listen(HTTP, sock, plain=True)
        if config.http_socket and HTTP_FILE not in given:
            self._listen(HTTP, self._file(config.http_socket))
        if config.http and HTTP not in given:
            for host, port in parse_addresses(config.http):
                for sock in self._http_sockets(host, port):
                    self._listen(HTTP, sock)

    def _http_sockets(self, host: str, port: int) -> list[socket.socket]:
        try:
            return tcp_sockets(host, port)
        except ConfigError as error:
            if not self._http_is_optional:
                raise
            log.warning("HTTP is off: %s (--http HOST:PORT sets another address)", error)
            return []

    def _take(self, name: str, sock: socket.socket) -> str:
        """Listen on a socket that the service manager passed, instead of the setting's; returns which one that is."""
        protocol = _protocol(name, sock, self._config)
        _check_reach(protocol, sock, self._config)
        self._listen(protocol, sock, plain=name == OLLAMA)
        self._passed.append(self._listeners[-1])
        if name == OLLAMA:
            return name
        return HTTP_FILE if protocol == HTTP and sock.family == socket.AF_UNIX else protocol

    def _file(self, path: str) -> socket.socket:
        self._files.append(SocketFile(path, self._config.socket_mode))
        return self._files[-1].socket

    def _listen(self, protocol: str, sock: socket.socket, *, plain: bool = False) -> None:
        accept = functools.partial(self._accept, protocol, plain)
        self._listeners.append(Listener(self._services.loop, sock, accept))
        is_tcp = sock.family != socket.AF_UNIX
        encrypted = self._tls is not None and protocol == HTTP and not plain and is_tcp
        self.places.append(Place(protocol, _shown(sock), is_tcp, encrypted))
        log.info("listening", extra={"fields": {"at": _shown(sock), "protocol": protocol}})

    def reread_certificate(self) -> None:
        """Reread the certificate, for the connections that come from now on; one that can't be used is logged, and the
        one before stays."""
        cert, key = self._config.tls_cert, self._config.tls_key
        if self._tls is not None:
            self._tls = reread(lambda: server_context(cert, key), self._tls)

    def hand_over(self) -> bool:
        """Leave those who come from now on to the next daemon, for whom they wait in the backlog of the service
        manager's sockets; returns whether there are any such sockets."""
        if not self._passed:
            return False
        for listener in self._passed:
            listener.close()
            self._listeners.remove(listener)
        self._passed.clear()
        for client in self.clients:
            if isinstance(client, HttpConnection):
                client.leave()
        return True

    @property
    def awaits_requests(self) -> bool:
        """Whether a client has connected and sent nothing yet, or a part of its request."""
        return any(
            not client.channel.bytes_received or (isinstance(client, HttpConnection) and client.receiving)
            for client in self.clients
        )

    def close_idle(self) -> None:
        """Close the HTTP connections that are between two requests."""
        for client in list(self.clients):
            if isinstance(client, HttpConnection) and client.idle:
                client.close()

    def close(self) -> None:
        """Stop listening; connected clients stay."""
        for listener in self._listeners:
            listener.close()
        self.remove_files()

    def remove_files(self) -> None:
        for file in self._files:
            file.remove()

    # -- clients -------------------------------------------------------------------------------------------------

    def _accept(self, protocol: str, plain: bool, sock: socket.socket) -> None:
        """Accept a client. ``plain``: without TLS, whatever the settings say."""
        config = self._config
        peer = peer_name(sock)
        tls = self._tls if protocol == HTTP and not plain and sock.family != socket.AF_UNIX else None
        limit = config.max_sessions
        if sock.family != socket.AF_UNIX:
            # Silent peers out of the network must not lock out the box's own programs.
            limit -= limit // NETWORK_LEAVES
        if len(self.clients) >= limit:
            self._refuse(protocol, sock, limit, encrypted=tls is not None)
            return
        log.debug("accepted", extra={"fields": {"peer": peer, "protocol": protocol}})
        channel = Channel(
            self._services.loop,
            sock,
            high_water=config.tx_high_water,
            stall_timeout=config.idle_timeout,
            cipher=None if tls is None else Tls(tls),
        )
        if protocol == HTTP:
            self.clients.add(
                HttpConnection(self._services.loop, self._site, channel, peer, self._replace_client, self._forget)
            )
        elif protocol == WYOMING:
            caller = Caller(protocol, peer)
            self.clients.add(WyomingConnection(self._services, channel, caller, self._forget))
        else:
            codec, dialect = _unix_protocol(protocol, config)
            caller = Caller(protocol, peer)
            self.clients.add(Connection(self._services, channel, codec, dialect, caller, self._forget))

    def _replace_client(self, old: Client, new: Client) -> None:
        self.clients.discard(old)
        self.clients.add(new)

    def _forget(self, client: Client) -> None:
        self.clients.discard(client)
        self._past_bytes[0] += client.channel.bytes_received
        self._past_bytes[1] += client.channel.bytes_sent

    def _refuse(self, protocol: str, sock: socket.socket, limit: int, *, encrypted: bool) -> None:
        self._services.models.totals.rejected += 1
        error = RequestError(
            Fault.TOO_MANY_SESSIONS, "connection", f"{limit} connections are open, which is the limit; try again later"
        )
        with sock:
            sock.setblocking(False)
            try:
                # A handshake would be work, and this is for a server that has too much of it.
                sock.send(b"" if encrypted else _refusal(protocol, error, self._config))
            except OSError as failed:
                log.debug("the refusal could not be sent: %s", failed)

    @property
    def bytes_received(self) -> int:
        return self._past_bytes[0] + sum(client.channel.bytes_received for client in self.clients)

    @property
    def bytes_sent(self) -> int:
        return self._past_bytes[1] + sum(client.channel.bytes_sent for client in self.clients)


def _protocol(name: str, sock: socket.socket, config: Config) -> str:
    """The protocol of a socket that the service manager passed."""
    if name == OLLAMA:
        return HTTP
    if name in ("json", "newline", HTTP, WYOMING):
        return name
    return config.protocol if sock.family == socket.AF_UNIX else HTTP


def _compare(setting: str, value: str, passed: Sequence[socket.socket]) -> None:
    """Say so where the sockets ``passed`` instead of a setting's are at other addresses than its ``value``."""
    if value and not any(_is_at(sock, setting, value) for sock in passed):
        log.warning(
            "%s is %s, but the service manager has passed a socket at %s, and the daemon listens only there: change"
            " ListenStream= of the socket's unit to the former, disable that unit, or set %s to the latter",
            setting,
            value,
            " and ".join(map(_shown, passed)),
            setting,
        )


def _is_at(sock: socket.socket, setting: str, value: str) -> bool:
    if setting == HTTP:
        return any(is_at(sock, *place) for place in parse_addresses(value))
    place = value if setting == HTTP_FILE else parse_place(value)
    if isinstance(place, str) or sock.family == socket.AF_UNIX:
        return bool(sock.getsockname() == place)
    return is_at(sock, *place)


def _check_reach(protocol: str, sock: socket.socket, config: Config) -> None:
    """Raise ``ConfigError`` for a socket of the service manager's that more can reach than the settings allow for."""
    if sock.family == socket.AF_UNIX or config.insecure or is_loopback(sock.getsockname()[0]):
        return
    if protocol != HTTP:
        raise ConfigError(
            f"{_shown(sock)}, {protocol}: expected a loopback address, or the setting insecure, since this protocol"
            " has no keys"
        )
    if not config.api_keys:
        raise ConfigError(
            f"{_shown(sock)}, {protocol}: expected a loopback address, or the setting api_keys or insecure"
        )


def _unix_protocol(protocol: str, config: Config) -> tuple[FrameCodec | LineCodec, JsonDialect | LineDialect]:
    limits = RequestLimits(config.max_prompt_bytes, config.max_tokens or None)
    if protocol == "json":
        return FrameCodec(config.max_frame_bytes), JsonDialect(limits, config.keep_alive)
    return LineCodec(config.max_frame_bytes), LineDialect(limits)


def _refusal(protocol: str, error: RequestError, config: Config) -> bytes:
    if protocol == HTTP:
        status, body, headers = error_body(error)
        return HttpCodec(0, 0).respond(status, [("Content-Type", "application/json"), *headers], body)
    if protocol == WYOMING:
        return encode(replies.error(error))
    codec, dialect = _unix_protocol(protocol, config)
    return codec.send(dialect.fail(error).payload)


def _shown(sock: socket.socket) -> str:
    if sock.family == socket.AF_UNIX:
        return str(sock.getsockname())
    host, port = sock.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
