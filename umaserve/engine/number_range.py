"""Number ranges as GBNF: rules that match the numbers of a range and no others."""

from __future__ import annotations

from dataclasses import dataclass

LARGEST = 10**16 - 1
"""16 digits, the limit of grammars without bounds too: a model may otherwise generate digits without end."""


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers between two integers of at most 16 digits; an open end is excluded. Never empty."""

    low: int
    high: int
    low_open: bool = False
    high_open: bool = False


def integers(low: int, high: int) -> str:
    """GBNF for the integers from ``low`` to ``high``, at most 16 digits each."""
    alternatives = []
    if low < 0:
        alternatives.append(f'"-" ({_whole(max(1, -high), -low)})')
    if high >= 0:
        alternatives.append(_whole(max(0, low), high))
    return " | ".join(alternatives)


def numbers(of: Range) -> str:
    """GBNF for the numbers of a range, with up to 16 digits after the point and no exponent."""
    alternatives = []
    if of.low < 0:
        positive = of.high > 0
        nearest = Range(max(0, -of.high), -of.low, of.high_open and not positive, of.low_open)
        alternatives.append(f'"-" ({_magnitudes(nearest)})')
    if of.high > 0 or (of.high == 0 and not of.high_open):
        negative = of.low < 0
        alternatives.append(_magnitudes(Range(max(0, of.low), of.high, of.low_open and not negative, of.high_open)))
    return " | ".join(alternatives)


def _magnitudes(of: Range) -> str:
    """``numbers`` where neither end is negative."""
    alternatives = []
    first = of.low
    if of.low_open:
        alternatives.append(f'"{of.low}." "0"{{0,15}} [1-9] [0-9]{{0,15}}')
        first += 1
    if first < of.high:
        alternatives.append(f'({_whole(first, of.high - 1)}) ("." [0-9]{{1,16}})?')
    if not of.high_open:
        alternatives.append(f'"{of.high}" ("." "0"{{1,16}})?')
    return " | ".join(alternatives)


def _whole(low: int, high: int) -> str:
    """GBNF for the integers from ``low`` to ``high``, neither negative: by number of digits, shortest first."""
    shortest, longest = len(str(low)), len(str(high))
    if shortest == longest:
        return " | ".join(_digits(str(low), str(high)))
    between = [f"[1-9] [0-9]{{{shortest},{longest - 2}}}"] if longest - shortest > 1 else []
    return " | ".join([*_digits(str(low), "9" * shortest), *between, *_digits(f"{10 ** (longest - 1)}", str(high))])


def _digits(low: str, high: str) -> list[str]:
    """Alternatives for the digit strings from ``low`` to ``high``, which have the same length."""
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    zeros, nines = "0" * rest, "9" * rest
    if first == last and rest:
        return [f'"{first}" ({" | ".join(_digits(low[1:], high[1:]))})']
    alternatives = []
    if low[1:] > zeros:
        alternatives.append(f'"{first}" ({" | ".join(_digits(low[1:], nines))})')
        first += 1
    after = []
    if high[1:] < nines:
        after.append(f'"{last}" ({" | ".join(_digits(zeros, high[1:]))})')
        last -= 1
    if first <= last:
        alternatives.append(f"[{first}-{last}]" + (f" [0-9]{{{rest}}}" if rest else ""))
    return alternatives + after
