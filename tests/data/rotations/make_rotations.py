#!/usr/bin/env python3
"""Writes the rotation files of this folder: small .pt archives in the layout of the released ones, made by Python's own pickle and
zipfile modules with stand-ins for torch's classes. Usage: make_rotations.py [FOLDER]. Needs numpy."""

import collections
import io
import os
import pickle
import sys
import types
import zipfile

import numpy as np

torch = types.ModuleType("torch")
torch_utils = types.ModuleType("torch._utils")


class FloatStorage:
    pass


class HalfStorage:
    pass


FloatStorage.__module__ = HalfStorage.__module__ = "torch"
torch.FloatStorage, torch.HalfStorage = FloatStorage, HalfStorage


def _rebuild_tensor_v2(*arguments):
    raise NotImplementedError


_rebuild_tensor_v2.__module__ = "torch._utils"
torch_utils._rebuild_tensor_v2 = _rebuild_tensor_v2
sys.modules.update({"torch": torch, "torch._utils": torch_utils})


class Storage:
    def __init__(self, values, kind=FloatStorage):
        self.values, self.kind = values, kind
        self.key = None


class Tensor:
    def __init__(self, storage, offset, shape, strides):
        self.parts = (storage, offset, shape, strides, False, collections.OrderedDict())

    def __reduce__(self):
        return _rebuild_tensor_v2, self.parts


def tensor(values, kind=FloatStorage):
    strides = tuple(int(np.prod(values.shape[i + 1:])) for i in range(values.ndim))
    return Tensor(Storage(values.ravel(), kind), 0, values.shape, strides)


class Pickler(pickle.Pickler):
    def __init__(self, out, storages, protocol):
        super().__init__(out, protocol=protocol)
        self.storages = storages

    def persistent_id(self, item):
        if not isinstance(item, Storage):
            return None
        if item.key is None:
            item.key = str(len(self.storages))
            self.storages.append(item)
        return ("storage", item.kind, item.key, "cpu", len(item.values))


def save(path, root, value, protocol=2):
    out, storages = io.BytesIO(), []
    Pickler(out, storages, protocol).dump(value)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        def add(name, data):
            archive.writestr(zipfile.ZipInfo(f"{root}/{name}", (1980, 1, 1, 0, 0, 0)), data)

        add("data.pkl", out.getvalue())
        add("byteorder", "little")
        for storage in storages:
            dtype = {FloatStorage: "<f4", HalfStorage: "<f2"}[storage.kind]
            add(f"data/{storage.key}", storage.values.astype(dtype).tobytes())
        add("version", "3\n")


def hadamard(d):
    i = np.arange(d)
    bits = np.array([[bin(a & b).count("1") for b in i] for a in i])
    return np.where(bits % 2 == 0, 1.0, -1.0) / np.sqrt(d)


def bit_reversed(d):
    width = d.bit_length() - 1
    return [d - 1 - int(format(j, f"0{width}b")[::-1], 2) for j in range(d)]


def rotation(rng, d):
    """R = U H P of a random covariance, and its eigenvalues, ascending."""
    x = rng.normal(size=(4 * d, d)) * np.exp(rng.normal(size=d))
    values, vectors = np.linalg.eigh(x.T @ x / len(x))
    return ((vectors @ hadamard(d))[:, bit_reversed(d)]).astype("f4"), values.astype("f4")


def layers(rng, d, count, heads=0):
    out = {}
    for i in range(count):
        pairs = [rotation(rng, d) for _ in range(max(1, heads))]
        r = np.stack([p[0] for p in pairs]) if heads else pairs[0][0]
        e = np.stack([p[1] for p in pairs]) if heads else pairs[0][1]
        out[i] = {"layer_id": i, "rotation": tensor(r), "eigenvalues": tensor(e)}
    return out


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.dirname(os.path.abspath(__file__))
    rng = np.random.default_rng(7)
    d = 16

    def write(name, root, objective, value, version=1, protocol=2):
        grouping = "head" if version == 2 else "layer"
        save(os.path.join(folder, name), root, {"format_version": version, "objective": objective, "source_grouping": grouping, "layers": value}, protocol)

    write("k_rotation.pt", "k_rotation_qqt_r_h_pbr", "qqt_r_h_pbr", layers(rng, d, 3))
    write("v_rotation.pt", "v_rotation_sst_r_h_pbr", "sst_r_h_pbr", layers(rng, d, 3), protocol=4)
    write("k_heads.pt", "k_heads", "qqt_r_h_pbr", layers(rng, d, 2, heads=2), version=2)
    write("v_heads.pt", "v_heads", "sst_r_h_pbr", layers(rng, d, 2, heads=2), version=2)
    # Layers that share storages, string keys, a transposed view with an offset, no eigenvalues.
    shared = Storage(np.concatenate([[9.0], rotation(rng, d)[0].T.ravel()]).astype("f4"))
    write("odd.pt", "renamed", "hadamard", {str(i): {"rotation": Tensor(shared, 1, (d, d), (1, d))} for i in range(2)})
    # H of order 16 is exact in half precision.
    write("half.pt", "half", "hadamard", {0: {"rotation": tensor(hadamard(d), HalfStorage)}})


if __name__ == "__main__":
    main()
