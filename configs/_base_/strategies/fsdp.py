# PyTorch's FSDP2: each GPU keeps one part of the weights, of the gradients and of the optimizer's state, and gathers
# the weights block by block. For any config: tools/train.py CONFIG --strategy configs/_base_/strategies/fsdp.py
runner_type = 'FlexibleRunner'
# With False a block's weights stay whole from its forward to its backward pass: more memory, a third fewer messages.
strategy = dict(type='bioattn_mm.FSDP2Strategy', reshard_after_forward=True)
