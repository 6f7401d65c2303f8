"""A founder's folder for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon.model.kept_runs import Folder, folder_in


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    with folder_in(tmp_path) as folder:
        yield folder
