"""The first moments of a child process: it takes on an account, ties its life to ours, and becomes its command.

Run by path as a script: PARENT_PID DEATH_SIGNAL ACCOUNT DIRECTORY COMMAND [ARGUMENT...]. So nothing of ours runs between fork and exec in a
process that has threads. Imports little, because every start of a child pays for it. child.py is its only caller.
"""

import ctypes
import os
import sys

NOBODY = 65534
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1


def become(parent: int, death_signal: int, account: str, directory: str, command: list[str]) -> None:
    """Never returns; raises OSError when the account, the directory or the command cannot be reached."""
    if account == "namespace":
        _enter_namespace()
    elif account == "nobody":
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    os.chdir(directory)
    # a change of credentials clears the death signal, so it is set after them
    _die_with(parent, death_signal)
    os.execv(command[0], command)


def _enter_namespace() -> None:
    """A user namespace in which we are called nobody, for programs that refuse to run as root; files still see who we are."""
    uid, gid = os.geteuid(), os.getegid()
    if _libc().unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "no user namespace")
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{NOBODY} {uid} 1")
    _write("/proc/self/gid_map", f"{NOBODY} {gid} 1")


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _die_with(parent: int, death_signal: int) -> None:
    if sys.platform == "linux":
        _libc().prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit("the parent process is gone")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


if __name__ == "__main__":
    try:
        become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5:])
    except OSError as exc:
        sys.exit(f"{exc.strerror}: {exc.filename or sys.argv[5]}")
