# Sourced by dist_train.sh, dist_test.sh and slurm_train.sh.
# shellcheck shell=bash

set -eo pipefail

TOOLS=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export PYTHONPATH="$TOOLS/..${PYTHONPATH:+:$PYTHONPATH}"

# check_arguments NUMBER USAGE [ARGUMENT...]: end with the usage on --help, and where fewer than NUMBER are there.
check_arguments() {
    local number=$1 usage=$2
    shift 2
    case ${1:-} in
        -h | --help)
            echo "$usage"
            exit 0
            ;;
    esac
    if (($# < number)); then
        echo "$usage" >&2
        exit 2
    fi
}

# check_count NAME VALUE: end unless VALUE is a whole number above 0.
check_count() {
    if ! [[ $2 =~ ^[1-9][0-9]*$ ]]; then
        echo "error: $1 must be a whole number above 0, got '$2'" >&2
        exit 2
    fi
}

# start_processes GPUS TOOL [ARGUMENT...]: run a tool in GPUS processes on this machine, one of NNODES.
start_processes() {
    local gpus=$1 tool=$2
    shift 2
    check_count GPUS "$gpus"
    exec "${PYTHON:-python}" -m torch.distributed.run \
        --nnodes="${NNODES:-1}" \
        --node-rank="${NODE_RANK:-0}" \
        --master-addr="${MASTER_ADDR:-127.0.0.1}" \
        --master-port="${PORT:-29500}" \
        --nproc-per-node="$gpus" \
        "$TOOLS/$tool" "$@" --launcher pytorch
}

# shellcheck disable=SC2034  # part of the usage of dist_train.sh and dist_test.sh
PROCESS_VARIABLES="One process for each GPU; on a machine without a GPU the processes run on its CPU.

Environment variables:
  NNODES       number of machines; start the script on each of them (default 1)
  NODE_RANK    number of this machine, from 0 (default 0)
  MASTER_ADDR  address of machine 0 (default 127.0.0.1)
  PORT         free port of machine 0; another one for every run on a machine (default 29500)
  PYTHON       Python to run (default python)"
