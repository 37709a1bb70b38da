"""What an answer passes through between its session and its connection."""
