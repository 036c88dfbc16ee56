# PerViT-Tiny whose Phi_p is a linear map of each distance alone, Euc, on ImageNet-1k (PerViT, table 5).
# Weights: random.
_base_ = '../pervit-tiny_8xb128_in1k.py'
model = dict(
    backbone=dict(
        token_mixers=dict(position=dict(type='bioattn_mm.VariedPosition', with_neighbours=False, num_layers=1)),
    )
)
