"""The stock bootstrap node is shared with the tests of the swarm room."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "swarm"))
