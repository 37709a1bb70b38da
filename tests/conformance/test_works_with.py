"""Reports of test programs become rows, and the page says of each row what failed, and why."""

from __future__ import annotations

from tests.conformance.reports import Case, of_compliance, of_go, of_junit, with_cases
from tests.conformance.rows import PAGE, RECORD, Group, Row, dumps, loads, page
from tests.conformance.suites import CLIENTS, SUITES

JUNIT = """<testsuites><testsuite>
<testcase classname="use_it.TestChat" name="test_chat"/>
<testcase classname="use_it.TestChat" name="test_stream"><failure message="Error: a | b&#10;more"/></testcase>
<testcase classname="use_it" name="test_schema[enum: of numbers: 1]"><skipped message="enum: refused"/></testcase>
<testcase classname="use_it" name="test_fixture"><error message="no server">…</error></testcase>
</testsuite></testsuites>"""
CASES = [
    Case("TestChat", "test_chat", "passed"),
    Case("TestChat", "test_stream", "failed", "Error: a | b\nmore"),
    Case("enum", "enum: of numbers: 1", "skipped", "enum: refused"),
    Case("use_it", "test_fixture", "failed", "no server"),
]
GO = """{"Action":"start","Package":"p"}
{"Action":"output","Package":"p","Test":"TestA/one","Output":"    a_test.go:5: model 'x' not found\\n"}
{"Action":"fail","Package":"p","Test":"TestA/one"}
{"Action":"fail","Package":"p","Test":"TestA"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}
"""
COMPLIANCE = """{"summary": {}, "results": [{"id": "a", "name": "A", "status": "passed", "errors": []},
{"id": "b", "name": "B", "status": "failed", "errors": ["x: Required", "y: Required"]}]}"""
REASONS = {"no server|not found": "By intent."}


def test_a_report_of_pytest_has_each_case_with_its_message() -> None:
    assert of_junit(JUNIT) == CASES


def test_a_report_of_go_counts_the_innermost_tests() -> None:
    assert of_go(GO) == [Case("", "TestA/one", "failed", "model 'x' not found"), Case("", "TestB", "passed")]


def test_a_report_of_open_responses_has_each_case_with_its_errors() -> None:
    assert of_compliance(COMPLIANCE) == [Case("", "a", "passed"), Case("", "b", "failed", "x: Required\ny: Required")]


def test_a_known_reason_stands_for_the_messages_that_it_explains() -> None:
    row = with_cases(Row("it"), CASES, REASONS)
    assert row.groups == (Group("TestChat", 1, 1), Group("enum", left_out=1), Group("use_it", failed=1))
    assert row.failures == {"Error: a | b": ["test_stream"], "By intent.": ["test_fixture"]}
    assert row.left_out == {"enum: refused": ["enum: of numbers: 1"]}


def test_the_page_has_all_that_was_tried_and_what_was_not() -> None:
    row = with_cases(Row("it", "it 1", "m", "2026-11-26"), CASES, REASONS)
    absent = Row("that", not_tried="needs go", date="2026-11-26")
    assert loads(dumps([row, absent])) == [row, absent]
    text = page([row, absent])
    assert "| it | it 1 | m | 1 | 2 | 1 | 2026-11-26 |\n" in text
    assert "| that |  |  |  |  | not tried: needs go | 2026-11-26 |\n" in text
    assert "- Error: a | b (1): `test_stream`\n- By intent. (1): `test_fixture`\n" in text
    assert "- enum: refused (1): `enum: of numbers: 1`\n" in text
    assert "| TestChat | 1 | 1 | 0 |\n" in text


def test_the_page_is_that_of_the_record() -> None:
    assert PAGE.read_text() == page(loads(RECORD.read_text()))


def test_each_script_of_a_client_belongs_to_a_suite() -> None:
    named = {test for suite in SUITES for test in suite.tests}
    assert {path.name for path in CLIENTS.glob("*.py")} - {"conftest.py", "questions.py"} <= named
