"""TLS by itself, and below a channel, against the standard library and against itself."""

from __future__ import annotations

import contextlib
import datetime
import logging
import os
import re
import socket
import ssl
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme
from clock import Clock
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA384
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from umaserve.core.errors import ConfigError
from umaserve.net.channel import Channel
from umaserve.net.loop import READ, Loop
from umaserve.net.tls import Tls, TlsError, client_context, server_context

HIGH_WATER = 16 * 1024
fewer = settings(max_examples=examples(40))


@dataclass(frozen=True)
class Identity:
    """The files of a server's certificate and key, and who signed them."""

    authority: trustme.CA
    cert: str
    key: str


@pytest.fixture(scope="module")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    for blob in issued.cert_chain_pems:
        blob.write_to_path(folder / "cert.pem", append=True)
    issued.private_key_pem.write_to_path(folder / "key.pem")
    return Identity(authority, str(folder / "cert.pem"), str(folder / "key.pem"))


@pytest.fixture(scope="module")
def context(identity: Identity) -> ssl.SSLContext:
    return server_context(identity.cert, identity.key)


@pytest.fixture(scope="module", params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def trusting(identity: Identity, request: pytest.FixtureRequest) -> ssl.SSLContext:
    context = ssl.create_default_context()
    identity.authority.configure_trust(context)
    context.minimum_version = context.maximum_version = request.param
    context.set_alpn_protocols(["h2", "http/1.1"])
    return context


class Client:
    """A TLS client without a socket."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname="localhost")
        self.established = False
        self.text = bytearray()
        self.ended = False

    def receive(self, data: bytes = b"") -> bytes:
        """Take what the server sent; what to send it. Raises ssl.SSLError."""
        self._incoming.write(data)
        try:
            if not self.established:
                self.tls.do_handshake()
                self.established = True
            while text := self.tls.read(1 << 16):
                self.text += text
            self.ended = True
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLWantReadError:
            return self.take_output()
        return self.take_output()

    def take_output(self) -> bytes:
        return self._outgoing.read()

    def send(self, text: bytes) -> bytes:
        done = 0
        while done < len(text):
            done += self.tls.write(text[done:])
        return self.take_output()

    def close(self) -> bytes:
        with pytest.raises(ssl.SSLWantReadError):
            self.tls.unwrap()
        return self.take_output()


def split(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def shake_hands(client: Client, server: Tls, size: int = 1 << 16) -> None:
    """Pass what each side says to the other, ``size`` bytes at a time, until both are silent."""
    said = client.receive()
    while said:
        for piece in split(said, size):
            assert server.receive(piece) == b""
        said = b"".join(client.receive(piece) for piece in split(server.take_output(), size))
    assert client.established


@pytest.fixture
def server(context: ssl.SSLContext) -> Tls:
    return Tls(context)


@pytest.fixture
def client(trusting: ssl.SSLContext) -> Client:
    return Client(trusting)


# By itself.


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
def test_the_handshake_in_pieces_of_any_size(size: int, client: Client, server: Tls) -> None:
    shake_hands(client, server, size)
    assert client.tls.selected_alpn_protocol() == "http/1.1"
    assert client.tls.compression() is None
    assert server.receive(client.send(b"ping")) == b"ping"
    client.receive(server.send(b"pong"))
    assert client.text == b"pong"


texts = st.lists(st.tuples(st.booleans(), st.binary(max_size=40_000)), max_size=8)


@fewer
@given(texts=texts, sizes=st.lists(st.integers(1, 20_000), min_size=1, max_size=5))
def test_both_sides_read_what_the_other_wrote(
    texts: list[tuple[bool, bytes]], sizes: list[int], context: ssl.SSLContext, trusting: ssl.SSLContext
) -> None:
    client, server = Client(trusting), Tls(context)
    shake_hands(client, server)
    wanted, got = bytearray(), bytearray()
    for turn, (upwards, text) in enumerate(texts):
        size = sizes[turn % len(sizes)]
        if upwards:
            wanted += text
            for piece in split(client.send(text), size):
                got += server.receive(piece)
            assert got == wanted, "no whole record may be held back"
        else:
            client.text.clear()
            for piece in split(server.send(text), size):
                client.receive(piece)
            assert client.text == text


def test_one_piece_of_many_records_gives_all_its_text(client: Client, server: Tls) -> None:
    shake_hands(client, server)
    small = b"".join(client.send(b"x") for _ in range(500))
    assert server.receive(small + client.send(b"y" * 60_000)) == b"x" * 500 + b"y" * 60_000


def test_what_is_written_before_the_handshake_comes_right_after_it(client: Client, server: Tls) -> None:
    assert server.send(b"first ") == b""
    hello = client.receive()
    server.receive(hello)
    reply = server.take_output()
    assert server.send(b"y" * 40_000) == b""
    finished = client.receive(reply)
    assert client.text == b""
    server.receive(finished)
    client.receive(server.take_output() + server.send(b" last"))
    assert client.text == b"first " + b"y" * 40_000 + b" last"


# In TLS 1.2 the client waits for our Finished.
@pytest.mark.parametrize("trusting", [ssl.TLSVersion.TLSv1_3], indirect=True)
def test_the_first_request_may_come_with_the_end_of_the_handshake(client: Client, server: Tls) -> None:
    server.receive(client.receive())
    finished = client.receive(server.take_output())
    assert server.receive(finished + client.send(b"GET /")) == b"GET /"


def test_the_servers_close_notify_ends_the_clients_input_only(client: Client, server: Tls) -> None:
    shake_hands(client, server)
    client.receive(server.send(b"bye") + server.close())
    assert (client.text, client.ended, server.ended) == (b"bye", True, False)
    assert server.receive(client.send(b"so")) == b"so"
    client.tls.unwrap()
    server.receive(client.take_output())
    assert server.ended


def test_the_clients_close_notify_ends_the_servers_input_only(client: Client, server: Tls) -> None:
    shake_hands(client, server)
    assert server.receive(client.send(b"bye") + client.close() + b"more") == b"bye"
    assert server.ended
    assert server.receive(b"and more") == b""
    client.receive(server.send(b"so"))
    assert client.text == b"so"
    client.receive(server.close())
    assert client.ended


def test_closing_twice_says_it_once(client: Client, server: Tls) -> None:
    shake_hands(client, server)
    assert server.close() != b""
    assert server.close() == b""


def test_closing_in_the_middle_of_a_record_says_goodbye(client: Client, server: Tls) -> None:
    shake_hands(client, server)
    assert server.receive(client.send(b"half")[:-1]) == b""
    client.receive(server.close())
    assert client.ended


def test_closing_before_the_handshake_sends_nothing(client: Client, server: Tls) -> None:
    server.send(b"early")
    assert server.close() == b""
    other = Tls(server._tls.context)
    other.receive(client.receive())
    other.take_output()
    assert other.close() == b""


@pytest.mark.parametrize("size", [1, 1 << 16])
@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "http request"),
        (b"\0" * 4096, "handshake failed"),
        (os.urandom(4096).replace(b"\x16", b"x"), "handshake failed"),
        (bytes.fromhex("16 0301 ffff") + b"x" * 100, "handshake failed"),
        (bytes.fromhex("16 0301 0004 01ffffff"), "handshake failed"),
        (bytes.fromhex("17 0303 0010") + b"x" * 16, "handshake failed"),
    ],
    ids=["plain HTTP", "zeros", "noise", "long record", "long message", "data first"],
)
def test_what_is_no_handshake_is_an_error(data: bytes, reason: str, size: int, server: Tls) -> None:
    server.send(b"never sent in clear")
    with pytest.raises(TlsError, match=reason):
        assert not any(server.receive(piece) for piece in split(data, size))
    assert b"never" not in server.take_output() + server.close()


def test_a_broken_record_is_an_error_with_an_alert(client: Client, server: Tls) -> None:
    shake_hands(client, server)
    record = bytearray(client.send(b"hello"))
    record[-1] ^= 1
    with pytest.raises(TlsError, match="connection failed"):
        server.receive(bytes(record))
    with pytest.raises(ssl.SSLError, match=r"(?i)alert.bad.record.mac"):
        client.receive(server.close())
    with pytest.raises(TlsError):
        server.receive(bytes(record))


def test_a_client_that_is_too_old_is_told(identity: Identity, server: Tls) -> None:
    context = ssl.create_default_context()
    identity.authority.configure_trust(context)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    client = Client(context)
    try:
        hello = client.receive()
    except ssl.SSLError as error:
        pytest.skip(f"this OpenSSL can't be so old itself: {error}")
    with pytest.raises(TlsError, match="unsupported protocol"):
        server.receive(hello)
    with pytest.raises(ssl.SSLError, match=r"(?i)alert.protocol.version"):
        client.receive(server.take_output())


def test_a_client_that_does_not_trust_us_says_so(server: Tls) -> None:
    client = Client(ssl.create_default_context())
    server.receive(client.receive())
    with pytest.raises(ssl.SSLCertVerificationError):
        client.receive(server.take_output())
    with pytest.raises(TlsError, match=r"handshake failed: .*alert"):
        server.receive(client.take_output())


# A message of the handshake after the handshake, and only half of it.

KEY_UPDATE = bytes.fromhex("18 000001 00")
MAX_WAITING = 64 * 1024


def in_records(keylog: Path, pieces: list[bytes]) -> list[bytes]:
    """The first records of a client after its handshake, each a piece of a handshake message, as no library would cut
    it (RFC 8446, sections 5.2, 5.3 and 7.3)."""
    logged = re.search(r"^CLIENT_TRAFFIC_SECRET_0 \S+ (\S+)$", keylog.read_text(), re.MULTILINE)
    assert logged is not None

    def derive(label: bytes, length: int) -> bytes:
        info = length.to_bytes(2) + bytes([len(label)]) + label + b"\0"
        return HKDFExpand(SHA384(), length, info).derive(bytes.fromhex(logged[1]))

    key, iv = derive(b"tls13 key", 32), derive(b"tls13 iv", 12)
    records = []
    for number, piece in enumerate(pieces):
        header = b"\x17\x03\x03" + (len(piece) + 17).to_bytes(2)
        nonce = (int.from_bytes(iv) ^ number).to_bytes(12)
        records.append(header + AESGCM(key).encrypt(nonce, piece + b"\x16", header))
    return records


@pytest.fixture
def keylog(trusting: ssl.SSLContext, tmp_path: Path) -> Iterator[Path]:
    """Where the client writes down its keys."""
    trusting.keylog_filename = str(tmp_path / "keys")
    yield tmp_path / "keys"
    trusting.keylog_filename = None


def halves(client: Client, keylog: Path) -> list[bytes]:
    assert client.tls.cipher()[0] == "TLS_AES_256_GCM_SHA384"
    return in_records(keylog, [KEY_UPDATE[:4], KEY_UPDATE[4:]])


only_tls_1_3 = pytest.mark.parametrize("trusting", [ssl.TLSVersion.TLSv1_3], ids=["1.3"], indirect=True)


@only_tls_1_3
def test_what_is_written_within_a_key_update_comes_after_it(keylog: Path, client: Client, server: Tls) -> None:
    shake_hands(client, server)
    first, rest = halves(client, keylog)
    assert server.receive(first) == b""
    assert server.send(b"one ") + server.send(b"two") == b""
    assert server.receive(rest) == b""
    client.receive(server.take_output() + server.send(b" three") + server.close())
    assert (client.text, client.ended) == (b"one two three", True)


@only_tls_1_3
@pytest.mark.parametrize("waiting", [b"", b"unsaid"])
def test_closing_within_a_key_update_sends_nothing(waiting: bytes, keylog: Path, client: Client, server: Tls) -> None:
    shake_hands(client, server)
    server.receive(halves(client, keylog)[0])
    assert server.send(waiting) + server.close() == b""


@only_tls_1_3
@pytest.mark.parametrize("established", [True, False])
def test_so_much_and_no_more_may_wait(established: bool, keylog: Path, client: Client, server: Tls) -> None:
    if established:
        shake_hands(client, server)
        server.receive(halves(client, keylog)[0])
    assert server.send(b"x" * MAX_WAITING) == b""
    with pytest.raises(TlsError, match="more than 65536 bytes wait for the rest of a TLS handshake message"):
        server.send(b"x")
    assert server.close() == b""


def test_nothing_can_be_sent_after_a_broken_record(client: Client, server: Tls) -> None:
    shake_hands(client, server)
    with pytest.raises(TlsError):
        server.receive(b"\x17\x03\x03\x00\x20" + bytes(32))
    with pytest.raises(TlsError, match="connection failed"):
        server.send(b"x")


# The client's side.


@pytest.fixture(scope="module")
def authorities(identity: Identity, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file of the one who signed the server's certificate."""
    path = tmp_path_factory.mktemp("authorities") / "ca.pem"
    identity.authority.cert_pem.write_to_path(path)
    return str(path)


@pytest.fixture(params=[ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def dialing(authorities: str, request: pytest.FixtureRequest) -> ssl.SSLContext:
    context = client_context(authorities)
    context.maximum_version = request.param
    return context


class Standard:
    """The standard library's server without a socket."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def receive(self, data: bytes) -> bytes:
        self._incoming.write(data)
        try:
            self.tls.do_handshake()
            return self.tls.read(1 << 20)
        except ssl.SSLWantReadError:
            return b""

    def send(self, text: bytes) -> bytes:
        self.tls.write(text)
        return self.take_output()

    def take_output(self) -> bytes:
        return self._outgoing.read()


def converse(ours: Tls, theirs: Tls | Standard, text: bytes = b"", size: int = 1 << 16) -> tuple[bytes, bytes]:
    """Write ``text``, and pass on what each side has to say until both are silent; what each of them read."""
    got = (bytearray(), bytearray())
    said = ours.send(text)
    while said:
        for piece in split(said, size):
            got[1].extend(theirs.receive(piece))
        for piece in split(theirs.take_output(), size):
            got[0].extend(ours.receive(piece))
        said = ours.take_output()
    return bytes(got[0]), bytes(got[1])


@pytest.mark.parametrize("size", [1, 7, 1 << 16])
@pytest.mark.parametrize("make", [Tls, Standard])
def test_a_client_speaks_first_and_what_it_writes_early_follows_the_handshake(
    make: Callable[[ssl.SSLContext], Tls | Standard], size: int, dialing: ssl.SSLContext, context: ssl.SSLContext
) -> None:
    ours, theirs = Tls(dialing, "localhost"), make(context)
    assert converse(ours, theirs, b"GET /", size) == (b"", b"GET /")
    assert ours.receive(theirs.send(b"pong")) == b"pong"
    assert theirs.receive(ours.send(b"ping")) == b"ping"
    assert ours._tls.selected_alpn_protocol() == "http/1.1"


def test_goodbyes_are_said_in_both_directions(dialing: ssl.SSLContext, context: ssl.SSLContext) -> None:
    ours, theirs = Tls(dialing, "localhost"), Tls(context)
    converse(ours, theirs)
    assert theirs.receive(ours.send(b"bye") + ours.close()) == b"bye"
    assert theirs.ended
    assert ours.receive(theirs.send(b"so") + theirs.close()) == b"so"
    assert ours.ended


@fewer
@given(data=st.binary(max_size=2000), size=st.integers(1, 600))
def test_no_bytes_of_a_server_do_more_than_fail_the_handshake(data: bytes, size: int, authorities: str) -> None:
    ours = Tls(client_context(authorities), "localhost")
    ours.send(b"never sent in clear")
    with contextlib.suppress(TlsError):
        assert not any(ours.receive(piece) for piece in split(data, size))
    assert b"never" not in ours.take_output() + ours.close()


def test_a_name_may_end_with_its_dot(dialing: ssl.SSLContext, context: ssl.SSLContext) -> None:
    ours, theirs = Tls(dialing, "localhost."), Tls(context)
    assert converse(ours, theirs, b"ping") == (b"", b"ping")


@pytest.mark.parametrize("address", ["127.0.0.1", "2001:db8::1"])
def test_an_ip_address_is_checked_as_one(
    address: str, dialing: ssl.SSLContext, identity: Identity, context: ssl.SSLContext
) -> None:
    addressed = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    identity.authority.issue_cert(address).configure_cert(addressed)
    ours, theirs = Tls(dialing, address), Tls(addressed)
    assert converse(ours, theirs, b"ping") == (b"", b"ping")
    with pytest.raises(TlsError, match=f"IP address mismatch, certificate is not valid for '{address}'$"):
        converse(Tls(dialing, address), Tls(context))


def self_signed() -> ssl.SSLContext:
    # An authority that signs only itself is what openssl req -x509 makes.
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with authority.private_key_pem.tempfile() as key, authority.cert_pem.tempfile() as cert:
        context.load_cert_chain(cert, key)
    return context


def foreign() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    return context


def expired(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    past = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    authority.issue_cert("localhost", not_before=past, not_after=past).configure_cert(context)
    return context


@pytest.mark.parametrize(
    ("serving", "name", "reason"),
    [
        (lambda _authority: self_signed(), "localhost", "self-signed certificate"),
        (lambda _authority: foreign(), "localhost", "unable to get local issuer certificate"),
        (expired, "localhost", "certificate has expired"),
        (None, "relay.example", "Hostname mismatch, certificate is not valid for 'relay.example'"),
    ],
    ids=["self-signed", "foreign", "expired", "another's"],
)
def test_a_certificate_that_can_not_be_trusted_is_an_error_that_says_why(
    serving: Callable[[trustme.CA], ssl.SSLContext] | None,
    name: str,
    reason: str,
    dialing: ssl.SSLContext,
    identity: Identity,
    context: ssl.SSLContext,
) -> None:
    ours, theirs = Tls(dialing, name), Tls(serving(identity.authority) if serving else context)
    with pytest.raises(TlsError, match=f"^TLS handshake failed: certificate verify failed: {reason}$"):
        converse(ours, theirs, b"never sent")
    with pytest.raises(TlsError, match=r"^TLS handshake failed: .*alert"):
        theirs.receive(ours.close())


def test_a_server_that_is_too_old_is_refused(dialing: ssl.SSLContext, context: ssl.SSLContext) -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(TlsError, match=r"handshake failed: "):
        converse(Tls(dialing, "localhost"), Tls(old))


def test_the_systems_authorities_are_trusted(
    authorities: str, context: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", authorities)
    ours, theirs = Tls(client_context(), "localhost"), Tls(context)
    assert converse(ours, theirs, b"ping") == (b"", b"ping")


def test_a_clients_context_trusts_nobody_unchecked(authorities: str) -> None:
    context = client_context(authorities)
    assert context.check_hostname
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "No such file or directory: name a file that can be read"),
        (b"", "expected PEM certificates"),
        (b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", ".*: use the certificates of authorities"),
    ],
    ids=["missing", "empty", "broken"],
)
def test_authorities_that_can_not_be_read_are_refused(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "ca.pem"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"^TLS authorities {path}: {message}") as caught:
        client_context(str(path))
    assert "\n" not in str(caught.value)


# The server's context.


def test_the_context_allows_nothing_that_is_out_of_date(context: ssl.SSLContext) -> None:
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_COMPRESSION
    assert context.options & ssl.OP_NO_RENEGOTIATION


def encrypted(pem: bytes) -> bytes:
    key = load_pem_private_key(pem, None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))


def spoiled(pem: bytes) -> bytes:
    lines = pem.splitlines()
    return b"\n".join([lines[0], b"AAAA", *lines[2:]])


@pytest.mark.parametrize(
    ("which", "change", "message"),
    [
        ("cert", lambda pem: b"", r"^TLS certificate \S+bad\.pem: expected a PEM certificate chain$"),
        ("cert", lambda pem: b"\0\xff" * 99, r"^TLS certificate \S+bad\.pem: expected a PEM certificate chain$"),
        ("cert", spoiled, r"^TLS certificate \S+bad\.pem and key \S+: .*: use a certificate chain"),
        ("key", lambda pem: b"", r"^TLS key \S+bad\.pem: expected a PEM private key$"),
        ("key", spoiled, r"^TLS certificate \S+ and key \S+bad\.pem: .*: use a certificate chain"),
        ("key", encrypted, r"^TLS key \S+bad\.pem: it has a password: "),
        ("key", lambda pem: trustme.CA().private_key_pem.bytes(), r"bad\.pem: key values mismatch: use"),
    ],
)
def test_files_that_make_no_identity_are_refused(
    which: str, change: Callable[[bytes], bytes], message: str, identity: Identity, tmp_path: Path
) -> None:
    files = {"cert": identity.cert, "key": identity.key}
    bad = tmp_path / "bad.pem"
    bad.write_bytes(change(Path(files[which]).read_bytes()))
    files[which] = str(bad)
    with pytest.raises(ConfigError, match=message) as caught:
        server_context(**files)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("which", ["cert", "key"])
def test_files_that_can_not_be_read_are_named(which: str, identity: Identity, tmp_path: Path) -> None:
    for path in (tmp_path / "missing.pem", tmp_path):
        files = {"cert": identity.cert, "key": identity.key, which: str(path)}
        with pytest.raises(ConfigError, match=rf"{path}: (No such file|Is a dir).*: name a file that can be read$"):
            server_context(**files)


def test_certificate_and_key_may_share_a_file(identity: Identity, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(Path(identity.key).read_bytes() + Path(identity.cert).read_bytes())
    server_context(str(both), str(both))


# Below a channel.


def nothing() -> None:
    pass


class Recorder:
    """A handler that writes down what it is told; ``on`` may add something to be done at it."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.calls: list[str] = []
        self.on: dict[str, Callable[[], None]] = {}

    def data_received(self, data: bytes) -> None:
        assert data, "the end of input is told by another call"
        self.data += data
        self._called("data")

    def input_ended(self) -> None:
        self._called("ended")

    def wants_data(self) -> bool:
        return True

    def drained(self) -> None:
        self._called("drained")

    def connection_lost(self) -> None:
        self._called("lost")

    def _called(self, name: str) -> None:
        self.calls.append(name)
        self.on.get(name, nothing)()


class Pair:
    """A channel with TLS, its handler, and a client at the other end of its socket."""

    def __init__(self, loop: Loop, context: ssl.SSLContext, trusting: ssl.SSLContext) -> None:
        ours, self.peer = socket.socketpair()
        self.peer.setblocking(False)
        self.loop = loop
        self.handler = Recorder()
        self.channel = Channel(loop, ours, high_water=HIGH_WATER, stall_timeout=30.0, cipher=Tls(context))
        self.channel.handler = self.handler
        self.client = Client(trusting)
        self.to_send = bytearray()
        self.sent = self.received = 0
        self.at_end = False

    def shake_hands(self) -> None:
        self.to_send += self.client.receive()
        self.steps(8)
        assert self.client.established

    def steps(self, count: int = 4, *, take: int = 1 << 16, give: int = 1 << 16) -> None:
        """Let both sides go on, the client by so many bytes a step."""
        for _ in range(count):
            self._send(give)
            self.turn()
            if not self.at_end and (data := self.take_raw(take)) is not None:
                self.at_end = not data
                self.to_send += self.client.receive(data)

    def turn(self) -> None:
        # A turn with a posted call never sleeps.
        self.loop.call_soon(nothing)
        self.loop.turn()

    def take_raw(self, size: int = 1 << 16) -> bytes | None:
        try:
            data = self.peer.recv(size)
        except BlockingIOError:
            return None
        self.received += len(data)
        return data

    def _send(self, most: int) -> None:
        try:
            sent = self.peer.send(self.to_send[:most]) if self.to_send else 0
        except BlockingIOError:
            return
        del self.to_send[:sent]
        self.sent += sent


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


@pytest.fixture
def fresh(loop: Loop, context: ssl.SSLContext, trusting: ssl.SSLContext) -> Iterator[Pair]:
    """Before the handshake."""
    pair = Pair(loop, context, trusting)
    yield pair
    pair.channel.abort()
    pair.peer.close()


@pytest.fixture
def pair(fresh: Pair) -> Pair:
    """After the handshake."""
    fresh.shake_hands()
    assert fresh.handler.calls == [], "the handshake is no business of the handler"
    return fresh


@pytest.mark.parametrize("size", [1, 1 << 16])
def test_a_channel_carries_text_both_ways(size: int, fresh: Pair) -> None:
    fresh.to_send += fresh.client.receive()
    fresh.steps(20_000 if size == 1 else 8, take=size, give=size)
    fresh.to_send += fresh.client.send(b"ping")
    fresh.channel.write(b"po")
    fresh.channel.write(b"ng")
    fresh.steps(200, take=size, give=size)
    assert (fresh.handler.data, fresh.client.text) == (b"ping", b"pong")
    assert (fresh.channel.bytes_received, fresh.channel.bytes_sent) == (fresh.sent, fresh.received)
    assert fresh.received > 1000, "the certificate is counted"


def test_a_channel_keeps_what_is_written_before_the_handshake(fresh: Pair) -> None:
    fresh.channel.write(b"early")
    fresh.steps()
    assert (fresh.channel.queued, fresh.received) == (0, 0)
    fresh.shake_hands()
    assert fresh.client.text == b"early"


def test_a_slow_reader_congests_and_drains_the_channel(pair: Pair) -> None:
    written = bytearray()
    while len(written) < 2_000_000:
        if not pair.channel.congested:
            piece = os.urandom(8_000)
            written += piece
            pair.channel.write(piece)
            assert pair.channel.queued <= HIGH_WATER + 9_000
        pair.steps(1, take=3_000)
    assert pair.handler.calls.count("drained") > 5
    pair.steps(2_000, take=3_000)
    assert pair.client.text == written
    assert not pair.channel.congested


def test_a_big_upload_comes_whole(pair: Pair) -> None:
    text = os.urandom(2_000_000)
    pair.to_send += pair.client.send(text)
    pair.steps(500)
    assert pair.handler.data == text


def test_close_says_the_last_words_and_then_goodbye(pair: Pair) -> None:
    text = os.urandom(1_000_000)
    pair.channel.write(text)
    pair.channel.close()
    pair.channel.write(b"too late")
    pair.steps(100, take=20_000)
    assert pair.client.text == text
    assert pair.client.ended
    assert pair.at_end, "and the write side is shut"
    pair.peer.close()
    pair.turn()
    assert pair.handler.calls == ["lost"]


def test_abort_says_nothing(pair: Pair) -> None:
    pair.channel.write(b"unsaid")
    pair.channel.abort()
    pair.steps()
    assert (pair.client.text, pair.client.ended, pair.at_end) == (b"", False, True)
    assert pair.handler.calls == ["lost"]


def test_the_clients_goodbye_ends_the_input_and_it_can_still_read(pair: Pair) -> None:
    pair.to_send += pair.client.send(b"request") + pair.client.close()
    pair.steps()
    assert pair.handler.calls == ["data", "ended"]
    assert pair.channel.ended
    pair.channel.write(b"reply")
    pair.channel.close()
    pair.steps()
    assert (pair.client.text, pair.client.ended) == (b"reply", True)
    assert pair.handler.calls == ["data", "ended", "lost"]


def test_a_client_that_says_goodbye_and_leaves_is_lost(pair: Pair) -> None:
    pair.peer.send(pair.client.send(b"farewell") + pair.client.close())
    pair.peer.close()
    pair.turn()
    assert pair.handler.calls == ["data", "lost"]
    assert pair.handler.data == b"farewell"


@pytest.mark.parametrize("established", [True, False])
def test_an_end_without_goodbye_is_an_end(established: bool, fresh: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    if established:
        fresh.shake_hands()
    else:
        fresh.to_send += fresh.client.receive()[:-1]
        fresh.steps()
    fresh.peer.shutdown(socket.SHUT_WR)
    fresh.steps()
    assert fresh.handler.calls == ["ended"]
    fresh.channel.close()
    fresh.steps()
    assert fresh.client.ended == established
    assert fresh.handler.calls == ["ended", "lost"]
    assert not caplog.records


@pytest.mark.parametrize("action", ["close", "abort"])
def test_a_handler_may_leave_at_the_last_data(action: str, pair: Pair) -> None:
    pair.handler.on["data"] = getattr(pair.channel, action)
    pair.to_send += pair.client.send(b"request") + pair.client.close()
    pair.steps(1)
    pair.peer.close()
    pair.turn()
    assert pair.handler.calls == ["data", "lost"]


def test_a_failed_handshake_closes_the_channel(fresh: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    fresh.channel.write(b"never sent in clear")
    fresh.peer.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    fresh.turn()
    fresh.turn()
    assert not fresh.channel.open
    assert b"never" not in (fresh.take_raw() or b"")
    fresh.peer.close()
    fresh.turn()
    assert fresh.handler.calls == ["lost"]
    assert [record.message for record in caplog.records] == ["closed: TLS handshake failed: http request"]


def test_a_broken_record_closes_the_channel_after_its_alert(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    record = bytearray(pair.client.send(b"hello"))
    record[-1] ^= 1
    pair.to_send += record + pair.client.send(b"never read")
    with pytest.raises(ssl.SSLError, match=r"(?i)alert.bad.record.mac"):
        pair.steps()
    pair.channel.write(b"too late")
    assert pair.take_raw() == b"", "the write side is shut"
    pair.peer.close()
    pair.turn()
    assert pair.handler.calls == ["lost"]
    assert len(caplog.records) == 1


@only_tls_1_3
def test_a_channel_closes_within_a_key_update(keylog: Path, pair: Pair) -> None:
    pair.to_send += halves(pair.client, keylog)[0]
    pair.steps()
    pair.channel.write(b"never said")
    pair.channel.close()
    pair.steps()
    assert (pair.client.text, pair.client.ended, pair.at_end) == (b"", False, True)
    pair.peer.close()
    pair.turn()
    assert pair.handler.calls == ["lost"]


@only_tls_1_3
def test_a_channel_gives_up_when_too_much_waits_for_a_key_update(
    keylog: Path, pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    pair.to_send += halves(pair.client, keylog)[0]
    pair.steps()
    pair.channel.write(b"x" * MAX_WAITING)
    assert pair.channel.open
    for _ in range(2):
        pair.channel.write(b"x")
    assert pair.handler.calls == [], "the handler may be in the middle of something"
    assert (pair.channel.queued, pair.channel.open) == (0, False)
    pair.turn()
    assert pair.handler.calls == ["lost"]
    assert [record.message[:20] for record in caplog.records] == ["closed: more than 65"]


class Ends:
    """Two channels over one socket pair: a client's, and a server's."""

    def __init__(self, loop: Loop, client: Tls, server: Tls) -> None:
        self.loop = loop
        self.handlers = (Recorder(), Recorder())
        self.client, self.server = (
            Channel(loop, sock, high_water=HIGH_WATER, stall_timeout=30.0, cipher=cipher)
            for sock, cipher in zip(socket.socketpair(), (client, server), strict=True)
        )
        self.client.handler, self.server.handler = self.handlers

    def turns(self, count: int = 10) -> None:
        for _ in range(count):
            # A turn with a posted call never sleeps.
            self.loop.call_soon(nothing)
            self.loop.turn()

    def abort(self) -> None:
        self.client.abort()
        self.server.abort()


@pytest.fixture
def between(loop: Loop) -> Iterator[Callable[[Tls, Tls], Ends]]:
    made: list[Ends] = []

    def make(client: Tls, server: Tls) -> Ends:
        made.append(Ends(loop, client, server))
        return made[-1]

    yield make
    for ends in made:
        ends.abort()


def test_a_clients_channel_begins_the_handshake_by_itself(
    between: Callable[[Tls, Tls], Ends], dialing: ssl.SSLContext, context: ssl.SSLContext
) -> None:
    ends = between(Tls(dialing, "localhost"), Tls(context))
    ends.turns()
    ends.server.write(b"welcome")
    ends.turns()
    assert (ends.handlers[0].data, ends.handlers[1].calls) == (b"welcome", [])


def test_two_channels_carry_much_both_ways_and_part(
    between: Callable[[Tls, Tls], Ends], dialing: ssl.SSLContext, context: ssl.SSLContext
) -> None:
    ends = between(Tls(dialing, "localhost"), Tls(context))
    up, down = os.urandom(50_000), os.urandom(50_000)
    ends.client.write(up)
    ends.server.write(down)
    ends.turns(50)
    assert (ends.handlers[1].data, ends.handlers[0].data) == (up, down)
    ends.client.close()
    ends.turns()
    ends.server.close()
    ends.turns()
    assert [handler.calls[-1] for handler in ends.handlers] == ["lost", "lost"]
    assert (ends.client.failure, ends.server.failure) == ("", "")


def test_the_owner_of_a_channel_learns_why_the_certificate_was_refused(
    between: Callable[[Tls, Tls], Ends], dialing: ssl.SSLContext, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    ends = between(Tls(dialing, "localhost"), Tls(self_signed()))
    heard: list[str] = []
    ends.handlers[0].on["lost"] = lambda: heard.append(ends.client.failure)
    ends.client.write(b"never sent")
    ends.turns()
    # The server lets go of the connection only when its own last words are read.
    ends.server.abort()
    ends.turns()
    assert heard == ["TLS handshake failed: certificate verify failed: self-signed certificate"]
    assert "alert" in ends.server.failure
    assert ends.handlers[0].calls == ["lost"]
    assert ends.handlers[1].data == b""


def test_the_first_failure_is_the_one_that_is_told(loop: Loop, dialing: ssl.SSLContext) -> None:
    sock, peer = socket.socketpair()
    channel = Channel(loop, sock, high_water=HIGH_WATER, stall_timeout=30.0, cipher=Tls(dialing, "localhost"))
    channel.handler = Recorder()
    server = Tls(self_signed())

    def turn() -> None:
        loop.call_soon(nothing)
        loop.turn()

    with peer:
        turn()
        server.receive(peer.recv(1 << 16))
        peer.send(server.take_output())
        turn()
    # The alert was not read, so that the peer's leaving resets the connection.
    turn()
    assert channel.handler.calls == ["lost"]
    assert channel.failure == "TLS handshake failed: certificate verify failed: self-signed certificate"


@pytest.mark.parametrize(
    ("way", "failure"),
    [
        ("reset", "read failed: Connection reset by peer"),
        ("gone", "write failed: Broken pipe"),
        ("stalled", "the peer read too little for 30 s"),
        ("left", ""),
    ],
)
def test_a_channel_tells_why_it_gave_up(way: str, failure: str) -> None:
    clock = Clock()
    loop = Loop(clock)
    sock, peer = socket.socketpair()
    channel = Channel(loop, sock, high_water=HIGH_WATER, stall_timeout=30.0)
    channel.handler = handler = Recorder()

    def turn() -> None:
        loop.call_soon(nothing)
        loop.turn()

    with peer:
        if way == "gone":
            handler.wants_data = lambda: False
        elif way != "left":
            channel.write(b"unread" if way == "reset" else bytes(10 << 20))
        turn()
        if way == "stalled":
            clock.now += 30.0
            turn()
    channel.write(b"more")
    turn()
    turn()
    assert handler.calls == ["lost"]
    assert channel.failure == failure
    loop.close()


def test_an_idle_channel_waits_for_input_only(pair: Pair) -> None:
    (events,) = [key.events for key in pair.loop._selector.get_map().values() if key.data == pair.channel._on_ready]
    assert events == READ
