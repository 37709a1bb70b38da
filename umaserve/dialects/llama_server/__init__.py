"""The paths that clients of llama-server rely on."""
