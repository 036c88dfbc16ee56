# VARS-SD in RVT-Ti, fine-tuned on three domains of PACS (VARS, table 3).
# Weights: the authors' classifier of ImageNet-1k, put there by hand.
_base_ = './rvt-tiny-performer_1xb64_pacs.py'
model = dict(
    backbone=dict(attention='vars_sd', num_steps=5, init_cfg=dict(checkpoint='checkpoints/vars_rvt_tiny_vars_sd.pth'))
)
