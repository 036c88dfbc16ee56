# Stanford Cars as in the authors' train.py of GAB: published parts together, split at random. Download it from
# https://ai.stanford.edu/~jkrause/cars/car_dataset.html.
_base_ = './finetune_sgd_200e.py'
model = dict(data_preprocessor=dict(num_classes=196), head=dict(num_classes=196))
data_root = 'data/stanford-cars'
train_dataloader = val_dataloader = test_dataloader = dict(
    dataset=dict(
        type='bioattn_mm.RandomPart',
        data_root=data_root,
        parts=[dict(type='StanfordCars', split=split) for split in ('train', 'test')],
    )
)
