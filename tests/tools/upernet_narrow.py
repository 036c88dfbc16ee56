# UperNet whose head, which otherwise takes most of the time, is narrow.
_base_ = '../../configs/transnext/upernet_micro_ade20k.py'
model = dict(decode_head=dict(channels=96), auxiliary_head=dict(channels=48))
