"""Pictures, sounds and films as parts of a prompt."""
