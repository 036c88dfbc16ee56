# What every classifier with VARS-S shares: it pools in the backbone.
# A config takes it out of its bases into its model: `_base_.pop('backbone')`.
backbone = dict(type='bioattn_mm.VARS', attention='vars_s', out_indices=(11,), out_type='avg_featmap')
