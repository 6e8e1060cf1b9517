#!/usr/bin/env python3
"""Writes the chat template of each GGUF file given to tests/data/chat_templates/NAME.jinja (needs PyPI `gguf`).

    python3 tests/oracle/extract_chat_templates.py FOLDER/*.gguf
"""
import pathlib
import sys

from gguf import GGUFReader

TARGET = pathlib.Path(__file__).resolve().parent.parent / "data" / "chat_templates"


def main():
    for path in map(pathlib.Path, sys.argv[1:]):
        field = GGUFReader(path).get_field("tokenizer.chat_template")
        if field is None:
            sys.exit(f"{path}: no tokenizer.chat_template")
        target = TARGET / (path.stem + ".jinja")
        target.write_bytes(bytes(field.parts[field.data[0]]))
        print(target)


if __name__ == "__main__":
    main()
