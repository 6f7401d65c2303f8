"""`python -m atom`: the same as the `atom` command."""

import sys

from atom.cli.app import main

sys.exit(main())
