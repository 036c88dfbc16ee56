"""The programs that compute an exported model: onnxruntime and OpenVINO, with the same methods."""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ..errors import InputError, first_line


class OnnxRuntime:
    """A model in onnxruntime.

    Args:
        path: The ONNX file.
        num_threads: Threads to compute with; None for as many as there are cores.
        device: 'cpu', or None for the GPU where the installed onnxruntime has CUDA.
        bfloat16: Compute in bfloat16, which OpenVINO alone does.

    Attributes:
        input_name: Name of the input.
        shape: Of the input, with None for an axis of any length.
        outputs: Names of the outputs.
    """

    def __init__(
        self, path: Path, num_threads: int | None = None, device: str | None = None, bfloat16: bool = False
    ) -> None:
        if bfloat16:
            raise InputError('onnxruntime does not compute in bfloat16 on a CPU: take the backend openvino')
        try:
            import onnxruntime
        except ModuleNotFoundError as error:
            raise InputError('onnxruntime is not installed: pip install onnxruntime') from error
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3  # 3 stands for errors
        if num_threads:
            options.intra_op_num_threads = num_threads
        wanted = ('CPUExecutionProvider',) if device == 'cpu' else ('CUDAExecutionProvider', 'CPUExecutionProvider')
        providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
        self._session = _loaded(
            path, 'onnxruntime', lambda: onnxruntime.InferenceSession(str(path), options, providers=providers)
        )
        (source,) = self._session.get_inputs()
        self.input_name = source.name
        self.shape = tuple(length if isinstance(length, int) else None for length in source.shape)
        self.outputs = tuple(output.name for output in self._session.get_outputs())

    def run(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """Compute all outputs, by name, of float32 (B, 3, H, W)."""
        return dict(zip(self.outputs, self._session.run(self.outputs, {self.input_name: inputs})))


class OpenVino:
    """A model in OpenVINO on the CPU; arguments and attributes as those of `OnnxRuntime`."""

    def __init__(
        self, path: Path, num_threads: int | None = None, device: str | None = None, bfloat16: bool = False
    ) -> None:
        core = openvino_core()
        # OpenVINO by itself would compute in bfloat16 where the processor can.
        options = {'INFERENCE_PRECISION_HINT': 'bf16' if bfloat16 else 'f32', 'PERFORMANCE_HINT': 'LATENCY'}
        if num_threads:
            options['INFERENCE_NUM_THREADS'] = num_threads
        self._model = _loaded(path, 'OpenVINO', lambda: core.compile_model(str(path), 'CPU', options))
        (source,) = self._model.inputs
        self.input_name = source.any_name
        self.shape = tuple(axis.get_length() if axis.is_static else None for axis in source.partial_shape)
        self.outputs = tuple(output.any_name for output in self._model.outputs)

    def run(self, inputs: np.ndarray) -> dict[str, np.ndarray]:
        """As that of `OnnxRuntime`."""
        results = self._model([inputs])
        # Copied: OpenVINO writes the next outputs to the same memory.
        return {name: np.array(results[index]) for index, name in enumerate(self.outputs)}


@functools.cache
def openvino_core() -> object:
    """OpenVINO's `Core`, one for all models of the process.

    A core gives the thread that makes it another stack for its signal handlers, and takes that away when it goes. If
    the earlier of two goes first, the thread's next signal is a segmentation fault (OpenVINO 2026.4).
    """
    try:
        import openvino
    except ModuleNotFoundError as error:
        raise InputError('OpenVINO is not installed: pip install openvino') from error
    return openvino.Core()


BACKENDS: dict[str, Callable] = dict(onnxruntime=OnnxRuntime, openvino=OpenVino)


def open_backend(name: str, path: Path, *args: object, **options: object) -> OnnxRuntime | OpenVino:
    """Load a model; other arguments are those of `OnnxRuntime`. An `InputError` says what the backend cannot do."""
    if name not in BACKENDS:
        raise InputError(f'there is no backend {name!r}: expected one of {", ".join(BACKENDS)}')
    return BACKENDS[name](path, *args, **options)


def _loaded(path: Path, backend: str, load: Callable) -> object:
    try:
        return load()
    except Exception as error:  # each backend has classes of its own
        raise InputError(f'{backend} cannot load {path}: {first_line(error)}') from error
