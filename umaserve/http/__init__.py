"""The HTTP side: who may come in, which route answers, and the connections. Knows no engine."""
