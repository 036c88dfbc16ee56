#!/usr/bin/env bash
# Train on several GPUs, of one machine or of several.
source "$(dirname "${BASH_SOURCE[0]}")/dist_common.sh"

check_arguments 2 "Usage: tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]

Train on GPUS GPUs of this machine. A step takes the batch of the config on every GPU. The configs' learning rates are
for 16 images a step, 2 on each of 8 GPUs, those of classifiers for 1,024; for another number add
--cfg-options auto_scale_lr.enable=True.

After a failure of a process, and when a machine leaves or joins, all processes start again from the last checkpoint. A
machine that comes later, or again, needs --resume; it may stand there at the first start, too.

$PROCESS_VARIABLES
  RESTARTS      failures of processes after which the run goes on (default 3)

Examples:
  tools/dist_train.sh configs/transnext/upernet_tiny_ade20k.py 8
  NNODES=2:4 NODE_RANK=0 MASTER_ADDR=10.0.0.1 tools/dist_train.sh configs/transnext/upernet_tiny_ade20k.py 8 --resume" "$@"
restarts=${RESTARTS:-3}
if ! [[ $restarts =~ ^[0-9]+$ ]]; then
    echo "error: RESTARTS must be a whole number, got '$restarts'" >&2
    exit 2
fi
start_processes "$2" train.py "$restarts" "$1" "${@:3}"
