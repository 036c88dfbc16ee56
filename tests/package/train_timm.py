"""Two steps of a classifier of timm's registry, for `bounds.sh`: the second loss is below the first."""

import timm
import torch
import torch.nn.functional as F

import bioattn_mm  # noqa: F401  registers the models

torch.manual_seed(0)
model = timm.create_model('transnext_micro', num_classes=3, drop_path_rate=0.0)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
images, classes = torch.randn(3, 3, 64, 96), torch.arange(3)
losses = []
for _ in range(2):
    loss = F.cross_entropy(model(images), classes)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
if not losses[1] < losses[0] < float('inf'):
    raise SystemExit(f'timm: losses {losses}, of which the second should be lower')
print(f'trained two steps of timm, losses {losses[0]:.4f}, {losses[1]:.4f}')
