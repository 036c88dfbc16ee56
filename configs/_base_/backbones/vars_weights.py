# Printed where the file of weights that a config with VARS names is missing.
weights_source = (
    'of RVT-Ti with VARS-D or VARS-SD, download the ImageNet-1k release of the authors by way of '
    'https://github.com/bfshi/VARS and put it there by hand; nobody publishes weights of the others: pre-train the '
    "backbone with mmpretrain's ImageClassifier and put the file there"
)
