"""The folder of benchmarks is importable in its tests."""

import sys

from programs import ROOT

sys.path.append(str(ROOT))
