"""What every stream is asked: the same prompts and the same warm-up for whoever is measured."""

from __future__ import annotations

WARM_UP_TOKENS = 8
"""Tokens of each stream before the measured run: memory, threads and the scheduler's cost model are cold at first."""

_TOPICS = (
    "Lighthouses", "Volcanoes", "Bicycles", "Clockmaking", "Salt", "Bridges", "Honeybees", "Glass",
    "Windmills", "Printing", "Tides", "Railways", "Coffee", "Compasses", "Silk", "Observatories",
)  # fmt: skip


def prompts(n: int) -> list[str]:
    """``n`` prompts of some 30 tokens that differ from their first word or number on, so that no prefix is shared."""
    question = (
        "who came up with the first ones, what were they for, and how have they changed the life of people since?"
    )
    return [f"{_TOPICS[i % len(_TOPICS)]}, chapter {i // len(_TOPICS) + 1}: {question}" for i in range(n)]


def warm_up_prompts(n: int) -> list[str]:
    """As many others: a server that reuses prefixes must gain nothing from the warm-up."""
    return [f"{i} {prompt}" for i, prompt in enumerate(prompts(n))]
