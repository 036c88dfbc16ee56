# Learning rates of a columnar backbone of 12 blocks, for bioattn_mm.CombinedRulesConstructor: each block's is a
# quarter less than that of the block after it, as plain transformers are fine-tuned (BEiT, ViTDet).
layer_decay_rate = 0.75
# What stands before the blocks of one backbone or another.
before_blocks = ('patch_embed', 'pos_embed', 'cls_token', 'stem', 'distance_embedding')
layer_decay = {
    **{f'backbone.blocks.{block}.': dict(lr_mult=layer_decay_rate ** (12 - block)) for block in range(12)},
    **{f'backbone.{name}': dict(lr_mult=layer_decay_rate**13) for name in before_blocks},
}
# RVT-Ti halves its grid before this block.
layer_decay['backbone.pool.'] = layer_decay['backbone.blocks.10.']
layer_decay['backbone.pos_embed']['decay_mult'] = 0.0
layer_decay['backbone.cls_token']['decay_mult'] = 0.0
