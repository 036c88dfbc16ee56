# Pixels as pre-trained backbones expect them: RGB, with the mean and standard deviation of ImageNet's.
model = dict(
    data_preprocessor=dict(mean=[123.675, 116.28, 103.53], std=[58.395, 57.12, 57.375], bgr_to_rgb=True),
)
