"""Decoding of clients' images, sounds and videos to pixels and samples; encoding of speech to sound files."""
