"""Which worker gets which request, and what is known of both."""
