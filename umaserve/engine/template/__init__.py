"""Chat templates, rendered in a process of their own, and prompts without them."""
