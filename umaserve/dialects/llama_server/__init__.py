"""The paths of llama-server that its clients rely on."""
