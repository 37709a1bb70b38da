"""What the commands' parsers have alike, and how those with settings read them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from umaserve import __version__
from umaserve.commands.foreign_names import FLAGS
from umaserve.settings.sources import Loaded, Settings, nearest
from umaserve.system import logs

if TYPE_CHECKING:
    from umaserve.settings.daemon import Config
    from umaserve.settings.relay import RelayConfig
    from umaserve.settings.worker import WorkerConfig

HELP_ALL = "--help-all"

C = TypeVar("C", "Config", "RelayConfig", "WorkerConfig")


class _AsWritten(argparse.RawDescriptionHelpFormatter):
    """Room for most flags beside what they do."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


class Parser(argparse.ArgumentParser):
    """Takes a description as it is written, and no abbreviated flag; says what is wrong in one line."""

    def __init__(self, *args: Any, **options: Any) -> None:
        options |= {"formatter_class": _AsWritten, "allow_abbrev": False}
        super().__init__(*args, **options)

    def error(self, message: str) -> NoReturn:
        unknown = message.removeprefix("unrecognized arguments: ")
        if unknown != message:
            message += self._meant(unknown.split())
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _meant(self, unknown: Sequence[str]) -> str:
        """A hint at what the unknown arguments may mean, beginning with a comma; empty if nothing is like them."""
        flags = [flag for action in self._actions for flag in action.option_strings]
        names = [argument.partition("=")[0] for argument in unknown]
        known = {name: FLAGS[name] for name in names if name in FLAGS and FLAGS[name].partition(" ")[0] in flags}
        if "--model" in flags and "--model" not in known.values():
            known |= {name: f"--model {name}" for name in names if name.endswith(".gguf")}
        return "".join(f", {name} is {here} here" for name, here in known.items()) or nearest(names[0], flags)


def add_settings(parser: Parser, settings: Settings[C], arguments: Sequence[str], first: Sequence[str]) -> None:
    """A flag for each setting, and those for help; what help shows depends on the ``arguments``."""
    if HELP_ALL in arguments:
        settings.add_arguments(parser)
    else:
        settings.add_brief_arguments(parser, first)
    parser.add_argument("-h", "--help", HELP_ALL, action="help", help="show the most important flags, or all")


def loaded(
    program: str,
    usage: str,
    description: str,
    settings: Settings[C],
    arguments: Sequence[str],
    first: Sequence[str] | None = None,
    placed: Callable[[Loaded[C]], Loaded[C]] | None = None,
) -> Loaded[C] | None:
    """A program's settings, with its log set up; ``None`` where all that was wanted was to see them.

    ``first``: what ``--help`` shows, if other settings matter first in this command than in the program.
    ``placed``: chooses what no setting says.
    """
    parser = Parser(program, usage=f"{program} {usage}", description=description, add_help=False)
    add_settings(parser, settings, arguments, settings.first if first is None else first)
    parser.add_argument("--print-config", action="store_true", help="print all settings and where each came from")
    parser.add_argument("--version", action="version", version=f"umaserve {__version__}", help="print the version")
    flags = vars(parser.parse_args(arguments))
    print_config = flags.pop("print_config")
    found = settings.load(flags, os.environ)
    if placed is not None:
        found = placed(found)
    if print_config:
        print(settings.render(found), end="")
        return None
    logs.configure(found.config.log_level, found.config.log_format)
    logs.sample_requests(found.config.access_log)
    return found
