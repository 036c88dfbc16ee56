# VARS-SD with nothing learned in the recurrence, the authors' first code, in RVT-Ti on ImageNet-1k (VARS, eq. 12
# without w1, w2 and Gamma).
# Weights: random.
_base_ = '../rvt-tiny-vars-sd_8xb128_in1k.py'
model = dict(backbone=dict(attention=dict(_delete_=True, type='bioattn_mm.IstaReconstructionAttention'), num_steps=3))
