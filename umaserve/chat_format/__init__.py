"""How models write tool calls and thoughts: read from a template, and found in an answer. Needs no llama.cpp."""
