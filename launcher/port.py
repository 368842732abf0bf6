"""The HTTP port, looked at before anything is started: free, or one clear error; and its URL. Serving on it is the edge's business."""

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from launcher.errors import PortError

Address = tuple[socket.AddressFamily, tuple[str, int] | tuple[str, int, int, int]]


def url_of(host: str, port: int) -> str:
    """The address of an edge there, for a port that is known."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def require_free(host: str, port: int) -> None:
    """Raises PortError when somebody else listens there, or nobody may."""
    with ExitStack() as stack:
        for family, address in _addresses(host, port):
            _bind(stack.enter_context(socket.socket(family)), address)


@contextmanager
def shared_port(host: str, port: int) -> Iterator[int]:
    """Holds a port that was free for processes that share it; gives its number, which is any free one for port 0. Raises PortError."""
    require_free(host, port)
    family, address = _addresses(host, port)[0]
    with socket.socket(family) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        _bind(holder, address)
        yield holder.getsockname()[1]


def _addresses(host: str, port: int) -> list[Address]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as exc:
        raise PortError(f"cannot listen on {host}: {exc.strerror}") from exc
    return [(family, address) for family, _, _, _, address in found]  # type: ignore[misc]


def _bind(probe: socket.socket, address: object) -> None:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    host, port = address[0], address[1]  # type: ignore[index]
    try:
        probe.bind(address)  # type: ignore[arg-type]
    except OSError as exc:
        if exc.errno == errno.EADDRINUSE:
            raise PortError(f"port {port} on {host} is in use: stop what listens there, or choose another with --port") from exc
        raise PortError(f"cannot listen on {host}:{port}: {exc.strerror}") from exc
