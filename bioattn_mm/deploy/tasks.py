"""mmdeploy's tasks, taught what the configs of this package have that mmdeploy's code does not expect."""

from mmdeploy.codebase.mmdet.deploy import object_detection
from mmdeploy.codebase.mmseg.deploy import segmentation
from mmdeploy.utils import Task
from mmengine.config import Config


@segmentation.MMSEG_TASK.register_module(Task.SEGMENTATION.value, force=True)
class Segmentation(segmentation.Segmentation):
    """mmdeploy's task of mmseg."""

    def __init__(self, model_cfg: Config, deploy_cfg: Config, device: str) -> None:
        super().__init__(known_to_mmdeploy(model_cfg), deploy_cfg, device)


@object_detection.MMDET_TASK.register_module(Task.OBJECT_DETECTION.value, force=True)
class ObjectDetection(object_detection.ObjectDetection):
    """mmdeploy's task of mmdet, with masks or without."""

    def __init__(self, model_cfg: Config, deploy_cfg: Config, device: str) -> None:
        super().__init__(known_to_mmdeploy(model_cfg), deploy_cfg, device)


def known_to_mmdeploy(config: Config) -> Config:
    """A copy of a config in the words that mmdeploy looks for.

    The transforms of this package do what those of the same name in OpenMMLab do, and name the file that they cannot
    load. mmdeploy finds the loading transforms by their names, and describes them to its SDK by them.
    """
    config = config.copy()
    for pipeline in (config.test_pipeline, config.test_dataloader.dataset.pipeline):
        for transform in pipeline:
            transform.type = transform.type.removeprefix('bioattn_mm.')
    # Configs of mmseg have it beside the model, too.
    config.setdefault('data_preprocessor', config.model.data_preprocessor)
    return config
