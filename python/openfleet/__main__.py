"""`python -m openfleet` is the command `openfleet`."""

import sys

from .cli import main

sys.exit(main())
