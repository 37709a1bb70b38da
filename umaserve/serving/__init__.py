"""Sessions and the schedule of their tokens. Knows messages, never bytes."""
