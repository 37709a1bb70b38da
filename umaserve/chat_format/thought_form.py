"""Learns from a chat template how its model marks its thoughts."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from umaserve.core.tool_call_format import ThoughtForm

Render = Callable[[Sequence[dict[str, Any]], bool], str]
"""Makes the prompt for messages as in OpenAI's API, with an answer opened or not; empty where the template refuses
them."""

_QUESTION, _THOUGHT, _TEXT = "zqquestion", "zqthought", "zqtext"
"""Texts that no template contains."""
_ATOM = re.compile(r"<[^<>]*>?|\w+|.", re.DOTALL)
_TAG = re.compile(r"<[^<>]*>|\[[^\[\]]*\]")

_KNOWN = (
    # OpenAI's harmony has a channel for texts that come before calls, too.
    (
        "<|channel|>analysis",
        ThoughtForm(
            "<|channel|>analysis<|message|>",
            "<|end|>",
            "<|start|>assistant",
            ("<|channel|>final<|message|>", "<|channel|>commentary<|message|>"),
            "<|end|>",
        ),
    ),
    # Cohere's Command R7B shows thoughts only before calls.
    (
        "<|START_RESPONSE|>",
        ThoughtForm("<|START_THINKING|>", "<|END_THINKING|>", "", ("<|START_RESPONSE|>",), "<|END_RESPONSE|>"),
    ),
    # IBM's Granite 3 writes its answer in tags only after thoughts.
    ("<response></response>", ThoughtForm("<think>", "</think>", "", ("<response>",), "</response>")),
    # Moonshot's Kimi K3 builds its marks from four tags.
    (
        "<|close|>",
        ThoughtForm(
            "<|open|>think<|sep|>",
            "<|close|>think<|sep|>",
            "",
            ("<|open|>response<|sep|>", "<|close|>message<|sep|>"),
            "<|close|>response<|sep|>",
        ),
    ),
    # Upstage's Solar Open.
    ("<|begin|>assistant<|think|>", ThoughtForm("<|think|>", "<|end|>", "<|begin|>assistant", ("<|content|>",))),
)
"""Forms that can't be learned, each with a text in the templates of the models that have it."""

MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<mm:think>", "</mm:think>"),
    ("\u25c1think\u25b7", "\u25c1/think\u25b7"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<|channel>thought", "<channel|>"),
)
"""Marks around thoughts that are in use."""


def learn(source: str, render: Render, end_texts: Collection[str] = ()) -> ThoughtForm | None:
    """The form in which the template ``source`` renders thoughts; else the one that it is known to have, or the marks
    in its text; ``None`` if there are none. ``end_texts`` are the tokens that end an answer."""
    form = next((form for text, form in _KNOWN if text in source), None)
    if form is not None:
        return form
    form = _learned(render, end_texts)
    if form is not None:
        return form
    return next((ThoughtForm(*marks) for marks in MARKS if all(mark in source for mark in marks)), None)


class _Probes:
    """Short conversations as the template renders them, of each what follows the question; empty where it refuses."""

    def __init__(self, render: Render) -> None:
        self._render = render
        said = {"role": "assistant", "content": _TEXT}
        follows = {"role": "user", "content": "zqmore"}
        function = {"name": "zqname", "arguments": '{"zqkey": 1}'}
        calls = [{"id": "zqid00001", "type": "function", "function": function}]
        calling = {"role": "assistant", "content": "", "tool_calls": calls}
        result = {"role": "tool", "content": "1", "tool_call_id": "zqid00001"}
        thought = {"reasoning_content": _THOUGHT}
        self.opened = self._rendered(opens=True)
        """Text without a turn of the assistant, up to where its answer begins."""
        self.plain = self._rendered(said)
        """Text with an answer that has no thoughts."""
        pairs = [
            (self._rendered(said | thought), self.plain),
            (self._rendered(said | thought, follows), self._rendered(said, follows)),
            (self._rendered(calling | thought, result), self._rendered(calling, result)),
        ]
        self.thinking, self.same = next((pair for pair in pairs if _THOUGHT in pair[0]), ("", ""))
        """Text with an answer after thoughts, and the same without them."""
        self.header = _shared(
            text.partition(_TEXT)[0] for text in (self.opened, *(text for pair in pairs for text in pair)) if text
        )
        """Text with which any answer begins."""

    def _rendered(self, *answer: dict[str, Any], opens: bool = False) -> str:
        asked = {"role": "user", "content": _QUESTION}
        return self._render([asked, *answer], opens).rpartition(_QUESTION)[2]


def marks_in(has_token: Callable[[str], bool]) -> ThoughtForm | None:
    """The marks that a vocabulary has as tokens, if there are any."""
    return next((ThoughtForm(*marks) for marks in MARKS if all(map(has_token, marks))), None)


def _learned(render: Render, end_texts: Collection[str]) -> ThoughtForm | None:
    probes = _Probes(render)
    lead, found, rest = probes.thinking.partition(_THOUGHT)
    if not found:
        return None
    closes, found, _after = rest.partition(_TEXT)
    if not found:
        closes = rest.removesuffix(_shared_end(rest, probes.same))
    opens = lead[len(probes.header) :]
    if not opens.strip():
        opens = _shared_opening(probes, closes.strip()) + opens
    ahead = probes.plain.partition(_TEXT)[0][len(probes.header) :]
    answer = _shared_end(closes, ahead) if found else ahead
    if not answer.strip() or opens.strip() in answer or not closes.removesuffix(answer).strip():
        return ThoughtForm(opens.lstrip("\n"), closes) if opens.strip() and closes.strip() else None
    closes = closes.removesuffix(answer)
    turn = _shared_end(closes, probes.header)
    ends = {*end_texts, *_TAG.findall(probes.opened)}
    return ThoughtForm(
        opens.lstrip("\n"),
        closes.removesuffix(turn),
        turn,
        (answer.lstrip("\n"),),
        _answer_closes(probes.plain.partition(_TEXT)[2], len(_TAG.findall(answer)), ends),
    )


def _shared_opening(probes: _Probes, closes: str) -> str:
    """The mark that opens thoughts, where all answers have it: either only an opened answer shows it, or an answer
    without thoughts has empty ones."""
    rest = probes.opened[len(probes.header) :]
    if rest.strip() and closes not in rest:
        return rest
    tags = list(_TAG.finditer(probes.header))
    return probes.header[tags[-1].start() :] if tags else ""


def _answer_closes(tail: str, n_tags: int, ends: Collection[str]) -> str:
    """The first ``n_tags`` tags of ``tail``, unless the answer's end is among them."""
    tags = list(_TAG.finditer(tail))[:n_tags]
    return "" if not tags or any(tag[0] in ends for tag in tags) else tail[: tags[-1].end()].lstrip()


def _shared(texts: Iterable[str]) -> str:
    """Beginning that all have in common, in whole tags and words."""
    columns = zip(*(_ATOM.findall(text) for text in texts), strict=False)
    return "".join(column[0] for column in itertools.takewhile(lambda column: len(set(column)) == 1, columns))


def _shared_end(one: str, other: str) -> str:
    """End that both have in common."""
    pairs = zip(reversed(_ATOM.findall(one)), reversed(_ATOM.findall(other)), strict=False)
    alike = [pair[0] for pair in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    return "".join(reversed(alike))
