"""What is typed into ``umaserve chat``: questions, also of several lines, files to go with them, and commands."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from umaserve.commands.chat import media
from umaserve.commands.chat.media import FileError
from umaserve.settings.sources import nearest

HINT = """\
Ctrl-C ends an answer, Ctrl-D the conversation. /image FILE, /audio FILE or /video FILE
attaches a file to the next question. /help lists all commands.
"""
HELP = '''\
/image FILE, /audio FILE, /video FILE
               attach a file to the next question
/model NAME    use this model from now on; without NAME: the daemon's default one
/system TEXT   set the system message from now on; without TEXT: none
/clear         forget the conversation so far
/bye           end the conversation, as Ctrl-D does
/help          list these commands

A pasted text of several lines is one question. To type one, begin and end it with """.
To send a line that begins with /, put a space before it.
'''
QUOTES = '"""'
COMMANDS = (*(f"/{kind}" for kind in media.KINDS), "/model", "/system", "/clear", "/bye", "/help")

Message = dict[str, Any]


class ChatError(Exception):
    """The conversation can't go on: the daemon can't be reached, or reports an error; or a line is none that a script
    may have."""


@dataclass
class Conversation:
    """What the next request has besides its question."""

    model: str | None = None
    """``None``: the daemon's default one."""
    system: str | None = None
    turns: list[Message] = field(default_factory=list)
    attached: list[Message] = field(default_factory=list)
    """The files that go with the next question."""

    def asking(self, *turns: Message) -> list[Message]:
        """All messages of a request, of which ``turns`` are the last."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns, *turns]

    def clear(self) -> None:
        """Forget all but the model and the system message."""
        self.turns.clear()
        self.attached.clear()


def questions(conversation: Conversation) -> Iterator[str]:
    """What is typed, or read from a pipe, and is no command; commands change the ``conversation``. From a pipe, raises
    ``FileError``, and ``ChatError`` for an unknown command and where it ends without a question about the files."""
    watched = sys.stdin.isatty()
    if watched:
        with contextlib.suppress(ImportError):
            import readline  # makes the typed line editable

            # What is pasted is one text then, whatever line breaks it has.
            readline.parse_and_bind("set enable-bracketed-paste on")
        sys.stderr.write(HINT)
    while True:
        try:
            text = _typed(watched=watched)
        except EOFError:
            break
        except KeyboardInterrupt:
            if not watched:
                raise
            # Like a shell: drop the typed line and begin a new one.
            sys.stderr.write("\n")
            continue
        command, *rest = text.strip().split(maxsplit=1) or [""]
        if not re.fullmatch(r"/[A-Za-z]+", command) or text[0] != "/" or "\n" in text.strip():
            if text.strip():
                yield text.strip()
        elif command == "/bye":
            break
        else:
            try:
                _obey(conversation, command, "".join(rest).strip())
            except (ChatError, FileError) as error:
                if not watched:  # A script can't have meant what follows then.
                    raise
                print(f"umaserve: {error}", file=sys.stderr)
    if conversation.attached and not watched:
        raise ChatError("the files have no question: end with a line that asks one")


def _typed(*, watched: bool) -> str:
    """A line, or all lines between two of ``QUOTES``; raises EOFError at the end of the input."""
    text = input("> " if watched else "")
    if not text.lstrip().startswith(QUOTES):
        return text
    text = text.lstrip().removeprefix(QUOTES)
    # The end of the input ends the text too.
    with contextlib.suppress(EOFError):
        while not text.rstrip().endswith(QUOTES):
            text += "\n" + input(". " if watched else "")
    # Quoted lines are no commands.
    return " " + text.rstrip().removesuffix(QUOTES)


def _obey(conversation: Conversation, command: str, argument: str) -> None:
    """Raises ``FileError`` for a file that can't be attached, ``ChatError`` for a command that there is not."""
    match command:
        case "/help":
            sys.stderr.write(HELP)
        case "/clear":
            conversation.clear()
        case "/model":
            conversation.model = argument or None
        case "/system":
            conversation.system = argument or None
        case _ if command.removeprefix("/") in media.KINDS:
            conversation.attached.append(_attachment(command, argument))
        case _:
            hint = nearest(command, COMMANDS)
            raise ChatError(
                f"no command is named {command}{hint}: /help lists all commands; to send the line as text, begin it"
                " with a space"
            )


def _attachment(command: str, path: str) -> Message:
    if not path:
        raise FileError(f"{command}: expected a file after it, such as {command} FILE")
    # Terminals put quotes around a file that is dragged into them.
    if len(path) > 1 and path[0] == path[-1] and path[0] in "'\"":
        path = path[1:-1]
    return media.item(command.removeprefix("/"), os.path.expanduser(path))
