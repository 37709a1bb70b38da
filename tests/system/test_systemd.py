"""The daemon under systemd: its side of the protocols, the unit files, and the daemon within their limits."""

from __future__ import annotations

import base64
import ctypes
import errno
import importlib.util
import json
import os
import resource
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import media_files
import pytest
import standin_projectors as projectors
from daemon import Daemon

from umaserve.core.errors import ConfigError
from umaserve.settings.daemon import Config
from umaserve.settings.relay import SETTINGS as RELAY_SETTINGS
from umaserve.system import systemd

ROOT = Path(__file__).parents[2]
SERVICE = ROOT / "conf" / "umaserve.service"
SOCKET = ROOT / "conf" / "umaserve.socket"
RELAY, WORKER = ROOT / "conf" / "umaserve-relay.service", ROOT / "conf" / "umaserve-worker.service"
HTTP_SOCKET, RELAY_SOCKET = ROOT / "conf" / "umaserve-http.socket", ROOT / "conf" / "umaserve-relay.socket"
UNITS = [SERVICE, SOCKET, HTTP_SOCKET, RELAY, RELAY_SOCKET, WORKER]


@pytest.mark.parametrize("variable", ["NOTIFY_SOCKET", "LISTEN_FDS", "INVOCATION_ID"])
def test_a_service_is_told_from_what_a_person_starts(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NOTIFY_SOCKET", "LISTEN_FDS", "INVOCATION_ID"):
        monkeypatch.delenv(name, raising=False)
    assert not systemd.is_service()
    monkeypatch.setenv(variable, "1")
    assert systemd.is_service()
    # A desktop's terminal hands INVOCATION_ID on.
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert systemd.is_service() is (variable != "INVOCATION_ID")


def directive(unit: Path, name: str) -> list[str]:
    """Every value that the unit gives the directive."""
    lines = unit.read_text().splitlines()
    return [value for key, _, value in (line.partition("=") for line in lines) if key == name]


def analyzer_version() -> int:
    if not shutil.which("systemd-analyze"):
        return 0
    shown = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout
    return int(shown.split()[1])


needs_analyzer = pytest.mark.skipif(
    analyzer_version() < 250, reason="no systemd-analyze that works offline (systemd 250) on this machine"
)
needs_activator = pytest.mark.skipif(
    not shutil.which("systemd-socket-activate"), reason="no systemd-socket-activate on this machine"
)


@pytest.fixture(autouse=True)
def _no_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests may be a service itself."""
    for name in [name for name in os.environ if name.startswith(("NOTIFY_", "WATCHDOG_", "LISTEN_"))]:
        monkeypatch.delenv(name)


# Notifications.


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """The manager's end of NOTIFY_SOCKET."""
    spelled = str(tmp_path / "notify") if request.param == "path" else f"@umaserve-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(spelled.replace("@", "\0"))
        receiver.setblocking(False)
        monkeypatch.setenv("NOTIFY_SOCKET", spelled)
        yield receiver


def test_notify_sends_one_datagram_for_each_message(manager: socket.socket) -> None:
    systemd.notify("READY=1\nSTATUS=größer")
    systemd.notify("STOPPING=1")
    assert [manager.recv(4096), manager.recv(4096)] == ["READY=1\nSTATUS=größer".encode(), b"STOPPING=1"]
    with pytest.raises(BlockingIOError):
        manager.recv(4096)


def test_the_manager_is_told_how_long_the_end_takes(manager: socket.socket) -> None:
    systemd.notify_stopping(16.5)
    assert manager.recv(4096) == b"STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=16500000"


def test_notify_sends_text_that_has_no_utf8(manager: socket.socket) -> None:
    systemd.notify("STATUS=model-\udcff.gguf")
    assert manager.recv(4096) == b"STATUS=model-?.gguf"


def test_notify_without_a_manager_opens_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", None)
    systemd.notify("READY=1")


@pytest.mark.parametrize("address", ["/nonexistent/notify", "@umaserve-test-nobody", "/" + "x" * 200])
def test_notify_logs_a_failure(address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    systemd.notify("READY=1")
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert address in caplog.text


def test_notify_gives_up_on_a_manager_that_does_not_read(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(systemd, "_SEND_TIMEOUT_S", 0.0)
    while not caplog.records:
        systemd.notify("WATCHDOG=1")
    assert "can't notify the service manager" in caplog.text


# The watchdog.


@pytest.mark.parametrize("names_this_process", [False, True])
def test_watchdog_interval_is_half_the_limit(names_this_process: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    if names_this_process:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert systemd.watchdog_interval() == 15.0


def test_watchdog_interval_is_none_without_a_watchdog() -> None:
    assert systemd.watchdog_interval() is None


def test_watchdog_interval_is_none_when_another_process_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getppid()))
    assert systemd.watchdog_interval() is None


def test_the_watchdog_is_not_fed_while_a_thread_is_stuck(
    manager: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    timers: list[tuple[float, Callable[[], None]]] = []
    stuck: dict[str, float] = {}
    systemd.feed_watchdog(lambda seconds, call: timers.append((seconds, call)), lambda: stuck)
    assert manager.recv(4096) == b"WATCHDOG=1"
    stuck["preparing"] = 75.0
    timers.pop()[1]()
    with pytest.raises(BlockingIOError):
        manager.recv(4096)
    stuck.clear()
    (interval, feed), *more = timers
    assert (interval, more) == (15.0, [])
    feed()
    assert manager.recv(4096) == b"WATCHDOG=1"


NOT_A_NUMBER = "^environment {}: expected a whole number above 0, got '.*'$"
MALFORMED_NUMBERS = ["", "0", "-1", "+1", " 1", "1\n", "1_0", "1.5", "0x1", "٣", "one", "9" * 5000]


@pytest.mark.parametrize("variable", ["WATCHDOG_USEC", "WATCHDOG_PID"])
@pytest.mark.parametrize("value", MALFORMED_NUMBERS, ids=ascii)
def test_malformed_watchdog_variables(variable: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "30000000")
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError, match=NOT_A_NUMBER.format(variable)):
        systemd.watchdog_interval()


# Sockets that the manager made.


@pytest.fixture
def pass_fd(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pass one descriptor of the test's as the manager passes descriptor 3 and those that follow."""

    def pass_fd(fd: int, **variables: str) -> None:
        monkeypatch.setattr(systemd, "_FIRST_FD", fd)
        passed = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": "1", "LISTEN_FDNAMES": "uds"}
        for name, value in (passed | variables).items():
            monkeypatch.setenv(name, value)

    return pass_fd


def listening(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind("")  # an abstract address of the kernel's choice
    listener.listen()
    return listener.detach()


REPORT = """
import json, os
from umaserve.system.systemd import listen_fds
first, second = listen_fds(), listen_fds()
json.dump({
    "sockets": [[name, s.fileno(), s.family.name, s.getblocking(), s.get_inheritable()] for name, s in first],
    "again": second,
    "left": [name for name in os.environ if name.startswith("LISTEN_")],
    "greeting": first[0][1].accept()[0].recv(5).decode(),
}, open(1, "w"))
"""


@needs_activator
@pytest.mark.parametrize(("flags", "names"), [(["--fdname=uds:json"], ["uds", "json"]), ([], ["unknown", "unknown"])])
def test_listen_fds_takes_what_systemd_passes(flags: list[str], names: list[str], tmp_path: Path) -> None:
    paths = [str(tmp_path / "uds"), str(tmp_path / "json")]
    listens = [f"--listen={path}" for path in paths]
    command = ["systemd-socket-activate", *listens, *flags, f"--setenv=PYTHONPATH={ROOT}"]
    with subprocess.Popen(
        [*command, sys.executable, "-c", REPORT], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as activator:
        assert activator.stderr is not None
        # It says so of each socket, and starts the command at the first connection.
        assert all("Listening on" in activator.stderr.readline() for _ in paths)
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(paths[0])
            client.sendall(b"hello")
            report, log = activator.communicate()
    assert activator.returncode == 0, log
    assert json.loads(report) == {
        "sockets": [[name, fd, "AF_UNIX", False, False] for fd, name in enumerate(names, 3)],
        "again": [],
        "left": [],
        "greeting": "hello",
    }


def test_listen_fds_without_a_manager() -> None:
    assert systemd.listen_fds() == []


def test_listen_fds_leaves_the_sockets_of_another_process_alone(pass_fd: Callable[..., None]) -> None:
    fd = listening()
    pass_fd(fd, LISTEN_PID=str(os.getppid()))
    assert systemd.listen_fds() == []
    assert "LISTEN_FDS" not in os.environ
    os.close(fd)


def test_an_empty_name_is_a_name(pass_fd: Callable[..., None]) -> None:
    pass_fd(listening(), LISTEN_FDNAMES="")
    [(name, listener)] = systemd.listen_fds()
    listener.close()
    assert name == ""


@pytest.mark.parametrize("variable", ["LISTEN_PID", "LISTEN_FDS"])
@pytest.mark.parametrize("value", MALFORMED_NUMBERS, ids=ascii)
def test_malformed_listen_numbers(variable: str, value: str, pass_fd: Callable[..., None]) -> None:
    pass_fd(-1, **{variable: value})
    with pytest.raises(ConfigError, match=NOT_A_NUMBER.format(variable)):
        systemd.listen_fds()
    assert not [name for name in os.environ if name.startswith("LISTEN_")]


@pytest.mark.parametrize(("count", "names"), [("1", "uds:json"), ("2", "uds"), ("2", ""), ("1", ":")])
def test_names_that_are_too_many_or_too_few(count: str, names: str, pass_fd: Callable[..., None]) -> None:
    pass_fd(-1, LISTEN_FDS=count, LISTEN_FDNAMES=names)
    complaint = f"^environment LISTEN_FDNAMES: expected {count} names, got '{names}'$"
    with pytest.raises(ConfigError, match=complaint):
        systemd.listen_fds()


def closed() -> int:
    fd = os.open(os.devnull, os.O_RDONLY)
    os.close(fd)
    return fd


@pytest.mark.parametrize(
    ("opened", "complaint"),
    [
        (lambda: os.open(os.devnull, os.O_RDONLY), os.strerror(errno.ENOTSOCK)),
        (closed, os.strerror(errno.EBADF)),
        (lambda: socket.socket(socket.AF_UNIX).detach(), "not a listening stream socket"),
        (lambda: socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach(), "not a listening stream socket"),
        (lambda: listening(socket.SOCK_SEQPACKET), "not a listening stream socket"),
    ],
    ids=["file", "closed", "not-listening", "datagram", "seqpacket"],
)
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_descriptors_that_can_not_be_listened_on(
    opened: Callable[[], int], complaint: str, pass_fd: Callable[..., None]
) -> None:
    fd = opened()
    pass_fd(fd)
    with pytest.raises(ConfigError, match=f"^descriptor {fd} from the service manager, 'uds': {complaint}$"):
        systemd.listen_fds()


def test_a_count_beyond_any_process_fails_at_the_first_missing_descriptor(
    pass_fd: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pass_fd(closed(), LISTEN_FDS="9" * 18)
    monkeypatch.delenv("LISTEN_FDNAMES")
    with pytest.raises(ConfigError, match="'unknown': Bad file descriptor"):
        systemd.listen_fds()


# The unit files.


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The root of a system that has the units, what they start, and the targets of every system."""
    units = tmp_path / "etc" / "systemd" / "system"
    units.mkdir(parents=True)
    for unit in UNITS:
        shutil.copy(unit, units)
    for target in ("basic", "sysinit", "sockets", "shutdown"):
        (units / f"{target}.target").write_text("[Unit]\n")
    for command in ("ExecStart", "ExecReload"):
        program = tmp_path / directive(SERVICE, command)[0].split()[0].lstrip("/")
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
    return tmp_path


def verify(root: Path) -> str:
    """What systemd finds wrong with the units of ``root``; its exit status is 0 for most mistakes."""
    command = ["systemd-analyze", "verify", f"--root={root}", "--man=no", *(unit.name for unit in UNITS)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.stdout + done.stderr + (f"exit status {done.returncode}" if done.returncode else "")


@needs_analyzer
def test_units_verify(installed: Path) -> None:
    assert verify(installed) == ""


@needs_analyzer
@pytest.mark.parametrize("unit", UNITS)
def test_verify_would_find_a_misspelled_directive(unit: Path, installed: Path) -> None:
    with open(installed / "etc" / "systemd" / "system" / unit.name, "a") as copy:
        copy.write("Privat=yes\n")
    assert "'Privat'" in verify(installed)


@needs_analyzer
@pytest.mark.parametrize("unit", [SERVICE, RELAY, WORKER])
def test_exposure_is_at_most_1_5(unit: Path) -> None:
    # The threshold is ten times the exposure that systemd shows.
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=15", "--no-pager", str(unit)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unit", [SERVICE, RELAY, WORKER])
def test_a_reload_has_the_program_read_its_files_again(unit: Path) -> None:
    assert directive(unit, "ExecReload") == ["/bin/kill -HUP $MAINPID"]


def test_units_fit_the_defaults() -> None:
    config = Config()
    assert directive(SOCKET, "ListenStream") == [config.socket]
    assert [int(mode, 8) for mode in directive(SOCKET, "SocketMode")] == [config.socket_mode]
    assert [float(limit) > config.drain_timeout for limit in directive(SERVICE, "TimeoutStopSec")] == [True]


def test_a_socket_unit_listens_where_the_settings_do() -> None:
    annotated = tomllib.loads((ROOT / "conf" / "umaserve.toml").read_text())
    assert directive(HTTP_SOCKET, "ListenStream") == [annotated["http"]]
    assert directive(RELAY_SOCKET, "ListenStream") == [RELAY_SETTINGS.by_key["listen"].default]
    names = [directive(unit, "FileDescriptorName") for unit in (SOCKET, HTTP_SOCKET, RELAY_SOCKET)]
    assert names == [["uds"], ["http"], ["http"]]
    assert directive(HTTP_SOCKET, "Service") == [SERVICE.name]


def test_the_daemon_outlives_a_decoder_that_the_kernel_kills() -> None:
    assert directive(SERVICE, "OOMPolicy") == ["continue"]


# The engine within the service's limits, those that a process can set for itself and its children: user,
# capabilities, resources, system calls and their arguments. The rest is mounts and namespaces.


class Comparison(ctypes.Structure):
    """struct scmp_arg_cmp of libseccomp."""

    _fields_ = (("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64))


SCMP_ACT_ERRNO, SCMP_ACT_ALLOW = 0x00050000, 0x7FFF0000
SCMP_CMP_EQ, SCMP_CMP_GT, SCMP_CMP_MASKED_EQ = 4, 6, 7
PROT_WRITE, PROT_EXEC, SHM_EXEC = 2, 4, 0o100000
PR_SET_NO_NEW_PRIVS, PR_SET_MDWE, PR_GET_MDWE = 38, 65, 66
CAPABILITY_VERSION_3 = 0x20080522


def checked(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), f"the call gave {result}")


class Filter:
    """A system call filter of libseccomp, see seccomp_init(3); a rule allows or gives an error number."""

    def __init__(self, default: int) -> None:
        self.lib = ctypes.CDLL("libseccomp.so.2", use_errno=True)
        self.lib.seccomp_init.restype = ctypes.c_void_p
        self.context = ctypes.c_void_p(self.lib.seccomp_init(default))

    def add(self, action: int, call: str, *comparisons: tuple[int, int, int, int]) -> None:
        number = self.lib.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # other architectures' calls have none
            compared = (Comparison * len(comparisons))(*comparisons)
            checked(self.lib.seccomp_rule_add_array(self.context, action, number, len(comparisons), compared))

    def load(self) -> None:
        checked(self.lib.seccomp_load(self.context))


def system_calls(name: str) -> set[str]:
    """The calls of a word of SystemCallFilter=: of a group such as @system-service, or the one it names."""
    if not name.startswith("@"):
        return {name}
    command = ["systemd-analyze", "syscall-filter", name]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    members = [line.strip() for line in shown.splitlines()[1:]]
    return set().union(*(system_calls(member) for member in members if member and member[0] != "#"))


def listed_calls() -> Filter:
    """SystemCallFilter= and SystemCallErrorNumber=."""
    allowed = system_calls("@default")  # implied
    for value in directive(SERVICE, "SystemCallFilter"):
        named = set().union(*map(system_calls, value.removeprefix("~").split()))
        allowed = allowed - named if value.startswith("~") else allowed | named
    [refusal] = directive(SERVICE, "SystemCallErrorNumber")
    calls = Filter(SCMP_ACT_ERRNO | getattr(errno, refusal))
    for call in allowed:
        calls.add(SCMP_ACT_ALLOW, call)
    return calls


def listed_arguments() -> Filter:
    """What systemd makes of MemoryDenyWriteExecute=, RestrictAddressFamilies= and RestrictNamespaces=."""
    arguments = Filter(SCMP_ACT_ALLOW)
    assert directive(SERVICE, "MemoryDenyWriteExecute") == ["yes"]
    for call, bits in [
        ("mmap", PROT_WRITE | PROT_EXEC),
        ("mprotect", PROT_EXEC),
        ("pkey_mprotect", PROT_EXEC),
        ("shmat", SHM_EXEC),
    ]:
        arguments.add(SCMP_ACT_ERRNO | errno.EPERM, call, (2, SCMP_CMP_MASKED_EQ, bits, bits))
    [families] = directive(SERVICE, "RestrictAddressFamilies")
    allowed = {getattr(socket, family) for family in families.split()}
    for family in set(range(max(allowed))) - allowed:
        arguments.add(SCMP_ACT_ERRNO | errno.EAFNOSUPPORT, "socket", (0, SCMP_CMP_EQ, family, 0))
    arguments.add(SCMP_ACT_ERRNO | errno.EAFNOSUPPORT, "socket", (0, SCMP_CMP_GT, max(allowed), 0))
    # A filter can't see clone3's flags; this sends the C library back to clone.
    assert directive(SERVICE, "RestrictNamespaces") == ["yes"]
    arguments.add(SCMP_ACT_ERRNO | errno.ENOSYS, "clone3")
    return arguments


def most_files() -> int:
    """LimitNOFILE=, or less where this machine gives us less."""
    [wanted] = map(int, directive(SERVICE, "LimitNOFILE"))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)


def confinement() -> Callable[[], None]:
    """A function that puts its process, and all that it executes, within the limits for good."""
    libc = ctypes.CDLL(None, use_errno=True)
    files, calls, arguments = most_files(), listed_calls(), listed_arguments()

    def confine() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        checked(libc.capset((ctypes.c_uint32 * 2)(CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()))
        checked(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        # What newer systemd uses for MemoryDenyWriteExecute= instead of the filter.
        checked(libc.prctl(PR_SET_MDWE, 1, 0, 0, 0))
        arguments.load()
        calls.load()

    return confine


def has_libseccomp() -> bool:
    try:
        return bool(ctypes.CDLL("libseccomp.so.2"))
    except OSError:
        return False


@needs_analyzer
@pytest.mark.skipif(not has_libseccomp(), reason="no libseccomp.so.2 on this machine")
@pytest.mark.skipif(
    ctypes.CDLL(None).prctl(PR_GET_MDWE, 0, 0, 0, 0) < 0, reason="no PR_SET_MDWE in this kernel (Linux 6.3)"
)
def test_the_daemon_serves_within_the_limits(tmp_path: Path) -> None:
    flags = ("--http", "127.0.0.1:0", "--mmproj", str(projectors.audio(tmp_path / "mmproj.gguf")))
    daemon = Daemon(tmp_path, *flags, env={"UMA_THREADS": "1"}, preexec_fn=confinement())
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{daemon.process.pid}/status").read_text().splitlines())
    assert {key: int(status[key], 16) for key in ("CapEff", "CapPrm", "CapInh", "CapAmb", "NoNewPrivs", "Seccomp")} == {
        "CapEff": 0, "CapPrm": 0, "CapInh": 0, "CapAmb": 0, "NoNewPrivs": 1, "Seccomp": 2
    }  # fmt: skip
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    assert "a" in json.loads(daemon.text("JSON:", json_schema=schema, max_tokens=40))
    assert daemon.text("Once", temperature=1.0, seed=1, ignore_eos=True, max_tokens=12)
    greedy = {"prompt": "Once", "temperature": 0, "max_tokens": 3}
    completion = httpx.post(f"http://{daemon.http}/v1/completions", json=greedy, timeout=60)
    assert completion.json()["usage"]["completion_tokens"] == 3
    # Decoded by a process that gives up more rights.
    wav = base64.b64encode(media_files.wav(media_files.sine())).decode()
    heard = {"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}}
    body = {"messages": [{"role": "user", "content": [heard]}], "max_tokens": 3}
    answer = httpx.post(f"http://{daemon.http}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    if importlib.util.find_spec("hibari") is not None:
        spoken = httpx.post(f"http://{daemon.http}/v1/audio/speech", json={"model": "m", "input": "Hello."}, timeout=60)
        assert spoken.headers["Content-Type"] == "audio/mpeg"
        assert spoken.content.startswith(b"\xff\xf3")
    assert daemon.stop() == 0, daemon.logs
