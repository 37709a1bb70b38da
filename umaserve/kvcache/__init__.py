"""Which sequence lies where: in KV cells, in host memory, on disk."""
