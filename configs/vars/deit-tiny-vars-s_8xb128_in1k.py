# VARS-S in DeiT-Ti on ImageNet-1k, 300 epochs of 224 x 224 (VARS, table 2), with DeiT's recipe as RVT.
# Five kernels a channel, as the release has; those of the table are three.
# Weights: random.
_base_ = './rvt-tiny-vars-s_8xb128_in1k.py'
model = dict(backbone=dict(arch='deit-tiny', drop_path_rate=0.1), head=dict(in_channels=192))
optim_wrapper = dict(paramwise_cfg=dict(custom_keys={'backbone.pos_embed': dict(decay_mult=0.0)}))
