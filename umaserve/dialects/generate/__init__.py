"""`/generate`: generations that can be steered while they run."""
