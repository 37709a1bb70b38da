"""The relay: many workers behind one address."""
