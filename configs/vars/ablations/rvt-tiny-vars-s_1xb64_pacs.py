# VARS-S in RVT-Ti with the 3 kernels of the paper, fine-tuned on three domains of PACS (VARS, table 3).
# Weights: those of ImageNet-1k, which nobody publishes.
_base_ = './rvt-tiny-performer_1xb64_pacs.py'
model = dict(
    backbone=dict(
        attention='vars_s',
        num_kernels=3,
        init_cfg=dict(checkpoint='checkpoints/vars_rvt_tiny_vars_s.pth'),
    )
)
