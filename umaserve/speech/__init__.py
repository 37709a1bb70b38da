"""Speech: an answer's text becomes audio, sentence by sentence, while the answer is still being made."""
