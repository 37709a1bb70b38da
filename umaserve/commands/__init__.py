"""The subcommands that people type."""
