"""Experiment trackers, which `--log` of the tools writes to: what mmengine's visualization backends lack."""

from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.runner import Runner
from mmengine.visualization.vis_backend import WandbVisBackend, force_init_env

from ..registry import HOOKS, VISBACKENDS
from .step_log import numbers_of


@VISBACKENDS.register_module()
class IterationWandbVisBackend(WandbVisBackend):
    """mmengine's backend for Weights & Biases, with curves over the iterations.

    mmengine's has the number of log lines on the axis, validations among them, and copies all Python files below the
    working directory, a walk through the data sets where they lie there. The arguments are those of mmengine's.
    """

    def _init_env(self) -> None:
        super()._init_env()
        self._iteration = 0
        self._wandb.define_metric('iter', hidden=True)
        self._wandb.define_metric('*', step_metric='iter')

    @force_init_env
    def add_config(self, config: Config, **kwargs) -> None:
        """Record the config."""
        self._wandb.config.update(config.to_dict(), allow_val_change=True)

    @force_init_env
    def add_scalars(self, scalar_dict: dict, step: int = 0, file_path: str | None = None, **kwargs) -> None:
        """Record scalars at the iteration that they name, or at the last one that was named.

        Args:
            scalar_dict: Values by name. Without 'iter' they are of a validation.
            step: Not used: mmengine counts epochs in it after validations of some runs.
            file_path: Not used.
        """
        self._iteration = scalar_dict.get('iter', self._iteration)
        super().add_scalars({**scalar_dict, 'iter': self._iteration})


@HOOKS.register_module()
class LogTestMetricsHook(Hook):
    """Pass the metrics of a test to the visualizer, so that they get to TensorBoard, W&B and MLflow."""

    # The hook runs before LoggerHook, which closes the visualizer.
    priority = 'NORMAL'

    def after_test_epoch(self, runner: Runner, metrics: dict | None = None) -> None:
        runner.visualizer.add_scalars({f'test/{name}': value for name, value in numbers_of(metrics or {}).items()})
