"""MCP servers whose tools the daemon calls: the process that talks with them, and what the daemon knows of them."""
