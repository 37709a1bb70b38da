"""Grammars that an answer is held to, made of JSON schemas, GBNF and tool calls."""
