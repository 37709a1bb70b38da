"""Sessions and the scheduling of their tokens. Sees messages, never bytes."""
