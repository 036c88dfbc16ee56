# Fine-tuning of plain backbones, for bioattn_mm.CombinedRulesConstructor.
# All weights are from supervised training on ImageNet-1k. mmseg fine-tunes such models (DeiT, ViT) at one rate, and
# so do the tiny variants here: 0.75, the decay for large self-supervised models, would leave a thirtieth of the rate
# to their first block. Larger variants take BEiT's 0.9; the weight decay, 0.05, is BEiT's, too (mmseg's DeiT: 0.01).
layer_decay_rate = 0.9
plain_no_decay = {f'backbone.{name}': dict(decay_mult=0.0) for name in ('pos_embed', 'cls_token')}
