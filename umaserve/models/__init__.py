"""Which models are loaded, and their engine processes."""
