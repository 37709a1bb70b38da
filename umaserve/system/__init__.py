"""The operating system: the only room that deals with it directly."""
