"""TLS for one connection, from bytes to bytes: the channel keeps the socket."""

from __future__ import annotations

import contextlib
import ssl

from umaserve.errors import ConfigError

_MAX_RECORD = 16 * 1024
_MAX_PEM = 1024 * 1024
_MAX_WAITING = 64 * 1024


def server_context(cert: str, key: str) -> ssl.SSLContext:
    """A context for TLS 1.2 and later and HTTP/1.1, from the PEM files of the certificate chain and its key.

    Raises ConfigError for a file that can't be read or isn't PEM, a key with a password, and a pair that doesn't match.
    """
    _check_pem(f"TLS certificate {cert}", cert, b"-----BEGIN CERTIFICATE-----", "a PEM certificate chain")
    _check_pem(f"TLS key {key}", key, b"PRIVATE KEY-----", "a PEM private key")

    def no_password() -> str:
        # OpenSSL would ask for it on the terminal.
        raise ConfigError(f"TLS key {key}: it has a password: give a key without one, kept safe by its file's mode")

    context = _context(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, no_password)
    except OSError as error:
        advice = "give a certificate chain, the server's own first, and the key that belongs to it"
        raise ConfigError(f"TLS certificate {cert} and key {key}: {_reason(error)}: {advice}") from None
    return context


def client_context(ca_file: str = "") -> ssl.SSLContext:
    """A context for TLS 1.2 and later and HTTP/1.1 that trusts the system's authorities and those in ``ca_file`` (PEM).

    Raises ConfigError for a file that can't be read or isn't PEM.
    """
    # It checks certificates and host names from its making.
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    if ca_file:
        place = f"TLS authorities {ca_file}"
        _check_pem(place, ca_file, b"-----BEGIN CERTIFICATE-----", "PEM certificates")
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            raise ConfigError(f"{place}: {_reason(error)}: give the certificates of authorities, in PEM") from None
    return context


def _context(protocol: int) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


def _check_pem(place: str, path: str, marker: bytes, expected: str) -> None:
    # OpenSSL's errors don't say which of the two files is wrong.
    try:
        with open(path, "rb") as file:
            found = marker in file.read(_MAX_PEM)
    except OSError as error:
        raise ConfigError(f"{place}: {error.strerror}: name a file that can be read") from None
    if not found:
        raise ConfigError(f"{place}: expected {expected}")


def _reason(error: OSError) -> str:
    if not isinstance(error, ssl.SSLError):
        return error.strerror or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message.rstrip('.')}"
    return (error.reason or str(error)).lower().replace("_", " ")


class TlsError(Exception):
    """The handshake failed, a record was broken, or too much waits for the peer: the connection is of no more use."""


class Tls:
    """One side of one TLS connection (RFC 8446, RFC 5246).

    The client's where ``server_hostname`` says whose the server's certificate must be, a DNS name or an IP address; its
    first message is in ``take_output`` from the start. The server's without.
    Holds no more of the peer's than the handshake message or record that has not come whole, and of ours 64 KiB that
    wait for it.
    """

    def __init__(self, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            # Neither a certificate nor the server name extension has a name's last dot (RFC 6066, section 3).
            server_hostname=server_hostname and server_hostname.removesuffix("."),
        )
        self._established = False
        self._broken = False
        self._waiting = bytearray()
        """Plaintext that waits for the handshake, or for the rest of a later message of it (RFC 8446, section 4.6)."""
        self.ended = False
        """Whether the peer's close_notify came; what comes after it is ignored."""
        if server_hostname is not None:
            self.receive(b"")

    def receive(self, data: bytes) -> bytes:
        """The plaintext, maybe none, that ``data`` completes. Raises TlsError, also for the peer's alert."""
        if self.ended:
            return b""
        self._incoming.write(data)
        plain: list[bytes] = []
        try:
            if not self._established:
                self._tls.do_handshake()
                self._established = True
            # OpenSSL gives a record at a time, and says only by an error that no whole one is left.
            while text := self._tls.read(_MAX_RECORD):
                plain.append(text)
            self.ended = True
        except ssl.SSLZeroReturnError:
            self.ended = True
        except ssl.SSLError as error:
            if not isinstance(error, ssl.SSLWantReadError):
                raise self._failure(error) from None
        if self._waiting and self._established:
            self._encrypt()
        return b"".join(plain)

    def send(self, data: bytes) -> bytes:
        """The ciphertext of ``data``. While a handshake message has not come whole, ``data`` waits, and comes with the
        output after it. Raises TlsError, also when too much waits.
        """
        self._waiting += data
        if self._established:
            self._encrypt()
        if len(self._waiting) > _MAX_WAITING:
            raise TlsError(f"more than {_MAX_WAITING} bytes wait for the rest of a TLS handshake message")
        return self._outgoing.read()

    def take_output(self) -> bytes:
        """What the protocol itself has to send: handshake messages, alerts."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """The last bytes to send: close_notify, or the alert if the connection is broken, or nothing before it is up.

        Nothing may be sent after. What waited for a handshake message is dropped, without a close_notify, which would
        say that nothing is missing.
        """
        if self._established and not self._broken:
            # It also looks for the peer's close_notify, which need not have come, and fails within a handshake message.
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
        self._waiting.clear()
        return self._outgoing.read()

    def _encrypt(self) -> None:
        done = 0
        try:
            with memoryview(self._waiting) as view:
                while done < len(view):
                    done += self._tls.write(view[done:])
        except ssl.SSLError as error:
            if not isinstance(error, ssl.SSLWantReadError):
                raise self._failure(error) from None
        del self._waiting[:done]

    def _failure(self, error: ssl.SSLError) -> TlsError:
        self._broken = True
        return TlsError(f"TLS {'connection' if self._established else 'handshake'} failed: {_reason(error)}")
