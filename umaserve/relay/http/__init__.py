"""Connections to clients and workers: routes, bodies, replies."""
