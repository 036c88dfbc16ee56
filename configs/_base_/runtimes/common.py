# What every config shares: workers, logging, where a run starts.
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    # A process whose peer is gone ends after this many seconds; ranks wait for rank 0 while it evaluates.
    dist_cfg=dict(backend='nccl', timeout=1800),
)
vis_backends = [dict(type='LocalVisBackend')]
log_level = 'INFO'
load_from = None
resume = False
