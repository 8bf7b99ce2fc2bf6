"""Stands in for the NPU's PyTorch, `torch_npu`, where vLLM-Ascend's argument code runs without the hardware's library,
and for Mooncake's transfer engine, a compiled library that its connectors import.

oracle_ascend.py lays it on Python's path as `torch_npu.py`, so that the child processes in which vLLM inspects models
find it too. Its answers: PyTorch has a device type `npu`, such a device is there, there are 16, HCCL is available.
Every other name is a class that cannot be made: argument code may mention it (in an annotation, a decorator, a table of
types) and may not use it. Whatever calls one ends with a RuntimeError that names it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any, NoReturn

import torch  # type: ignore[import-not-found]
import torch.distributed  # type: ignore[import-not-found]

DEVICES = 16


class _Missing(type):
    """Names of names are missing too: `torch.npu.Event.wait`."""

    def __getattr__(cls, name: str) -> _Missing:
        return _missing(cls.__qualname__, name)


def _missing(owner: str, name: str) -> _Missing:
    if name.startswith("__"):  # Python's own questions: the answer has to be no
        raise AttributeError(name)
    full = f"{owner}.{name}"

    def refuse(cls: type, *_: Any, **__: Any) -> NoReturn:
        raise RuntimeError(f"{full} was called, and the library of the NPU is not here")

    return _Missing(full, (), {"__new__": refuse})


class _Library(types.ModuleType):
    def __getattr__(self, name: str) -> _Missing:
        return _missing(self.__name__, name)


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes `torch_npu.*` and `mooncake.*` importable."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in ("torch_npu", "mooncake"):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Library(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def __getattr__(name: str) -> _Missing:
    return _missing("torch_npu", name)


__path__: list[str] = []  # a package, for `import torch_npu._C`
sys.meta_path.insert(0, _Finder())

# What the real library does to PyTorch when it is imported.
_npu = _Library("torch.npu")
_npu.is_available = lambda: True  # type: ignore[attr-defined]
_npu.device_count = lambda: DEVICES  # type: ignore[attr-defined]
torch.utils.rename_privateuse1_backend("npu")
torch._register_device_module("npu", _npu)
torch.distributed.is_hccl_available = lambda: True
