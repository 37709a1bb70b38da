"""Framed JSON and lines over a Unix socket."""
