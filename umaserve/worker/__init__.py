"""The relay's worker: dials out to relays, and answers their requests."""
