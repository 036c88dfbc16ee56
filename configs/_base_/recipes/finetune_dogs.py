# Stanford Dogs as in the authors' train.py of GAB: published parts together, split at random. Download it from
# http://vision.stanford.edu/aditya86/ImageNetDogs.
_base_ = './finetune_sgd_200e.py'
model = dict(data_preprocessor=dict(num_classes=120), head=dict(num_classes=120))
data_root = 'data/stanford-dogs'
train_dataloader = val_dataloader = test_dataloader = dict(
    dataset=dict(
        type='bioattn_mm.RandomPart',
        data_root=data_root,
        parts=[dict(type='bioattn_mm.StanfordDogs', split=split) for split in ('train', 'test')],
    )
)
