"""Forms with files: what is read of them, whatever clients send, and that nothing is copied."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from umaserve.core.errors import Fault, RequestError
from umaserve.wire import multipart
from umaserve.wire.multipart import MAX_HEAD_BYTES, MAX_PART_HEADERS, MAX_PARTS, Part, read_form, write_form

TYPE = "multipart/form-data; boundary=frontier"
HEAD = b'--frontier\r\nContent-Disposition: form-data; name="a"\r\n\r\n'
END = b"\r\n--frontier--\r\n"


def form(*fields: tuple[str, bytes], boundary: str = "frontier") -> bytes:
    parts = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="f"\r\n'.encode()
        + b"Content-Type: audio/wav\r\n\r\n"
        + data
        + b"\r\n"
        for name, data in fields
    ]
    return b"".join([*parts, f"--{boundary}--\r\n".encode()])


def read(body: bytes, content_type: str = TYPE) -> list[tuple[str, bytes]]:
    return [(part.name, bytes(part.data)) for part in read_form(body, content_type)]


def refusal(body: bytes, content_type: str = TYPE) -> str:
    with pytest.raises(RequestError) as refused:
        read_form(body, content_type)
    assert refused.value.fault is Fault.BAD_REQUEST
    return refused.value.message


@given(
    st.lists(st.tuples(st.from_regex(r"[a-z_]{1,20}(\[\])?", fullmatch=True), st.binary(max_size=300)), max_size=9),
    st.from_regex(r"[A-Za-z0-9'()+_,./:=?-]{8,70}", fullmatch=True),
)
def test_whatever_bytes_the_fields_have_they_come_back(fields: list[tuple[str, bytes]], boundary: str) -> None:
    if any(b"\r\n--" + boundary.encode() in b"\r\n" + data + b"\r\n" for _, data in fields):
        return
    assert read(form(*fields, boundary=boundary), f'multipart/form-data; boundary="{boundary}"') == fields


def test_the_data_are_views_into_the_body() -> None:
    body = form(("a", b"one"), ("file", b"\r\n--front\r\n-- \0"))
    assert all(part.data.obj is body for part in read_form(body, TYPE))


def test_what_clients_write_in_many_ways() -> None:
    assert read(b"\r\n" + HEAD + b"x" + END, 'Multipart/Form-Data; charset=utf-8; Boundary="frontier"') == [("a", b"x")]
    assert read(HEAD.replace(b'"a"', b"a") + b"x" + END) == [("a", b"x")]
    assert read(HEAD.replace(b"Content-D", b"content-d") + b"x" + END + b"an epilogue") == [("a", b"x")]
    assert read(HEAD.replace(b'"a"', '"ä\\"b"'.encode()) + b"" + END) == [('ä"b', b"")]
    assert read(b"--frontier--") == []


def test_the_parser_looks_at_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes a microsecond for each line's end, which may be half of a recording."""
    given: list[int] = []

    class Parser(multipart.MultipartParser):
        def write(self, data: bytes) -> int:
            given.append(len(data))
            return super().write(data)

    monkeypatch.setattr(multipart, "MultipartParser", Parser)
    data = b"\r\n" * 2**16 + b"\r\n--frontie" * 2**10
    assert read(form(("file", data), ("a", b"\r"))) == [("file", data), ("a", b"\r")]
    assert len(given) == 2
    assert sum(given) < 400


NAMES = st.text(st.characters(codec="utf-8", exclude_characters='"\\\x7f', min_codepoint=32), min_size=1, max_size=20)


@given(
    st.lists(
        st.builds(
            Part, NAMES, st.binary(max_size=300).map(memoryview), st.none() | NAMES, st.sampled_from(["", "audio/wav"])
        ),
        max_size=9,
    )
)
def test_what_is_written_is_what_is_read(parts: list[Part]) -> None:
    content_type, body = write_form(parts)
    assert read_form(body, content_type) == tuple(parts)


def test_a_name_ends_no_line_and_no_quotes() -> None:
    content_type, body = write_form([Part('a"\r\n\\', memoryview(b"x"), '"\0', "audio/wav")])
    assert b'name="a%22%0D%0A%5C"; filename="%22%00"\r\nContent-Type: audio/wav\r\n\r\nx\r\n' in body
    assert [part.name for part in read_form(body, content_type)] == ["a%22%0D%0A%5C"]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "it does not begin with its boundary"),
        (b"--frontier", "a line continues after the boundary"),
        (HEAD + b"x", "it ends before its last boundary"),
        (HEAD + b"x\r\n--frontier", "a line continues after the boundary"),
        (HEAD + b"x\r\n--frontierland--", "a line continues after the boundary"),
        (HEAD + b"x\r\n--frontier" + b" " * 10**6, "a line continues after the boundary"),
        (b"--frontier\r\n\r\nx" + END, 'part 1 has no Content-Disposition: form-data; name="…"'),
        (HEAD.replace(b"name", b"nam") + b"x" + END, 'part 1 has no Content-Disposition: form-data; name="…"'),
        (HEAD.replace(b'"a"', b'"\xff"') + b"x" + END, 'part 1 has no Content-Disposition: form-data; name="…"'),
        (HEAD.replace(b"form-data", b"attachment") + b"x" + END, "part 1 has no Content-Disposition"),
        (HEAD[:-2] + HEAD[12:] + b"x" + END, "a part has two fields content-disposition"),
        (HEAD[:-2] + b"Content-Type: a\r\n" * 2 + b"\r\nx" + END, "a part has two fields content-type"),
        (HEAD[:-2] + b"Content-Type: a\nb\r\n\r\nx" + END, "part 1 has a Content-Type that is not one line of ASCII"),
        (HEAD[:-2] + b"X: y\r\n" * MAX_PART_HEADERS + b"\r\nx" + END, "Maximum header count exceeded"),
        (
            HEAD[:-2] + b"X: " + b"y" * MAX_HEAD_BYTES + b"\r\n\r\nx" + END,
            f"part 1 has no head of at most {MAX_HEAD_BYTES}",
        ),
        (HEAD[:-2] + b"X" * 2**20 + END, f"part 1 has no head of at most {MAX_HEAD_BYTES} bytes"),
        (HEAD[:-2] + END, f"part 1 has no head of at most {MAX_HEAD_BYTES} bytes"),
        (HEAD[:-2] + b"X\r\n\r\nx" + END, "Found invalid character"),
        ((HEAD + b"\r\n") * MAX_PARTS + HEAD + END, f"it has more than {MAX_PARTS} parts"),
        (HEAD + b"\r\n--frontier\r\n" * 2**16, f"it has more than {MAX_PARTS} parts"),
        (b"no form", "it does not begin with its boundary"),
    ],
)
def test_a_malformed_form_is_refused_with_what_is_wrong(body: bytes, problem: str) -> None:
    assert refusal(body).startswith(f"body: expected a form (multipart/form-data): {problem}")


@pytest.mark.parametrize(
    "content_type",
    ["", "multipart/form-data", "a; boundary=", "a; boundary=\x7f", "a; boundary=ä", f"a; boundary={'b' * 71}"],
)
def test_a_boundary_that_can_not_be_one_is_refused(content_type: str) -> None:
    assert "a boundary of 1 to 70 ASCII characters" in refusal(form(("a", b"x")), content_type)


@given(st.data())
def test_cut_and_spoilt_forms_are_read_or_refused_and_nothing_is_logged(data: st.DataObject) -> None:
    body = bytearray(form(("file", b"\r\n--frontie\r\n"), ("model", b"m"), ("empty", b"")))
    for _ in range(data.draw(st.integers(1, 3))):
        at, until = sorted(data.draw(st.tuples(*[st.integers(0, len(body))] * 2)))
        body[at:until] = data.draw(
            st.sampled_from([b"", b"\r", b"\n", b"--", b"--frontier", b"\r\n\r\n", b":", b"\xff"])
        )
    refused: RequestError | None = None
    records: list[logging.LogRecord] = []
    handler = logging.Handler(logging.NOTSET)
    handler.emit = records.append  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    parts: tuple[Part, ...] = ()
    try:
        parts = read_form(bytes(body), TYPE)
    except RequestError as error:
        refused = error
    finally:
        logging.getLogger().removeHandler(handler)
    assert refused is None or (refused.fault is Fault.BAD_REQUEST and len(refused.message) < 400)
    assert all(part.name and b"\r\n--frontier" not in bytes(part.data) for part in parts)
    assert not records
