"""A secret given as a setting, or in a file, which can be hidden from other users of the machine."""

from __future__ import annotations

import logging
import os
import stat

from umaserve.core.errors import ConfigError
from umaserve.settings.kinds import MAX_SECRET, secret
from umaserve.settings.sources import printable

log = logging.getLogger(__name__)


def read_secret(value: str, file: str, setting: str) -> str:
    """The content of ``file``, stripped of white space, if a file is named, else ``value``.

    ``setting`` is the name of the file's setting, for errors. Raises ConfigError, which never quotes the content, for a
    file that can't be read, is empty or larger than 4 KiB, or has other characters than printable ASCII without spaces.
    """
    if not file:
        return value
    place = f"{setting} {printable(file)}"
    try:
        with open(file, "rb") as opened:
            status = os.fstat(opened.fileno())
            data = opened.read(MAX_SECRET + 1)
    except OSError as error:
        raise ConfigError(f"{place}: can't be read: {error.strerror}: name a file that this user may read") from None
    if len(data) > MAX_SECRET:
        raise ConfigError(f"{place}: larger than {MAX_SECRET} bytes: the file must hold the secret and nothing else")
    kind = secret()
    try:
        found = kind.check(data.decode().strip())
    except ValueError:
        raise ConfigError(f"{place}: expected {kind.expected}, got something else, which is not shown") from None
    if not found:
        raise ConfigError(f"{place}: is empty: put a secret into it, such as openssl rand -hex 32 makes")
    if status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
        log.warning("%s: every user of this machine can read or change the file: run chmod o-rw on it", place)
    return found
