"""Benchmarks' own arithmetic is imported."""

import sys

from programs import BENCHMARKS

sys.path.append(str(BENCHMARKS))
