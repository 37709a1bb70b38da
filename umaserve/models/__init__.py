"""Choice of the models that are loaded, and their engine processes."""
