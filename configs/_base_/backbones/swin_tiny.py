# Swin-T; its weights differ from library to library.
# A config takes it out of its bases into its model: `_base_.pop('backbone')`.
backbone = dict(type='SwinTransformer', embed_dims=96, depths=[2, 2, 6, 2], num_heads=[3, 6, 12, 24], window_size=7)
