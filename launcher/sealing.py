"""The secret of one machine's data folder, that what clients keep for us is sealed with. It is made once and stays with the data."""

import os
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from tempfile import NamedTemporaryFile

FILE = "sealing.secret"


def kept_secret(data: Path) -> str:
    """The secret in the folder `data`, readable by its owner only; made if there is none."""
    file = data / FILE
    if not file.exists():
        with NamedTemporaryFile("w", dir=data) as new:  # readable by its owner only; nobody sees it half-written
            new.write(token_hex())
            new.flush()
            with suppress(FileExistsError):
                os.link(new.name, file)
    return file.read_text("utf-8").strip()
