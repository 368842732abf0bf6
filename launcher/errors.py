"""Why the command gives up, in words for the person at the terminal. Each ends it with exit status 1."""


class LaunchError(Exception):
    """Something on this machine is in the way; the message says what, and what to do."""


class PostgresError(LaunchError):
    """The embedded Postgres cannot run."""


class LocalEngineError(LaunchError):
    """The bundled engine cannot run."""


class PortError(LaunchError):
    """The HTTP port cannot be used."""


class WorkerError(LaunchError):
    """A worker process does not come up."""
