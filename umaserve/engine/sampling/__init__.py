"""The choice of the next token from a row of logits."""
