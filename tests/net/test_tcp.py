"""Addresses, the TCP sockets made for them, and what an accepted connection is called and set to."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.errors import ConfigError
from umaserve.net import tcp
from umaserve.net.channel import Channel
from umaserve.net.listeners import Listener
from umaserve.net.loop import Loop
from umaserve.net.tcp import is_at, tcp_sockets
from umaserve.settings.addresses import is_loopback, is_wildcard, parse_address
from umaserve.system.peer_credentials import peer_name


def has(host: str) -> bool:
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
            sock.bind((host, 0))
    except OSError:
        return False
    return True


V4 = pytest.param("127.0.0.1", marks=pytest.mark.skipif(not has("127.0.0.1"), reason="this box has no 127.0.0.1"))
V6 = pytest.param("::1", marks=pytest.mark.skipif(not has("::1"), reason="this box has no ::1"))
needs_both = pytest.mark.skipif(not (has("127.0.0.1") and has("::1")), reason="this box has no 127.0.0.1 and ::1")

# Addresses.


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8080", "127.0.0.1", 8080),
        ("localhost:0", "localhost", 0),
        ("[::1]:8080", "::1", 8080),
        ("[::]:65535", "::", 65535),
        ("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
        ("my-box_2.example.:00080", "my-box_2.example.", 80),
        (f"{'a' * 63}.x:1", f"{'a' * 63}.x", 1),
    ],
)
def test_an_address_is_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_address(text) == (host, port)


@pytest.mark.parametrize("port", ["", "65536", "99999", "123456", "-1", "+1", " 1", "1 ", "http", "0x10", "1_0", "1e1"])
def test_a_port_that_is_none_is_refused(port: str) -> None:
    with pytest.raises(ValueError, match="port: expected a whole number from 0 to 65535"):
        parse_address(f"localhost:{port}")


@pytest.mark.parametrize(
    "text", ["", "localhost", ":8080", "8080", "::", "b\u00fccher.example:1", "a\n:1", "a\0:1", "a:\u0661"]
)
def test_what_has_no_host_or_is_not_ascii_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"address|port|host"):
        parse_address(text)


NO_IPV6 = [
    "::1",
    "2001:db8::1",
    "[::1",
    "::1]",
    "[]",
    "[localhost]",
    "[127.0.0.1]",
    "[::ffff:1.2.3.4]",
    "[::1]x",
    "[g::]",
]
NO_NAMES = ["*", "-a", "a-", "a..b", ".", ".a", "a b", "a/b", "u@h", "a" * 64, "a." * 127 + "a", "a%b"]
NO_IPV4 = [
    "0",
    "127.1",
    "1.2.3.4.5",
    "256.0.0.1",
    "0x7f000001",
    "0x7f.1",
    "127.0.0.0x1",
    "2130706433",
    "127.0.0.01",
    "0x",
]
"""Of the last, a C resolver takes most for addresses."""


@pytest.mark.parametrize(
    "host",
    [*NO_IPV6, *NO_NAMES, *NO_IPV4],
)
def test_a_host_that_is_none_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match="host: expected"):
        parse_address(f"{host}:80")


@given(st.ip_addresses(), st.integers(0, 65535))
def test_every_ip_address_is_one(address: object, port: int) -> None:
    host = str(address)
    if getattr(address, "ipv4_mapped", None):
        return
    assert parse_address(f"[{host}]:{port}" if ":" in host else f"{host}:{port}") == (host, port)


@given(st.text(alphabet="[]:.%0123456789abcx-_ \n\0*/é", max_size=20))
def test_any_text_is_an_address_or_a_value_error(text: str) -> None:
    try:
        host, port = parse_address(text)
    except ValueError:
        return
    again = f"[{host}]" if ":" in host else host
    assert parse_address(f"{again}:{port}") == (host, port)


LOOPBACK = [
    "localhost",
    "LocalHost",
    "localhost.",
    "a.localhost",
    "127.0.0.1",
    "127.255.0.9",
    "::1",
    "::ffff:127.0.0.1",
]
WILDCARD = ["0.0.0.0", "::", "0:0::0", "::ffff:0.0.0.0"]
OTHER = ["example.com", "localhost.example.com", "notlocalhost", "127.0.0.1.example.com", "10.0.0.1", "128.0.0.1"]
OTHER += ["::2", "fe80::1", "::ffff:10.0.0.1", "", "127.1", "[::1]"]


@pytest.mark.parametrize("host", LOOPBACK + WILDCARD + OTHER)
def test_how_far_an_address_reaches(host: str) -> None:
    assert is_loopback(host) == (host in LOOPBACK)
    assert is_wildcard(host) == (host in WILDCARD)


# Listening.


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def listening(stack: ExitStack, host: str, port: int = 0) -> list[socket.socket]:
    return [stack.enter_context(sock) for sock in tcp_sockets(host, port)]


resolve = socket.getaddrinfo


def resolves_to(monkeypatch: pytest.MonkeyPatch, *hosts: str) -> None:
    """Make any name stand for ``hosts``."""

    def getaddrinfo(_host: str, port: int, **options: int) -> list[tuple]:
        return [found for host in hosts for found in resolve(host, port, **options)]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("host", [V4, V6])
def test_an_address_of_either_family_is_listened_on(host: str, stack: ExitStack) -> None:
    (sock,) = listening(stack, host)
    assert not sock.getblocking()
    assert not sock.get_inheritable()
    assert sock.getsockname()[0] == host
    stack.enter_context(socket.create_connection(sock.getsockname()[:2]))


@needs_both
def test_a_name_with_two_addresses_has_one_port(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, "127.0.0.1", "::1", "127.0.0.1")
    sockets = listening(stack, "both.example")
    assert [sock.getsockname()[0] for sock in sockets] == ["127.0.0.1", "::1"]
    assert len({sock.getsockname()[1] for sock in sockets}) == 1
    assert sockets[0].getsockname()[1] != 0


@needs_both
def test_both_wildcards_share_a_port(stack: ExitStack) -> None:
    (v6,) = listening(stack, "::")
    (v4,) = listening(stack, "0.0.0.0", v6.getsockname()[1])
    assert v4.family == socket.AF_INET


def test_a_port_in_use_is_named_and_nothing_is_left_open(stack: ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    resolves_to(monkeypatch, "127.0.0.2", "127.0.0.1")
    taken = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = taken.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"^address box\.example:{port}: Address already in use: .*another port$"):
        tcp_sockets("box.example", port)
    # The first of the two was bound before the second failed.
    stack.enter_context(socket.create_server(("127.0.0.2", port)))


def test_a_port_is_free_again_while_its_last_connections_linger(stack: ExitStack) -> None:
    (sock,) = listening(stack, "127.0.0.1")
    port = sock.getsockname()[1]
    client = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
    sock.setblocking(True)
    accepted, _ = sock.accept()
    # Who closes first keeps the port in TIME_WAIT.
    accepted.close()
    client.close()
    sock.close()
    listening(stack, "127.0.0.1", port)


@pytest.mark.parametrize("call", ["socket", "bind"])
@pytest.mark.parametrize("order", [["127.0.0.1", "::1"], ["::1", "127.0.0.1"]])
def test_a_family_that_the_box_lacks_is_skipped(
    call: str, order: list[str], stack: ExitStack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class WithoutIpv6(socket.socket):
        def __init__(self, family: int = -1, *arguments: int) -> None:
            if family == socket.AF_INET6 and call == "socket":
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
            # An IPv4 socket stands in for it, on a box that has no IPv6 either.
            self.lacking = family == socket.AF_INET6
            super().__init__(socket.AF_INET, *arguments)

        def setsockopt(self, level: int, *arguments: int) -> None:
            if level != socket.IPPROTO_IPV6:
                super().setsockopt(level, *arguments)

        def bind(self, address: tuple) -> None:
            if self.lacking:
                raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
            super().bind(address)

    resolves_to(monkeypatch, *order)
    monkeypatch.setattr(tcp.socket, "socket", WithoutIpv6)
    with caplog.at_level("INFO"):
        (sock,) = listening(stack, "both.example")
    assert sock.getsockname()[0] == "127.0.0.1"
    assert "not listening on ::1" in caplog.text
    resolves_to(monkeypatch, "::1")
    with pytest.raises(
        ConfigError, match=r"^address \[::1\]:80: (Address family not|Cannot assign).*choose an address"
    ):
        tcp_sockets("::1", 80)


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^address 203\.0\.113\.7:0: .*: choose an address of this machine$"):
        tcp_sockets("203.0.113.7", 0)


def test_a_port_that_needs_a_privilege_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def bind(_sock: socket.socket, _address: tuple) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(socket.socket, "bind", bind)
    with pytest.raises(ConfigError, match=r"^address 127\.0\.0\.1:80: Permission denied: .*CAP_NET_BIND_SERVICE"):
        tcp_sockets("127.0.0.1", 80)


def test_a_name_that_does_not_resolve_is_refused() -> None:
    # RFC 6761 keeps "invalid" from ever meaning anything.
    with pytest.raises(ConfigError, match=r"^address umaserve\.invalid:80: the host can't be resolved: .*spelling"):
        tcp_sockets("umaserve.invalid", 80)


# Accepting.


@pytest.fixture
def loop(stack: ExitStack) -> Loop:
    loop = Loop()
    stack.callback(loop.close)
    return loop


class Echo:
    """A handler that sends back what it gets."""

    def __init__(self, channel: Channel, done: Callable[[], None]) -> None:
        self.channel = channel
        self.done = done
        self.lost = False
        channel.handler = self

    def data_received(self, data: bytes) -> None:
        self.channel.write(data)

    def input_ended(self) -> None:
        self.channel.close()

    def wants_data(self) -> bool:
        return True

    def drained(self) -> None:
        raise AssertionError("nothing was congested")

    def connection_lost(self) -> None:
        self.lost = True
        self.done()


@pytest.mark.parametrize("host", [V4, V6])
def test_a_client_is_accepted_and_served_by_the_loop(host: str, loop: Loop, stack: ExitStack) -> None:
    echoes: list[Echo] = []

    def accepted(theirs: socket.socket) -> None:
        assert theirs.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert theirs.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert peer_name(theirs) == f"ip:{host}"
        echoes.append(Echo(Channel(loop, theirs, high_water=1024, stall_timeout=30.0), loop.stop))

    (sock,) = listening(stack, host)
    listener = Listener(loop, sock, accepted)
    client = stack.enter_context(socket.create_connection(sock.getsockname()[:2]))
    client.sendall(b"hello")
    client.shutdown(socket.SHUT_WR)
    # A daemon that does nothing fails the test; it must not hang it.
    loop.call_later(20.0, loop.stop)
    loop.run()
    listener.close()
    assert echoes[0].lost
    assert client.recv(100) == b"hello"
    assert client.recv(100) == b""


class Scripted(socket.socket):
    """A socket that some calls fail for, as the kernel may make them."""

    accept_errors: list[int]
    handed_out: socket.socket
    peer: tuple = ()

    def accept(self) -> tuple[socket.socket, object]:
        if not self.accept_errors:
            raise BlockingIOError
        if error := self.accept_errors.pop(0):
            raise OSError(error, os.strerror(error))
        return self.handed_out, None

    def setsockopt(self, *_: object) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    def getpeername(self) -> tuple:
        if not self.peer:
            raise OSError(errno.ENOTCONN, os.strerror(errno.ENOTCONN))
        return self.peer


def test_a_peer_that_is_already_gone_is_handed_over_all_the_same(loop: Loop, stack: ExitStack) -> None:
    accepted: list[socket.socket] = []
    ours = stack.enter_context(Scripted(socket.AF_INET))
    ours.bind(("127.0.0.1", 0))
    ours.listen()
    ours.handed_out = gone = stack.enter_context(Scripted(socket.AF_INET))
    ours.accept_errors = [errno.EPROTO, errno.ECONNABORTED, errno.EHOSTUNREACH, errno.EPERM, 0]
    stack.enter_context(socket.create_connection(ours.getsockname()))
    listener = Listener(loop, ours, accepted.append)
    loop.turn()
    listener.close()
    assert accepted == [gone], "and those that were lost in the queue don't keep it from being accepted"
    assert peer_name(gone) == "ip:gone"


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("192.0.2.1", "ip:192.0.2.1"),
        ("::ffff:192.0.2.1", "ip:192.0.2.1"),
        ("::ffff:127.0.0.1", "ip:127.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "ip:2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "ip:2001:db8:1:2::/64"),
        ("fe80::1%eth0", "ip:fe80::/64"),
        ("::1", "ip:::1"),
        ("::2", "ip:::/64"),
    ],
)
def test_who_a_peer_is_to_the_limits(host: str, name: str) -> None:
    with Scripted(socket.AF_INET6 if ":" in host else socket.AF_INET) as sock:
        sock.peer = (host, 50000)
        assert peer_name(sock) == name


def test_a_peer_on_a_unix_socket_is_its_user() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert peer_name(left) == f"uid:{os.getuid()}"


@needs_both
@pytest.mark.parametrize(
    ("own", "wanted", "there"),
    [
        ("::1", "::1", True),
        ("::", "::", True),
        ("::", "0.0.0.0", True),
        ("0.0.0.0", "::", True),
        ("::", "::1", False),
        ("::1", "127.0.0.1", False),
    ],
)
def test_where_a_socket_is(own: str, wanted: str, there: bool) -> None:
    family = socket.AF_INET6 if ":" in own else socket.AF_INET
    with socket.create_server((own, 0), family=family) as sock:
        port = sock.getsockname()[1]
        assert is_at(sock, wanted, port) == is_at(sock, wanted, 0) == there
        assert not is_at(sock, own, port - 1)
