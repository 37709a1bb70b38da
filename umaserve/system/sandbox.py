"""Program that confines itself and becomes another one: ``python -I sandbox.py BYTES NETWORK USER PROGRAM ARGUMENT…``.

It imports nothing of this package, so that the other program's environment needs nothing of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pwd
import resource
import signal
import sys

NICE = 5
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000


def main(arguments: list[str]) -> None:
    """Confine this process (setrlimit(2), prctl(2), unshare(2)), and replace it by the program."""
    max_bytes, network, user, *command = arguments
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Not the address space, of which some programs reserve terabytes that they never use.
    resource.setrlimit(resource.RLIMIT_DATA, (int(max_bytes), int(max_bytes)))
    # Sandboxes may lack the file.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    os.nice(NICE)
    if network != "network":
        _leave_network()
    if user:
        _become(user)
    with contextlib.suppress(AttributeError):
        prctl = ctypes.CDLL(None).prctl
        prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        # After the change of the user, which resets it.
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"{command[0]}: can't be run: {error.strerror}")


def _leave_network() -> None:
    """Leave all networks, also this machine's own."""
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    try:
        failed = libc.unshare(_CLONE_NEWNET if uid == 0 else _CLONE_NEWUSER | _CLONE_NEWNET)
    except AttributeError:
        sys.exit("this system can't take the network from a program: set network = true")
    if failed:
        why = os.strerror(ctypes.get_errno())
        sys.exit(f"the kernel doesn't let this user take the network from a program ({why}): set network = true")
    if uid:
        for name, line in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(line)


def _become(name: str) -> None:
    try:
        found = pwd.getpwnam(name)
        os.initgroups(name, found.pw_gid)
        os.setgid(found.pw_gid)
        os.setuid(found.pw_uid)
    except KeyError:
        sys.exit(f"user: there is no user {name}")
    except OSError as error:
        sys.exit(f"user: the daemon may not run programs as {name}: {error.strerror}")
    os.environ |= {"HOME": found.pw_dir, "USER": name, "LOGNAME": name}


if __name__ == "__main__":
    main(sys.argv[1:])
