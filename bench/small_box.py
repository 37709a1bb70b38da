"""The daemon as if the box had only ``BOX_MIB`` MiB for models, which may be unloaded soon after they were loaded."""

from __future__ import annotations

import os
import sys
from unittest import mock

from bench.processes import with_children
from umaserve import cli
from umaserve.models import registry, residency
from umaserve.system.memory import resident_bytes


def main() -> int:
    """Run the daemon; returns the exit status."""
    total = int(os.environ["BOX_MIB"]) << 20

    def available_bytes() -> int:
        own = resident_bytes()
        return max(0, total - sum(max(0, resident_bytes([pid]) - 2 * own) for pid in with_children(os.getpid())[1:]))

    with (
        mock.patch.multiple(registry, available_bytes=available_bytes, mapped_bytes=lambda _pids: 0),
        mock.patch.multiple(residency, MIN_STAY_S=0.5, MIN_PATIENCE_S=2.0),
    ):
        return cli.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
