"""Codecs (bytes to payloads) and dialects (payloads to messages). Sans-IO: no socket, no clock, no model."""
