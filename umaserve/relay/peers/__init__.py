"""What relays tell each other of shared workers and keys."""
