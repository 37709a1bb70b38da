"""Learns from a chat template how its model writes tool calls."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from umaserve.chat_format.written_calls import JSON_TYPES, VALUES, written, written_parameters
from umaserve.core.errors import RequestError
from umaserve.core.requests import ToolCall
from umaserve.core.tool_call_format import CDATA_CLOSE, CDATA_OPEN, ParameterForm, Slot, ToolForm

Render = Callable[[list[dict[str, Any]], list[dict[str, Any]], bool], str]
"""Makes the prompt for messages and tools, both as in OpenAI's API, with an answer opened or not; raises
``RequestError`` where the template refuses them."""

Parts = list[str | Slot]
"""A text in atoms: tags, words and single characters, so that comparisons never cut a tag; and slots."""

_ATOM = re.compile(r"<[^<>]*>?|\w+|.", re.DOTALL)
_QUESTION, _TEXT = "zqquestion", "zqtext"
_ARGUMENTS: tuple[dict[str, Any], ...] = (
    {"zqkeya": "zqvala", "zqkeyb": 471, "zqkeyc": True, "zqkeyd": {"zqkeye": ["zqvale", 472]}, "zqkeyf": [473, 474]},
    {"zqkeyg": "zqvalg"},
)
"""Markers that no template contains; the keys are in order, since some templates sort them."""
_NAMES = ("zqname1", "zqname2")
_IDS = ("zqid00001", "zqid00002")
"""Ids of nine letters and digits, as Mistral's templates demand."""


def learn(render: Render, end_texts: Collection[str] = ()) -> ToolForm | None:
    """The form in which the template renders calls; ``None`` if it renders none, or in no form that is known here.

    ``end_texts`` are the tokens that end an answer: what follows the first of them isn't part of the form.
    """
    probes = _Probes(render)
    opened, plain, one, two = probes.opened(), probes.plain(), probes.calls(1), probes.calls(2)
    if opened is None or plain is None or one is None or _NAMES[0] not in one or _TEXT not in plain:
        return None
    parallel = two is not None and _NAMES[1] in two
    whole = two if parallel and two is not None else one
    # A tag that ends the question or opens an answer is no part of a call.
    header = _atoms(opened[opened.rindex(_QUESTION) + len(_QUESTION) :])
    ends = {*end_texts, *(atom for atom in map(str, header) if re.fullmatch("<.+>", atom))}
    try:
        form = _form(_region(opened, plain, whole), ends, parallel=parallel)
    except _UnknownFormError:
        return None
    form = _with_cdata(form, probes)
    # The form is the template's only if it writes the same; its numbers begin at 0 or at 1.
    return next((each for each in (form, replace(form, first_index=1)) if _is_written(each, whole)), None)


def writes(render: Render, form: ToolForm) -> bool:
    """Whether the template renders calls in ``form``."""
    return _is_written(form, _Probes(render).calls(1 if form.between is None else 2) or "")


def _is_written(form: ToolForm, whole: str) -> bool:
    """Whether ``whole`` has the calls of the probes in ``form``."""
    calls = [
        ToolCall(*named, json.dumps(arguments))
        for named, arguments in zip(zip(_IDS, _NAMES, strict=True), _ARGUMENTS, strict=True)
    ]
    return _unspaced(written(form, calls[:1] if form.between is None else calls)) in _unspaced(whole)


class _Probes:
    """Short conversations as the template renders them; ``None`` where it refuses."""

    def __init__(self, render: Render) -> None:
        self._render = render

    def opened(self) -> str | None:
        """Render without a turn of the assistant, up to where its answer begins."""
        return self._rendered()

    def plain(self) -> str | None:
        """Render with text instead of calls."""
        return self._rendered({"role": "assistant", "content": _TEXT})

    def calls(self, number: int, arguments: Sequence[dict[str, Any]] = _ARGUMENTS) -> str | None:
        """Render with the first ``number`` of the calls."""
        calls = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": json.dumps(value)}}
            for call_id, name, value in zip(_IDS[:number], _NAMES, arguments, strict=False)
        ]
        return self._rendered({"role": "assistant", "content": "", "tool_calls": calls})

    def _rendered(self, *answer: dict[str, Any]) -> str | None:
        # The tools offered have other names than those called, which are thereby found in the call alone.
        parameters = {"type": "object", "properties": {"x": {"type": "string", "description": "x"}}, "required": ["x"]}
        function = {"name": "offered", "description": "Offered.", "parameters": parameters}
        try:
            asked = {"role": "user", "content": _QUESTION}
            return self._render([asked, *answer], [{"type": "function", "function": function}], not answer)
        except RequestError:
            return None


def _with_cdata(form: ToolForm, probes: _Probes) -> ToolForm:
    """``form`` with ``cdata`` where the template writes such sections."""
    lines = "zqlines\n<zqlines"
    if form.parameters is None or CDATA_OPEN + lines + CDATA_CLOSE not in (probes.calls(1, [{"zqkeya": lines}]) or ""):
        return form
    return replace(form, parameters=replace(form.parameters, cdata=True))


def _unspaced(text: str) -> str:
    # Some templates write True and False in Python's way, though all other values in JSON.
    return re.sub(r"\s+", "", text).lower()


def _region(opened: str, plain: str, whole: str) -> str:
    """Text that ``whole`` has in place of the text of ``plain``: all calls, and what opens and closes them."""
    atoms = _atoms(whole)
    start = len("".join(map(str, atoms[: _common(atoms, _atoms(plain))])))
    if whole.startswith(opened) and (start < len(opened) or whole.startswith(_NAMES[0], start)):
        start = len(opened)
    return whole[start:].removesuffix(plain[plain.rindex(_TEXT) + len(_TEXT) :])


class _UnknownFormError(Exception):
    pass


def _form(region: str, ends: Collection[str], *, parallel: bool) -> ToolForm:
    first = _Split(region, 0)
    lead, mid = first.lead, first.mid
    if not parallel:
        opens, between, closes = [], [], []
        tail = _parts(first.rest)
    else:
        second = _Split(first.rest, 1, first.parameters)
        mid = _alike(mid, second.mid)
        gap, tail = second.lead, _parts(second.rest)
        n_tail = _common(gap, tail)
        n_lead = _common(lead[::-1], gap[n_tail:][::-1])
        between = gap[n_tail : len(gap) - n_lead]
        opens, lead = lead[: len(lead) - n_lead], _alike(lead[len(lead) - n_lead :], gap[len(gap) - n_lead :])
        tail, closes = tail[:n_tail], tail[n_tail:]
    if not opens and not lead:
        raise _UnknownFormError
    # Some templates build all of their marks from the same few tags.
    ends = set(ends).difference(map(str, [*opens, *lead, *mid]))
    tail, ended = _before(tail, ends)
    return ToolForm(
        call=_merged([*lead, Slot.NAME, *mid, Slot.ARGUMENTS, *tail]),
        opens=_text(opens).lstrip(),
        closes="" if ended else _text(_before(closes, ends)[0]).rstrip(),
        between=_text(between) if parallel and not ended and not _before(between, ends)[1] else None,
        parameters=first.parameters,
    )


def _before(parts: Parts, ends: Collection[str]) -> tuple[Parts, bool]:
    """``parts`` up to the first one in ``ends``, and whether there is one."""
    kept = list(itertools.takewhile(lambda part: part not in ends, parts))
    return kept, len(kept) < len(parts)


class _Split:
    """One call of a region: what leads to its name, what is between name and arguments, and the text behind it."""

    def __init__(self, text: str, number: int, parameters: ParameterForm | None = None) -> None:
        before, found, after = text.partition(_NAMES[number])
        if not found:
            raise _UnknownFormError
        span = _json_span(after, _ARGUMENTS[number])
        if span is None:
            parameters = parameters or _parameter_form(after)
            arguments = written_parameters(parameters, _ARGUMENTS[number])
            start = after.lower().find(arguments.lower())
            if start < 0:
                raise _UnknownFormError
            span = start, start + len(arguments)
        self.parameters = parameters
        self.lead = _parts(before)
        self.mid = _parts(after[: span[0]])
        self.rest = after[span[1] :]


def _json_span(text: str, arguments: dict[str, Any]) -> tuple[int, int] | None:
    for at in (found.start() for found in re.finditer("{", text)):
        try:
            value, end = json.JSONDecoder().raw_decode(text, at)
        except ValueError:
            continue
        if value == arguments:
            return at, end
    return None


def _parameter_form(text: str) -> ParameterForm:
    """The form of the first call's arguments; ``text`` is what follows its name."""
    gaps: list[str] = []
    before: list[str] = []
    quote, values = "", list(VALUES)
    for key, value in _ARGUMENTS[0].items():
        gap, found, text = text.partition(key)
        if len(before) == 2 and before[0].startswith(before[1]) and gaps[1].startswith(before[0][len(before[1]) :]):
            quote = before[0][len(before[1]) :]
        spelled = {way: value if isinstance(value, str) else VALUES[way](value, quote).lower() for way in values}
        places = {way: at for way, spelling in spelled.items() if (at := text.lower().find(spelling)) >= 0}
        if not found or not places:
            raise _UnknownFormError
        way, at = min(places.items(), key=lambda place: place[1])
        if isinstance(value, dict):
            values = [way]
        gaps.append(gap)
        before.append(text[:at])
        text = text[at + len(spelled[way]) :]
    if quote:
        before[0] = before[1]
    head, behind = _atoms(gaps[0]), _atoms(gaps[2])
    closes = behind[: _common(behind, _atoms(text))]
    rest = behind[len(closes) :]
    n_opens = _common(head[::-1], rest[::-1])
    return ParameterForm(
        opens=_text(rest[len(rest) - n_opens :]),
        before=tuple(zip(map(JSON_TYPES.__getitem__, map(type, _ARGUMENTS[0].values())), before, strict=True)),
        closes=_text(closes),
        between=_text(rest[: len(rest) - n_opens]),
        quote=quote,
        values=values[0],
    )


def _parts(text: str) -> Parts:
    marks = {**dict.fromkeys(_NAMES, Slot.NAME), **dict.fromkeys(_IDS, Slot.ID)}
    pieces = re.split(f"({'|'.join(marks)})", text)
    return [part for piece in pieces for part in ([marks[piece]] if piece in marks else _atoms(piece))]


def _atoms(text: str) -> Parts:
    return list(_ATOM.findall(text))


def _text(parts: Parts) -> str:
    if any(isinstance(part, Slot) for part in parts):
        raise _UnknownFormError
    return "".join(map(str, parts))


def _common(left: Parts, right: Parts) -> int:
    """Number of parts that both have in common at their beginning."""
    pairs = zip(left, right, strict=False)
    return next((index for index, pair in enumerate(pairs) if not _same(*pair)), min(len(left), len(right)))


def _same(left: str | Slot, right: str | Slot) -> bool:
    return left == right or _counts(left, right)


def _counts(left: str | Slot, right: str | Slot) -> bool:
    """Whether they are the numbers of two calls that follow each other."""
    if not isinstance(left, str) or not isinstance(right, str):
        return False
    return left.isdecimal() and right.isdecimal() and int(right) == int(left) + 1


def _alike(first: Parts, second: Parts) -> Parts:
    """The parts of both calls, with a slot for their number."""
    if len(first) != len(second) or _common(first, second) < len(first):
        raise _UnknownFormError
    return [Slot.INDEX if _counts(*pair) else pair[0] for pair in zip(first, second, strict=True)]


def _merged(parts: Parts) -> tuple[str | Slot, ...]:
    """``parts`` with adjacent texts as one."""
    merged: Parts = []
    for part in parts:
        if merged and isinstance(part, str) and isinstance(merged[-1], str):
            merged[-1] += part
        elif part:
            merged.append(part)
    return tuple(merged)
