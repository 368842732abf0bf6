"""A process that owns an embedded Postgres: python postgres_owner.py DIR. Says `{"dsn", "pid"}` on a line, and stops on SIGTERM."""

import asyncio
import json
import signal
import sys
from pathlib import Path

from launcher.errors import PostgresError
from launcher.postgres import open_postgres


async def own(folder: Path) -> None:
    """Runs until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with open_postgres(folder, durable=False) as postgres:
        print(json.dumps({"dsn": postgres.dsn, "pid": postgres.pid}), flush=True)
        await stop.wait()
        postgres.announce_stop()


if __name__ == "__main__":
    try:
        asyncio.run(own(Path(sys.argv[1])))
    except PostgresError as exc:
        sys.exit(str(exc))
