"""The subcommands for people."""
