"""Frozen data that all rooms exchange: requests, events, errors, metrics."""
