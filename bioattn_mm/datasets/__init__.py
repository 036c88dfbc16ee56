"""What the pipelines and data loaders of this package add to mmdet's and mmseg's.

- `transforms`: loading of images and annotations, with errors that name the bad file.
- `image_mask`: data set of images and label maps in folders.
- `corruption`: transform that corrupts images as ImageNet-C does.
- `imagenet`: ImageNet's other test sets.
- `fine_tuning`: data sets of classifiers that mmpretrain does not have.
- `masks`: instance masks of which only the rectangles around the objects are kept.
- `quick`, `quick_seg`: transforms that give what mmdet's and mmseg's give, in less time.
- `shards`, `shard_samplers`: data in tar files.
- `samplers`: samplers, and a transform, that make random augmentation reproducible.
- `skipping`: training without the samples that cannot be loaded.
- `mini`: generated miniature datasets in the formats of ADE20K and COCO.
"""
