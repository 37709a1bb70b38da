"""Writes the files that say what the code declares, below a folder: ``python scripts/reference_pages FOLDER``."""

from __future__ import annotations

import sys
from pathlib import Path

from annotated_toml import annotated_toml
from http_page import daemon_page, relay_page
from metrics_page import metrics_page
from settings_page import settings_page

FILES = {
    "conf/umaserve.toml": annotated_toml,
    "docs/api/http.md": daemon_page,
    "docs/api/metrics.md": metrics_page,
    "docs/api/relay.md": relay_page,
    "docs/api/settings.md": settings_page,
}


def write(folder: Path) -> None:
    """Make all files below ``folder``."""
    for name, made in FILES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(made())


if __name__ == "__main__":
    write(Path(sys.argv[1]))
