"""One daemon: its life, its sockets, its clients and their requests."""
