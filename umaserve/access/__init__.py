"""Access control: host and origin names, API keys, and failed attempts."""
