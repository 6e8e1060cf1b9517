"""Imports a script of .ci that has no .py ending."""

import importlib.machinery
import importlib.util
import pathlib
import sys


def load_script(name):
    sys.dont_write_bytecode = True
    path = str(pathlib.Path(__file__).resolve().parent.parent / name)
    loader = importlib.machinery.SourceFileLoader(name, path)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
    loader.exec_module(module)
    return module
