"""What all clients are asked: a text that the smallest model continues with certainty, and values with few choices."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

MODEL = "default"
N_TOKENS = 40
"""More than the answer to ``TURNS`` has: some libraries take one that was cut for a failure."""
TURNS = [
    {"role": "user", "content": "Count: 1, 2, 3"},
    {"role": "assistant", "content": "4, 5, 6, 7"},
    {"role": "user", "content": "Repeat: 1, 2, 3, 4, 5, 6, 7, 8, 9"},
]
QUESTION = "What is the weather in Paris?"
RESULT = "The sky is sunny."


class Forecast(BaseModel):
    """The weather of a city."""

    city: Literal["Paris"]
    sky: Literal["sunny", "cloudy"]
