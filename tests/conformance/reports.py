"""The reports of test programs, as outcomes of cases."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from xml.etree import ElementTree

from tests.conformance.rows import Group, Row

_MAX_REASON = 300


class Case(NamedTuple):
    """One test: ``outcome`` is ``passed``, ``failed`` or ``skipped``, ``why`` its message where it did not pass."""

    part: str
    name: str
    outcome: str
    why: str = ""


def of_junit(report: str) -> list[Case]:
    """The cases of a report in JUnit's XML, as pytest writes it. A name such as ``[part: …]`` or the class names its
    part."""
    cases = []
    for each in ElementTree.fromstring(report).iter("testcase"):
        name = each.attrib["name"]
        inner = name.partition("[")[2].removesuffix("]")
        part, colon, _ = inner.partition(": ")
        if colon:
            name = inner
        else:
            part = each.get("classname", "").rpartition(".")[2]
        for kind, outcome in (("failure", "failed"), ("error", "failed"), ("skipped", "skipped")):
            found = each.find(kind)
            if found is not None:
                why = found.get("message", "")
                if why == "collection failure":
                    why = (found.text or why).strip().splitlines()[-1]
                cases.append(Case(part, name, outcome, why))
                break
        else:
            cases.append(Case(part, name, "passed"))
    return cases


def of_go(report: str) -> list[Case]:
    """The cases of ``go test -json``. Of a test with tests of its own only those count."""
    said: dict[str, list[str]] = {}
    ended: dict[str, str] = {}
    for event in map(json.loads, report.splitlines()):
        name = event.get("Test")
        if name is None:
            continue
        if event["Action"] == "output":
            said.setdefault(name, []).append(event["Output"])
        elif event["Action"] in ("pass", "fail", "skip"):
            ended[name] = {"pass": "passed", "fail": "failed", "skip": "skipped"}[event["Action"]]
    leaves = [name for name in ended if not any(other.startswith(f"{name}/") for other in ended)]
    complaint = re.compile(r"_test\.go:\d+: (.*)", re.DOTALL)
    cases = []
    for name in leaves:
        told = [found[1] for line in said.get(name, ()) if (found := complaint.search(line))]
        cases.append(Case("", name, ended[name], "" if ended[name] == "passed" else "".join(told).strip()))
    return cases


def of_compliance(report: str) -> list[Case]:
    """The cases that Open Responses' tests tell as JSON."""
    results = json.loads(report)["results"]
    return [Case("", each["id"], each["status"], "\n".join(each.get("errors") or ())) for each in results]


def with_cases(row: Row, cases: Iterable[Case], reasons: Mapping[str, str]) -> Row:
    """``row`` with these cases; what ``reasons`` does not know keeps its message."""
    counts: dict[str, dict[str, int]] = {}
    failures: dict[str, list[str]] = {}
    left_out: dict[str, list[str]] = {}
    for case in cases:
        part = counts.setdefault(case.part, {"passed": 0, "failed": 0, "skipped": 0})
        part[case.outcome] += 1
        if case.outcome != "passed":
            listed = failures if case.outcome == "failed" else left_out
            listed.setdefault(_known(case, reasons), []).append(case.name)
    groups = tuple(Group(name, *part.values()) for name, part in counts.items())
    return dataclasses.replace(row, groups=groups, failures=failures, left_out=left_out)


def _known(case: Case, reasons: Mapping[str, str]) -> str:
    told = f"{case.name}: {case.why}"
    for pattern, reason in reasons.items():
        if re.search(pattern, told):
            return reason
    first = (case.why.strip().splitlines() or ["no reason was given"])[0]
    return first if len(first) <= _MAX_REASON else f"{first[:_MAX_REASON]} …"
