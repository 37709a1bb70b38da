"""TLS for one connection, from bytes to bytes. Sans-IO: the channel has the socket."""

from __future__ import annotations

import contextlib
import ssl

from umaserve.core.errors import ConfigError

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
        # Otherwise OpenSSL would ask for it on the terminal.
        raise ConfigError(
            f"TLS key {key}: it has a password: use a key without one, and protect the file by its permissions"
        )

    context = _context(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(cert, key, no_password)
    except OSError as error:
        advice = "use a certificate chain that begins with the server's own certificate, and its private key"
        raise ConfigError(f"TLS certificate {cert} and key {key}: {_reason(error)}: {advice}") from None
    return context


def client_context(ca_file: str = "") -> ssl.SSLContext:
    """A context for TLS 1.2 and later and HTTP/1.1 that trusts the system's authorities and those in ``ca_file`` (PEM).

    Raises ConfigError for a file that can't be read or isn't PEM.
    """
    # PROTOCOL_TLS_CLIENT checks certificates and host names by default.
    context = _context(ssl.PROTOCOL_TLS_CLIENT)
    context.load_default_certs()
    if ca_file:
        place = f"TLS authorities {ca_file}"
        _check_pem(place, ca_file, b"-----BEGIN CERTIFICATE-----", "PEM certificates")
        try:
            context.load_verify_locations(ca_file)
        except OSError as error:
            raise ConfigError(f"{place}: {_reason(error)}: use the certificates of authorities, in PEM") from None
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
    """The handshake failed, a record was broken, or too much waits for the peer: the connection can't go on."""


class Tls:
    """One side of one TLS connection (RFC 8446, RFC 5246).

    With ``server_hostname`` it is the client's side, and the server's certificate must be for that DNS name or IP
    address; the first message is in ``take_output`` from the start. Without, it is the server's side.
    Buffers at most one incomplete handshake message or record of the peer's, and 64 KiB of our data that wait for it.
    """

    def __init__(self, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming,
            self._outgoing,
            server_side=server_hostname is None,
            # Certificates and the server name extension have no trailing dot (RFC 6066, section 3).
            server_hostname=server_hostname and server_hostname.removesuffix("."),
        )
        self._established = False
        self._broken = False
        self._waiting = bytearray()
        """Plaintext that waits for the handshake, or for a whole post-handshake message (RFC 8446, section 4.6)."""
        self.ended = False
        """Whether the peer's close_notify arrived; what follows it is ignored."""
        if server_hostname is not None:
            self.receive(b"")

    def receive(self, data: bytes) -> bytes:
        """The plaintext that ``data`` completes, possibly none. Raises TlsError, also for the peer's alert."""
        if self.ended:
            return b""
        self._incoming.write(data)
        plain: list[bytes] = []
        try:
            if not self._established:
                self._tls.do_handshake()
                self._established = True
            # OpenSSL returns one record at a time, and raises SSLWantReadError when no whole one is left.
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
        """The ciphertext of ``data``. While a handshake message is incomplete, ``data`` waits, and its ciphertext is in
        later output. Raises TlsError, also when too much waits.
        """
        self._waiting += data
        if self._established:
            self._encrypt()
        if len(self._waiting) > _MAX_WAITING:
            raise TlsError(f"more than {_MAX_WAITING} bytes wait for the rest of a TLS handshake message")
        return self._outgoing.read()

    def take_output(self) -> bytes:
        """The protocol's own output (handshake messages, alerts), and the ciphertext of data that waited."""
        return self._outgoing.read()

    def close(self) -> bytes:
        """The last bytes to send: close_notify, the alert if the connection is broken, or nothing before the handshake
        is complete. Nothing may be sent afterwards.

        Data that waits for a handshake message is dropped, without a close_notify, which would claim that all was sent.
        """
        if self._established and not self._broken:
            # unwrap also wants the peer's close_notify, which may be missing, and fails within a handshake message.
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
