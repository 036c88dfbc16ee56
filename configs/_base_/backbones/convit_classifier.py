# ConViT-Tiny as a classifier, and what every classifier with ConViT shares.
# A config takes both out of its bases: `_base_.pop('backbone')`, `_base_.pop('custom_keys')`.
backbone = dict(type='bioattn_mm.ConViT', arch='tiny', out_indices=(11,), out_type='cls_token', drop_path_rate=0.1)
custom_keys = {name: dict(decay_mult=0.0) for name in ('backbone.pos_embed', 'backbone.cls_token')}
