"""`python -m paddle.distributed.fleet.launch`: another name of `paddle.distributed.launch`."""

import sys

from ..launch import main

if __name__ == "__main__":
    sys.exit(main())
