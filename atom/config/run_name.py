"""What a run may be called: in its file and address, and in the folders that have its name."""

import re

RUN_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
