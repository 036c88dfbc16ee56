#!/usr/bin/env bash
# Test a checkpoint on several GPUs, of one machine or of several.
source "$(dirname "${BASH_SOURCE[0]}")/dist_common.sh"

check_arguments 3 "Usage: tools/dist_test.sh CONFIG CHECKPOINT GPUS [arguments of tools/test.py]

Test a checkpoint on GPUS GPUs of this machine. Every image counts once, however many GPUs share them.
--show-dir draws the share of the first of them.

$PROCESS_VARIABLES

Examples:
  tools/dist_test.sh configs/transnext/upernet_tiny_ade20k.py work_dirs/transnext/upernet_tiny_ade20k/iter_160000.pth 8
  NNODES=2 NODE_RANK=0 MASTER_ADDR=10.0.0.1 tools/dist_test.sh CONFIG CHECKPOINT 4" "$@"
start_processes "$3" test.py 0 "$1" "$2" "${@:4}"
