"""The progress bar: on a terminal alone, and no longer than that is there."""

from __future__ import annotations

import errno
import io

from umaserve.system.progress import ProgressBar


class Terminal(io.StringIO):
    gone = False

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self.gone:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


def test_it_is_drawn_on_a_terminal_and_cleared() -> None:
    terminal = Terminal()
    bar = ProgressBar("loading", terminal)
    bar.show(0.5)
    assert terminal.getvalue() == f"loading {'█' * 15}{'░' * 15}  50%\r"
    bar.clear()
    assert terminal.getvalue().endswith("\x1b[K")


def test_nothing_is_drawn_elsewhere() -> None:
    pipe = io.StringIO()
    bar = ProgressBar("loading", pipe)
    bar.show(0.5)
    bar.clear()
    assert pipe.getvalue() == ""


def test_a_terminal_that_is_closed_meanwhile_is_no_error() -> None:
    terminal = Terminal()
    bar = ProgressBar("loading", terminal)
    bar.show(0.1)
    terminal.gone = True
    bar.show(0.2)
    bar.clear()
