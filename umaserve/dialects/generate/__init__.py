"""`/generate`: text that can be steered while it is written."""
