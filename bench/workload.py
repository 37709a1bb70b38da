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
    """As many others: a server that reuses prefixes must gain nothing from the warm-up."""
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

_PARAGRAPH = """\
The harbour of Ellmouth is small. It has two piers, one of stone and one of wood. The stone pier was built in 1782 \
by a merchant who sold salt and wool. The wooden pier is younger and is used by the fishing boats only. Every \
morning before six the boats leave, and every afternoon at three they come back with cod, herring and crabs. On \
Saturdays there is a market beside the piers. People from the villages come to buy fish, bread, honey and cheese, \
and in summer they stay until the lamps are lit. The harbour master lives in the white house with the green door. He \
keeps a book in which he writes the name of each ship, the hour of its arrival and the weather of the day. His book \
is the fifth one; the first was begun by his great-grandfather, who could not swim and never went to sea. When the \
fog is thick, his daughter rings the bell at the end of the stone pier, two strokes and a pause, until the last boat \
has come home."""

_ABOUT = ("What are {} good for?", "Who needs {} today?")


def words(n: int, seed: int) -> str:
    """``n`` words without a meaning, others for another seed."""
    return " ".join(random.Random(seed).choices(_WORDS, k=n))


def growing(n_clients: int, n_words: int, n_turns: int, round_: int) -> list[list[str]]:
    """The turns of each client, of ``n_words`` each: others for each client, turn and round."""
    return [
        [words(n_words, (round_ * 1000 + client) * 1000 + turn) for turn in range(n_turns)]
        for client in range(n_clients)
    ]


def endless_prompts(n_words: int) -> Iterator[str]:
    """Prompts that share no prefix beyond a word or two."""
    seed = 0
    while True:
        yield words(n_words, seed)
        seed += 1


def prefixed(n_words: int, texts: list[str]) -> list[str]:
    """The same ``n_words`` before each text."""
    return [f"{words(n_words, n_words)}\n\n{text}" for text in texts]


def chat_questions(n: int) -> list[str]:
    """Up to twice as many lines as there are topics, all different."""
    questions = [about.format(topic.lower()) for about in _ABOUT for topic in _TOPICS]
    assert n <= len(questions)
    return questions[:n]


def copying_prompt() -> str:
    """What a small model, too, answers by copying the paragraph: more than 200 tokens, all but a name as they stand."""
    return f"""\
Original:
{_PARAGRAPH}

The same, with "Ellmouth" changed to "Brackwater":
The harbour of Brackwater"""


def mixed(n: int) -> list[tuple[str, int]]:
    """``n`` prompts of 10 to 400 words, each with 8 to 128 tokens to generate."""
    sizes = random.Random(n)
    return [(words(sizes.randint(10, 400), seed), sizes.randint(8, 128)) for seed in range(n)]
