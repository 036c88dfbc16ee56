# DeepSpeed's ZeRO 2: each GPU keeps one part of the gradients and of the optimizer's state.
# For any config: tools/train.py CONFIG --strategy configs/_base_/strategies/deepspeed.py
runner_type = 'FlexibleRunner'
strategy = dict(
    type='bioattn_mm.AtomicDeepSpeedStrategy',
    zero_optimization=dict(stage=2, reduce_bucket_size=50_000_000),  # numbers; by default 5e8, more than most models have
    config=dict(zero_allow_untested_optimizer=True),
)
