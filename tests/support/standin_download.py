"""Stands in for the program that downloads: says what its model's name asks for, and ends."""

from __future__ import annotations

import os
import sys
import time

if __name__ == "__main__":
    out, what, _folder, _max_bytes = sys.argv[1:]
    if what == "org/endless":
        while True:
            os.write(int(out), b"x" * 65536)
    if what == "org/deaf":
        os.write(int(out), b"{}\n")
        time.sleep(3600)
    if what == "org/lingering":
        os.write(int(out), b"{}\n")
        os.close(int(out))
        time.sleep(3600)
    if what == "org/finished":
        os.write(int(out), b'{"finished": true}\n')
    if what == "org/broken":
        sys.exit("a word of the system's")
