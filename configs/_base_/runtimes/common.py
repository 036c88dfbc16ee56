# What every config shares: processes, logging, where a run starts.
_base_ = './seeded.py'
env_cfg = dict(
    cudnn_benchmark=False,
    mp_cfg=dict(mp_start_method='fork', opencv_num_threads=0),
    # Seconds after which a process ends that waits for another one in vain. All wait for rank 0 while it evaluates.
    # tools/train.py has another number with --hang-timeout.
    dist_cfg=dict(backend='nccl', timeout=2400),
)
log_level = 'INFO'
load_from = None
resume = False
