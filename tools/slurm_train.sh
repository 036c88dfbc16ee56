#!/usr/bin/env bash
# Train on the GPUs of a cluster, through Slurm.
source "$(dirname "${BASH_SOURCE[0]}")/dist_common.sh"

check_arguments 3 "Usage: tools/slurm_train.sh PARTITION JOB_NAME CONFIG [WORK_DIR] [arguments of tools/train.py]

Train on GPUs that Slurm allots, one process for each. Logs and checkpoints go to WORK_DIR (default work_dirs/SYSTEM/CONFIG).

In a batch job, SIGTERM or SIGUSR1 at pre-emption saves a checkpoint and puts the job back into the queue; started
again by Slurm, it goes on from there. For Slurm to send the signal to this script:
  GPUS=16 sbatch --nodes=2 --requeue --signal=B:USR1@120 --wrap 'exec tools/slurm_train.sh PARTITION JOB_NAME CONFIG WORK_DIR'

Environment variables:
  GPUS           number of all GPUs (default 8)
  GPUS_PER_NODE  number of GPUs on a machine (default GPUS, at most 8)
  CPUS_PER_TASK  CPU cores for each GPU (default 5)
  SRUN_ARGS      more arguments of srun, such as '--time=24:00:00 --qos=high'
  MASTER_PORT    free port of the first machine (default 29500)
  PYTHON         Python to run (default python)

Example:
  GPUS=16 tools/slurm_train.sh gpu upernet configs/transnext/upernet_tiny_ade20k.py work_dirs/upernet --amp" "$@"

gpus=${GPUS:-8}
check_count GPUS "$gpus"
gpus_per_node=${GPUS_PER_NODE:-$((gpus < 8 ? gpus : 8))}
check_count GPUS_PER_NODE "$gpus_per_node"
read -r -a srun_args <<< "${SRUN_ARGS:-}"

arguments=("${@:4}")
if (($# > 3)) && [[ $4 != -* ]]; then
    arguments=("--work-dir=$4" "${@:5}")
fi
if ((${SLURM_RESTART_COUNT:-0} > 0)); then
    arguments+=(--resume)
fi
run=(
    srun
    --partition="$1"
    --job-name="$2"
    --gres="gpu:$gpus_per_node"
    --ntasks="$gpus"
    --ntasks-per-node="$gpus_per_node"
    --cpus-per-task="${CPUS_PER_TASK:-5}"
    --kill-on-bad-exit=1
    "${srun_args[@]}"
    "${PYTHON:-python}" -u "$TOOLS/train.py" "$3" "${arguments[@]}" --launcher=slurm
)
if [[ -z ${SLURM_JOB_ID:-} ]]; then
    exec "${run[@]}"
fi

preempted=
# srun hands SIGTERM on to the processes, which then save a checkpoint.
trap 'preempted=1; kill -TERM "$srun" 2> /dev/null || true' TERM USR1
"${run[@]}" &
srun=$!
code=0
wait "$srun" || code=$?
while kill -0 "$srun" 2> /dev/null; do # a signal ended the waiting, not srun
    wait "$srun" || code=$?
done
if [[ $preempted ]]; then
    echo "pre-empted: job $SLURM_JOB_ID goes back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
