"""What every stream is asked: the same prompts and the same warm-up for whoever is measured."""

from __future__ import annotations

import random
from collections.abc import Iterator

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
    """Make as many others: a server that reuses prefixes must gain nothing from the warm-up."""
    return [f"{i} {prompt}" for i, prompt in enumerate(prompts(n))]


_WORDS = (
    "river", "stone", "garden", "winter", "table", "music", "letter", "window", "silver", "market", "field",
    "mountain", "paper", "shadow", "number", "island", "morning", "doctor", "history", "machine", "village", "summer",
    "color", "bridge", "forest", "ocean", "teacher", "story", "engine", "animal", "water", "fire", "light", "road",
    "house", "family", "country", "city", "school", "book", "world", "power", "science", "energy", "language",
    "system", "money", "church", "army", "king", "queen", "ship", "horse", "gold", "iron", "glass", "wood", "salt",
    "bread", "milk", "sugar", "cotton", "silk", "leather", "metal", "tree", "flower", "seed", "fruit", "root", "leaf",
    "bird", "fish", "wolf", "bear", "lion", "snake",
)  # fmt: skip
"""Each of them is one token for most models, so that a prompt has about as many tokens as words."""

_ABOUT = ("What are {} good for?", "Who needs {} today?")


def words(n: int, seed: int) -> str:
    """``n`` words without a meaning, others for another seed."""
    return " ".join(random.Random(seed).choices(_WORDS, k=n))


def growing(n_clients: int, n_words: int, n_turns: int, round_: int, opening: int = 0) -> list[list[str]]:
    """The turns of each client, of ``n_words`` each, the first one of ``opening`` more: others for each client, turn
    and round."""
    return [
        [words(n_words + opening * (not turn), (round_ * 1000 + client) * 1000 + turn) for turn in range(n_turns)]
        for client in range(n_clients)
    ]


def endless_prompts(n_words: int) -> Iterator[str]:
    """Prompts that share no prefix beyond a word or two."""
    seed = 0
    while True:
        yield words(n_words, seed)
        seed += 1


def prefixed(n_words: int, texts: list[str]) -> list[str]:
    """Put the same ``n_words`` before each text."""
    return [f"{words(n_words, n_words)}\n\n{text}" for text in texts]


def chat_questions(n: int) -> list[str]:
    """Up to twice as many lines as there are topics, all different."""
    questions = [about.format(topic.lower()) for about in _ABOUT for topic in _TOPICS]
    assert n <= len(questions)
    return questions[:n]
