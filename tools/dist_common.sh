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

# check_machines: end unless NNODES is a number of machines or the least and the most of them.
check_machines() {
    local least=${NNODES%%:*} most=${NNODES##*:}
    if ! [[ ${NNODES:=1} =~ ^[1-9][0-9]*(:[1-9][0-9]*)?$ ]] || ((least > most)); then
        echo "error: NNODES must be a number of machines, or the least and the most as in 2:4, got '$NNODES'" >&2
        exit 2
    fi
}

# start_processes GPUS TOOL RESTARTS [ARGUMENT...]: run a tool in GPUS processes on this machine, one of NNODES, and start
# them again up to RESTARTS times after a failure.
start_processes() {
    local gpus=$1 tool=$2 restarts=$3
    shift 3
    check_count GPUS "$gpus"
    check_machines
    # Machine 0 is where the others meet. It may know itself by another name than MASTER_ADDR.
    exec "${PYTHON:-python}" -m bioattn_mm.cli.launch \
        --nnodes="$NNODES" \
        --nproc-per-node="$gpus" \
        --max-restarts="$restarts" \
        --rdzv-backend=c10d \
        --rdzv-endpoint="${MASTER_ADDR:-127.0.0.1}:${PORT:-29500}" \
        --rdzv-id=bioattn_mm \
        --rdzv-conf="is_host=$((${NODE_RANK:-0} == 0)),timeout=${JOIN_TIMEOUT:-600}" \
        "$TOOLS/$tool" "$@" --launcher pytorch
}

# shellcheck disable=SC2034  # part of the usage of dist_train.sh and dist_test.sh
PROCESS_VARIABLES="One process for each GPU; on a machine without a GPU the processes run on its CPU.

Environment variables:
  NNODES        number of machines, or the least and the most as in 2:4; start the script on each of them (default 1)
  NODE_RANK     number of this machine, from 0 (default 0)
  MASTER_ADDR   address of machine 0 (default 127.0.0.1)
  PORT          free port of machine 0; another one for every run on a machine (default 29500)
  JOIN_TIMEOUT  seconds to wait until the machines are there (default 600)
  PYTHON        Python to run (default python)"
