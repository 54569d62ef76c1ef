"""A `pipe_command` that copies its input and fails once: `reader.py MARKER RANK FILE ROW`.

The worker of this rank fails while it reads its file number FILE (counted from 0 over all epochs), before row ROW. The
file MARKER then says that it has failed, and readers of later attempts copy everything.
"""

import os
import sys
from pathlib import Path


def main() -> None:
    marker, rank, failing_file, failing_row = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    fails = os.environ.get("OPENFLEET_RANK") == rank and not marker.exists()
    if fails:
        count = marker.with_name("files-read")
        with count.open("a+") as file:
            file.write("x")
            file.flush()
            fails = count.stat().st_size - 1 == failing_file
    for at, line in enumerate(sys.stdin):
        if fails and at == failing_row:
            marker.touch()
            sys.stdout.flush()
            sys.exit("this reader fails once")
        sys.stdout.write(line)


main()
