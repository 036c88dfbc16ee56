# PyTorch's FSDP: each GPU keeps one part of the gradients and of the optimizer's state, divided block by block.
# For any config: tools/train.py CONFIG --strategy configs/_base_/strategies/fsdp.py
runner_type = 'FlexibleRunner'
strategy = dict(
    type='bioattn_mm.ParamwiseFSDPStrategy',
    model_wrapper=dict(
        type='MMFullyShardedDataParallel',
        # Parameters stay whole from the first forward pass to the end of the backward pass. With FULL_SHARD the
        # ranks wait for each other in every forward pass, and hang where one tests an image in more windows than
        # another.
        sharding_strategy='SHARD_GRAD_OP',
    ),
    # One file with all weights, as data parallel training saves it.
    state_dict_cfg='full',
)
