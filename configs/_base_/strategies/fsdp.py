# Fully sharded training: gradients and the optimizer's state in as many parts as there are GPUs, block by block.
# To be merged into any config: tools/train.py CONFIG --strategy configs/_base_/strategies/fsdp.py
runner_type = 'FlexibleRunner'
strategy = dict(
    type='bioattn_mm.ParamwiseFSDPStrategy',
    model_wrapper=dict(
        type='MMFullyShardedDataParallel',
        # Parameters stay whole from the first forward pass to the end of the backward pass. With FULL_SHARD the ranks
        # wait for each other in every forward pass, and hang where one tests an image in more windows than another.
        sharding_strategy='SHARD_GRAD_OP',
    ),
    # One file, the same as of every other strategy.
    state_dict_cfg='full',
)
