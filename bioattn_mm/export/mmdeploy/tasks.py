"""mmdeploy's tasks, extended for what the configs of this package have and mmdeploy's code does not expect."""

import copy

from mmdeploy.codebase.mmdet.deploy import object_detection
from mmdeploy.codebase.mmseg.deploy import segmentation, segmentation_model
from mmdeploy.utils import Task, get_codebase_config
from mmengine.config import Config
from mmseg.models.segmentors import BaseSegmentor
from torch import Tensor, nn


@segmentation.MMSEG_TASK.register_module(Task.SEGMENTATION.value, force=True)
class Segmentation(segmentation.Segmentation):
    """mmdeploy's task for mmseg."""

    def __init__(self, model_cfg: Config, deploy_cfg: Config, device: str) -> None:
        super().__init__(known_to_mmdeploy(model_cfg), deploy_cfg, device)

    def build_backend_model(self, *args, **kwargs) -> nn.Module:
        """The exported model with the preprocessing and postprocessing of the config."""
        model = super().build_backend_model(*args, **kwargs)
        model.align_corners = self.model_cfg.model.decode_head.get('align_corners', False)
        return model


@segmentation_model.__BACKEND_MODEL.register_module('end2end', force=True)
class SegmentationModel(segmentation_model.End2EndModel):
    """mmdeploy's exported segmentor with the postprocessing of mmseg: remove the padding, resize the scores, argmax.

    mmdeploy takes the argmax first and resizes the labels, including the padding.
    """

    def pack_result(self, batch_outputs: Tensor, data_samples: list) -> list:
        """Add the predictions to the samples."""
        if get_codebase_config(self.deploy_cfg).get('with_argmax', True):
            return super().pack_result(batch_outputs, data_samples)
        return BaseSegmentor.postprocess_result(self, batch_outputs, data_samples)


@object_detection.MMDET_TASK.register_module(Task.OBJECT_DETECTION.value, force=True)
class ObjectDetection(object_detection.ObjectDetection):
    """mmdeploy's task for mmdet, with or without masks."""

    def __init__(self, model_cfg: Config, deploy_cfg: Config, device: str) -> None:
        super().__init__(known_to_mmdeploy(model_cfg), deploy_cfg, device)


def known_to_mmdeploy(config: Config) -> Config:
    """A copy of a config, which mmdeploy changes, with the data preprocessor at the top level as in mmseg's own."""
    config = copy.deepcopy(config)
    config.setdefault('data_preprocessor', config.model.data_preprocessor)
    return config
