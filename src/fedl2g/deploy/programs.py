"""The programs of an exported model: `model.pt2` (torch.export) and `model.onnx`, both run against the network first.

The compilers record where each operation was written: paths and code of this machine, which are removed.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor, nn

from fedl2g.errors import RunError
from fedl2g.files import replacing

PROGRAM, ONNX = "model.pt2", "model.onnx"
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_NOTES = ("stack_trace", "nn_module_stack", "source_fn_stack", "from_node")
_log = logging.getLogger(__name__)
_OUTPUT = "scores"


def write_programs(predictor: nn.Module, samples: Tensor, name: str, folder: Path) -> list[Path]:
    """Write the programs of a predictor and run them on these samples; ONNX only if its packages are installed.

    `name` is what ONNX calls the input.
    """
    with torch.no_grad():
        expected = predictor(samples)
    with _silent():
        batch = torch.export.Dim("batch", min=1)
        program = torch.export.export(predictor, (samples,), dynamic_shapes=({0: batch},), strict=False)
        program = program.run_decompositions({})
        _remove_notes(program)
        written = [_write_program(program, folder / PROGRAM, samples, expected)]
        if all(importlib.util.find_spec(name) is not None for name in _ONNX_PACKAGES):
            try:
                written.append(_write_onnx(program, folder / ONNX, samples, name, expected))
            except torch.onnx.OnnxExporterError as error:  # an operation of the user's own network
                reason = " ".join(str(error.__cause__ or error).split())[:200]
                _log.warning("%s: not written, the network has no ONNX form (%s); use %s", ONNX, reason, PROGRAM)
    return written


def load_program(file: BinaryIO) -> Callable[[Tensor], Tensor]:
    """Load a torch.export program of `write_programs`; such a file can make this process do anything."""
    with _silent():
        program = torch.export.load(file).module()

    def run(samples: Tensor) -> Tensor:
        with torch.no_grad():
            scores: Tensor = program(samples)
            return scores

    return run


def load_onnx(content: bytes) -> Callable[[Tensor], Tensor]:
    """Load an ONNX program of `write_programs`; it can compute and do nothing else.

    ValueError if it is not one; the returned function raises ValueError for samples that it does not accept.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # its warnings would quote the names in the file as they are
    # The weights of a program may be in other files, which are looked up here, and by default in the current folder.
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", os.devnull)
    try:
        session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        (taken,) = session.get_inputs()
    except Exception as error:  # its errors have no class in common
        raise ValueError("not an ONNX program") from error

    def run(samples: Tensor) -> Tensor:
        try:
            (scores,) = session.run([_OUTPUT], {taken.name: samples.numpy()})
            return torch.from_numpy(np.asarray(scores))
        except Exception as error:
            raise ValueError(str(error)) from error

    return run


def has_onnx_runtime() -> bool:
    """Whether the package that runs ONNX programs is installed."""
    return importlib.util.find_spec("onnxruntime") is not None


def _write_program(program: torch.export.ExportedProgram, path: Path, samples: Tensor, expected: Tensor) -> Path:
    with replacing(path) as partial:
        with partial.open("wb") as file:
            torch.export.save(program, file)
        with partial.open("rb") as file:
            loaded = torch.export.load(file).module()
        for number in (1, len(samples)):  # the batch is not fixed
            _check("a torch.export program", loaded(samples[:number]), expected[:number])
    return path


def _write_onnx(
    program: torch.export.ExportedProgram, path: Path, samples: Tensor, name: str, expected: Tensor
) -> Path:
    import onnx
    import onnxruntime

    lacking = {  # in ONNX
        torch.ops.aten.cdist.default: _distances,
        torch.ops.aten.adaptive_max_pool1d.default: _largest,
        torch.ops.aten.adaptive_max_pool2d.default: _largest,
    }
    exported = torch.onnx.export(
        program.run_decompositions(lacking),
        (samples,),
        input_names=[name],
        output_names=[_OUTPUT],
        dynamo=True,
        verbose=False,
    )
    if exported is None:
        raise RunError("model: has no ONNX form; use model.pt2 instead")
    model = exported.model_proto
    del model.metadata_props[:]
    del model.graph.metadata_props[:]
    for node in (*model.graph.node, *(node for function in model.functions for node in function.node)):
        del node.metadata_props[:]
        node.ClearField("doc_string")
    for function in model.functions:
        del function.metadata_props[:]
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info, *model.graph.initializer):
        del value.metadata_props[:]
    onnx.checker.check_model(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for number in (1, len(samples)):
        (scores,) = session.run([_OUTPUT], {name: samples[:number].numpy()})
        _check("ONNX", torch.from_numpy(np.asarray(scores)), expected[:number])
    with replacing(path) as partial:
        partial.write_bytes(model.SerializeToString())
    return path


def _distances(rows: Tensor, others: Tensor, p: float = 2.0, compute_mode: int | None = None) -> Tensor:
    """The Euclidean distances between the rows of two matrices (p is 2), by operations that every runtime has."""
    return (rows[:, None] - others[None]).square().sum(-1).sqrt()


def _largest(values: Tensor, sizes: Sequence[int]) -> tuple[Tensor, Tensor]:
    """The largest value in each of so many windows along the last axes, and zeros in place of its position."""
    for axis, parts in enumerate(sizes, start=-len(sizes)):
        length = values.shape[axis]
        windows = [(part * length // parts, -(-(part + 1) * length // parts)) for part in range(parts)]
        values = torch.stack([values.narrow(axis, start, end - start).amax(axis) for start, end in windows], axis)
    return values, torch.zeros_like(values, dtype=torch.int64)


def _remove_notes(program: torch.export.ExportedProgram) -> None:
    for module in program.graph_module.modules():
        for node in module.graph.nodes:
            for note in _NOTES:
                node.meta.pop(note, None)


def _check(form: str, scores: Tensor, expected: Tensor) -> None:
    if scores.shape != expected.shape or not torch.allclose(scores.to(expected), expected, rtol=1e-4, atol=1e-4):
        raise RunError(f"model: predicts differently as {form}; use the weights of its checkpoint instead")


@contextmanager
def _silent() -> Iterator[None]:
    """Hide the compilers' warnings, which are about their own code."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
