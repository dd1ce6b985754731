"""One pool of engines for the whole run: a real one is shared by the tests that leave it as they found it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.engine_harness import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    pool = Pool()
    try:
        yield pool
    finally:
        pool.close()
