#!/bin/sh
# PaddlePaddle script 000: the demo's first script, with the launcher of PaddlePaddle.
set -e
cd "$(dirname "$0")"
exec python -m paddle.distributed.launch --selected_gpus 0,1 --log_dir "${LOG_DIR:-log}" 000_openks_collective.py "$@"
