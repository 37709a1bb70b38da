"""Batches of OpenAI's API: requests from a file, run in the background."""
