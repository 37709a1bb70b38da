"""What the operating system has and tells: the only room that knows it."""
