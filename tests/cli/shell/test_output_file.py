"""A file that was asked for is whole, or as it was before."""

from pathlib import Path

import pytest

from atom.base.errors import StorageError
from atom.cli.shell.output_file import write_whole


@pytest.mark.parametrize(
    ("fault", "ends"),
    [
        (KeyboardInterrupt(), KeyboardInterrupt),
        (ValueError("a bug"), ValueError),
        (OSError(28, "No space left on device"), StorageError),
        (OSError("a library's own words"), StorageError),
    ],
)
def test_what_breaks_off_leaves_nothing(
    fault: BaseException, ends: type[BaseException], tmp_path: Path
) -> None:
    file = tmp_path / "run.png"
    file.write_text("before")

    def half(place: Path) -> None:
        place.write_text("half")
        raise fault

    with pytest.raises(ends) as caught:
        write_whole(file, half)
    assert "None" not in str(caught.value)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["before"]
