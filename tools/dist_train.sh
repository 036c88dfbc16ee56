#!/usr/bin/env bash
# Train on several GPUs, of one machine or of several.
source "$(dirname "${BASH_SOURCE[0]}")/dist_common.sh"

check_arguments 2 "Usage: tools/dist_train.sh CONFIG GPUS [arguments of tools/train.py]

Train on GPUS GPUs of this machine. A step takes the batch of the config on every GPU. The configs' learning rates are
for 16 images a step, 2 on each of 8 GPUs; for another number add --cfg-options auto_scale_lr.enable=True.

$PROCESS_VARIABLES

Examples:
  tools/dist_train.sh configs/transnext/upernet_tiny_ade20k.py 8
  NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 tools/dist_train.sh configs/transnext/upernet_tiny_ade20k.py 4" "$@"
start_processes "$2" train.py "$1" "${@:3}"
