"""Requests over HTTP until their end, by what is answered."""
