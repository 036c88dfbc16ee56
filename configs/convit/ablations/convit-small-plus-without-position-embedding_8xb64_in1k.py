# ConViT-Small+ without absolute position embedding, which the paper says could be removed (ConViT, section 3), on
# ImageNet-1k.
# Weights: random.
_base_ = '../convit-small-plus_8xb64_in1k.py'
model = dict(backbone=dict(pos_embed=False))
