#!/bin/bash
# Becomes one worker of a training on several nodes.
#
#     srun bash examples/slurm_worker.sh python train.py --epochs 90
#
# TensorFlow, Keras on JAX, and PyTorch each read their own variables and ignore the rest.
# Tasks must be distributed over the nodes in blocks, which is SLURM's default.

mapfile -t hosts < <(scontrol show hostnames "$SLURM_STEP_NODELIST")
each=$((SLURM_STEP_NUM_TASKS / SLURM_STEP_NUM_NODES))
# Below the ephemeral ports, and different for each job.
port=$((10000 + SLURM_JOB_ID % 200 * 100))

export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID
export WORLD_SIZE=$SLURM_STEP_NUM_TASKS LOCAL_WORLD_SIZE=$each
export MASTER_ADDR=${hosts[0]} MASTER_PORT=$port

export KERAS_DISTRIBUTION_JOB_ADDRESSES=${hosts[0]}:$((port + 1))
export KERAS_DISTRIBUTION_NUM_PROCESSES=$SLURM_STEP_NUM_TASKS
export KERAS_DISTRIBUTION_PROCESS_ID=$SLURM_PROCID

workers=
for ((task = 0; task < SLURM_STEP_NUM_TASKS; task++)); do
    workers+=,\"${hosts[task / each]}:$((port + 2 + task % each))\"
done
export TF_CONFIG="{\"cluster\": {\"worker\": [${workers:1}]},
 \"task\": {\"type\": \"worker\", \"index\": $SLURM_PROCID}}"

exec "$@"
