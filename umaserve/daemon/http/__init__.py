"""Requests over HTTP: routes, their exchanges, pages and upgrades to WebSocket."""
