"""The voice that llama.cpp computes."""
