"""The daemon as a worker of relays."""
