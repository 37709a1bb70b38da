"""Dialects: payloads to messages and back, one folder for each contract or API."""
