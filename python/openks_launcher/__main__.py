"""`python -m openks_launcher`."""

import sys

from . import main

sys.exit(main())
