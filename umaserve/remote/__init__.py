"""The engine in a process of its own: its calls, as frames over sockets."""
