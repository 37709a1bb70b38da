"""Settings of the three programs: declared, read, checked and shown."""
