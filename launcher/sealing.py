"""The secret of one machine's data folder, that what clients keep for us is sealed with. It is made once and stays with the data."""

import os
from pathlib import Path
from secrets import token_hex

FILE = "sealing.secret"


def kept_secret(data: Path) -> str:
    """The secret in the folder `data`, readable by its owner only; made if there is none."""
    file = data / FILE
    try:
        with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            new.write(token_hex())
    except FileExistsError:
        pass
    return file.read_text("utf-8").strip()
