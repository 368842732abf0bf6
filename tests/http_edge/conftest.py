"""The house that most tests of the edge live in."""

from collections.abc import AsyncIterator

import pytest

from tests.http_edge.fake_services import House, open_house


@pytest.fixture
async def house() -> AsyncIterator[House]:
    async with open_house() as running:
        yield running
