"""The selector loop and what hangs on it. Knows bytes, never messages."""
