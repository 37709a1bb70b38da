"""Text to speech: an answer is spoken sentence by sentence while it is still being generated."""
