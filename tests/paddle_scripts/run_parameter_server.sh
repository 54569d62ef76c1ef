#!/bin/sh
# PaddlePaddle script 000: the demo's second script, in the words of `fleetrun`.
set -e
cd "$(dirname "$0")"
exec fleetrun --server_num 2 --worker_num 2 --compat --log_dir "${LOG_DIR:-log}" 000_openks.py "$@"
