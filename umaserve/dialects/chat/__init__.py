"""`/ws/chat`: conversations with media and speech."""
