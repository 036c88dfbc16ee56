# DeepSpeed's ZeRO: gradients and the optimizer's state in as many parts as there are GPUs.
# To be merged into any config: tools/train.py CONFIG --strategy configs/_base_/strategies/deepspeed.py
runner_type = 'FlexibleRunner'
strategy = dict(
    type='bioattn_mm.AtomicDeepSpeedStrategy',
    zero_optimization=dict(stage=2),
    config=dict(zero_allow_untested_optimizer=True),
)
