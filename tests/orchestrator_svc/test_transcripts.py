"""Turns told as transcripts. With UPDATE_TRANSCRIPTS=1 in the environment the files are written anew: then read the diff."""

import os
from pathlib import Path

import msgspec
import pytest

from tests.fakes.streams import TERMINAL, check_stream
from tests.orchestrator_svc.transcripts import retold

FILES = sorted((Path(__file__).parent.parent / "transcripts").rglob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_turn_goes_as_its_transcript_says(file: Path) -> None:
    written = file.read_text("utf-8")
    told, stream = retold(written)

    if os.environ.get("UPDATE_TRANSCRIPTS"):
        file.write_text(told, "utf-8")
    else:
        assert told == written
    if stream and stream[-1].type in TERMINAL:
        check_stream([msgspec.json.decode(event.data) for event in stream])


def test_there_are_transcripts() -> None:
    assert len(FILES) >= 25
