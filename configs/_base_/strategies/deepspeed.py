# DeepSpeed's ZeRO 2: each GPU keeps one part of the gradients and of the optimizer's state.
# For any config: tools/train.py CONFIG --strategy configs/_base_/strategies/deepspeed.py
runner_type = 'FlexibleRunner'
strategy = dict(
    type='bioattn_mm.AtomicDeepSpeedStrategy',
    # Gradients go in buckets of 5e7 numbers; DeepSpeed's own 5e8 are more than most of these models have.
    zero_optimization=dict(stage=2, reduce_bucket_size=50_000_000),
    config=dict(zero_allow_untested_optimizer=True),
)
