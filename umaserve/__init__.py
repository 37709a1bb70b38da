"""umaserve: one process, one model, one socket for every program on the box."""

__version__ = "0.2.0"
