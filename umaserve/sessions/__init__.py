"""A request's life from arrival to end, its text, and the interface to an engine. Sees requests, never bytes."""
