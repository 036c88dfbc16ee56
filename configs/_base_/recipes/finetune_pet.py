# Oxford-IIIT Pet as in the authors' train.py of GAB: published parts together, split at random. Download it
# from https://www.robots.ox.ac.uk/~vgg/data/pets.
_base_ = './finetune_sgd_200e.py'
model = dict(data_preprocessor=dict(num_classes=37), head=dict(num_classes=37))
data_root = 'data/oxford-iiit-pet'
train_dataloader = val_dataloader = test_dataloader = dict(
    dataset=dict(
        type='bioattn_mm.RandomPart',
        data_root=data_root,
        parts=[dict(type='OxfordIIITPet', split=split) for split in ('trainval', 'test')],
    )
)
