# VARS-S in GFNet-Ti with 1 kernel for each channel and neither values, second kernel nor projection, which has the
# parameters of the paper, on ImageNet-1k (VARS, table 2). The release has 5 kernels.
# Weights: random.
_base_ = '../gfnet-tiny-vars-s_8xb128_in1k.py'
model = dict(
    backbone=dict(
        attention=dict(_delete_=True, type='bioattn_mm.ConvolutionalSparseReconstruction', with_mixing=False),
        num_kernels=1,
    )
)
