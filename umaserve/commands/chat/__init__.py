"""``umaserve chat``: a conversation in a terminal."""
