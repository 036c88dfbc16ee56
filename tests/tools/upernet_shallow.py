# The small UperNet with a head that is wide enough to learn in 80 iterations.
_base_ = './upernet_small.py'
model = dict(decode_head=dict(channels=32), auxiliary_head=dict(channels=32))
