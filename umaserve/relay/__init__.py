"""The relay: many boxes behind one address."""
