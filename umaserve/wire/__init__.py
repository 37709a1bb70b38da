"""Codecs: bytes to payloads and back, without sockets or clocks."""
