# VARS-D with nothing learned in the recurrence, the authors' first code, in RVT-Ti on ImageNet-1k (VARS, eq. 12
# without w1, w2 and Gamma).
# Weights: random.
_base_ = '../rvt-tiny-vars-d_8xb128_in1k.py'
model = dict(
    backbone=dict(
        attention=dict(_delete_=True, type='bioattn_mm.IstaReconstructionAttention', static_grid=None), num_steps=3
    )
)
