"""Measures umaserve against a bare llama.cpp loop, and the wire by itself: ``python -m bench``."""
