"""`/v1/realtime`: OpenAI's Realtime API."""
