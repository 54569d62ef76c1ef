"""`python -m paddle.distributed.launch`."""

import sys

from . import main

sys.exit(main())
