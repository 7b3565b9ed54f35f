"""PyPI's torchvision is a CUDA build. Beside a CPU torch its library does not load, and its import dies on operators for
which it registers meta kernels. Declare those just before that import, and only where the library does not load:
beside one that loads, a second declaration aborts the process. A .pth file imports this module at start-up.
"""

import importlib.abc
import importlib.machinery
import sys
from pathlib import Path


class DeclareOps(importlib.abc.MetaPathFinder):
    kept: object = None

    def find_spec(self, fullname, path=None, target=None):
        if fullname != "torchvision":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.origin is not None and not library_loads(Path(spec.origin).parent):
            import torch

            library = torch.library.Library("torchvision", "DEF")
            for op in ("nms", "qnms"):
                library.define(op + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            DeclareOps.kept = library  # the declarations die with it
        return spec


def library_loads(folder):
    import torch

    try:
        for library in folder.glob("_C*.so"):
            torch.ops.load_library(str(library))
    except OSError:
        return False
    return True


sys.meta_path.insert(0, DeclareOps())
