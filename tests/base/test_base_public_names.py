"""The package computes with public torch alone: no compiled code of its own, no private names."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import fedl2g

PACKAGE = Path(fedl2g.__file__).parent
SOURCES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
COMPILERS = {"numba", "cffi", "cython", "pybind11", "triton", "llvmlite"}
CTYPES_ALLOWED: set[str] = {"process.py"}  # mallopt of the C library, no kernel
OF_MODULES = {"_parameters", "_buffers", "_modules", "_execution_engine"}  # of torch.nn.Module and of autograd


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def faults(tree: ast.AST, *, ctypes_allowed: bool = False) -> Iterator[str]:
    """What this source must not do."""
    of_torch = set()
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
            of_torch |= {alias.asname or "torch" for alias in node.names if alias.name.split(".")[0] == "torch"}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            if node.module.split(".")[0] in ("torch", "torchvision"):
                of_torch |= {alias.asname or alias.name for alias in node.names}
        for name in names:
            parts = name.split(".")
            if parts[0] in COMPILERS or (parts[0] == "ctypes" and not ctypes_allowed):
                yield f"imports {name}"
            if parts[0] in ("torch", "torchvision") and any(map(is_private, parts)):
                yield f"imports {name}"
            if "cpp_extension" in parts:
                yield f"imports {name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            root: ast.expr = node
            while isinstance(root, ast.Attribute):
                root = root.value
            of_a_torch_name = isinstance(root, ast.Name) and root.id in of_torch
            if node.attr in OF_MODULES or (is_private(node.attr) and of_a_torch_name):
                yield f"uses {ast.unparse(node)}"


@pytest.mark.parametrize("name", SOURCES)
def test_a_source_uses_public_torch_alone(name: str) -> None:
    tree = ast.parse(SOURCES[name].read_text(encoding="utf-8"))
    assert list(faults(tree, ctypes_allowed=name in CTYPES_ALLOWED)) == []


@pytest.mark.parametrize(
    "source",
    [
        "import torch\ntorch._foreach_add([], [])",
        "import torch\ntorch._C._nn.mse_loss(1, 2)",
        "from torch.nn.modules.batchnorm import _BatchNorm",
        "from torch.autograd import Variable\nVariable._execution_engine.run_backward()",
        "import torch._dynamo",
        "held = module._parameters",
        "from numba import cfunc",
        "import ctypes",
        "from torch.utils.cpp_extension import load",
    ],
)
def test_the_search_finds_what_it_is_for(source: str) -> None:
    assert list(faults(ast.parse(source)))


def test_no_compiler_is_installed_with_the_package() -> None:
    project = PACKAGE.parent.parent / "pyproject.toml"
    if not project.exists():
        pytest.skip("not a checkout")
    wanted = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    assert not [name for name in wanted if any(name.startswith(compiler) for compiler in COMPILERS)]
