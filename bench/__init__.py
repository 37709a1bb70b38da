"""Programs that measure umaserve: see bench/README.md."""
