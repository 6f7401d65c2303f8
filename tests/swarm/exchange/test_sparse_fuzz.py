"""What strangers may send to the sparse codec: mutated encodings and random bytes, in a program of
their own, whose memory ends where it may not be touched."""

import os
import shlex
import subprocess
from pathlib import Path

from atom.base.build_kernels import FLAGS

SOURCE = Path(__file__).with_name("sparse_fuzz.c")
INPUTS = 60_000


def test_sparse_no_bytes_lead_beyond_memory_or_have_two_forms(tmp_path: Path) -> None:
    """The program ends with another code if one does."""
    compiler = shlex.split(os.environ.get("CC", "")) or ["cc"]
    flags = [flag for flag in FLAGS if flag != "-shared"]
    program = tmp_path / "sparse_fuzz"
    subprocess.run([*compiler, *flags, str(SOURCE), "-o", str(program), "-lm"], check=True)
    done = subprocess.run(
        [program, str(INPUTS), "1"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    total, decoded, refused = (int(word) for word in done.stdout.split() if word.isdigit())
    assert total == INPUTS == decoded + refused
    assert min(decoded, refused) > INPUTS / 100
