# TransNeXt in any framework: the authors' ImageNet weights by variant, and the parameters without weight decay.
checkpoints = {
    arch: f'https://huggingface.co/DaiShiResearch/transnext-{arch}-224-1k/resolve/main/transnext_{arch}_224_1k.pth'
    for arch in ('micro', 'tiny', 'small', 'base')
}
weights_source = "the authors' ImageNet-1k release, fetched when training starts"
# 'attn.scale' is the query embedding and the temperature.
no_decay = {key: dict(decay_mult=0.0) for key in ('attn.scale', 'window_bias', 'position_bias', 'norm')}
