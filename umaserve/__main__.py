"""``python -m umaserve``."""

import sys

from umaserve.cli import main

sys.exit(main())
