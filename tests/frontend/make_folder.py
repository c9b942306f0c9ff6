#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes a model folder that differs from another one, broken or not.

    make_folder.py FROM TO [EDIT ...]

    set KEY JSON        a key of config.json ("a.b" is b inside a)
    unset KEY
    text TEXT           the whole of config.json
    drop TENSOR         removes all tensors whose name ends with TENSOR
    add TENSOR DTYPE 2x3
    copy TENSOR NAME    the same tensor once more
    nest KEY            puts all keys of config.json into one
    strip START         removes START from names of tensors that begin with it
    prefix START        puts START in front of the names of all tensors
    remove FILE
    truncate FILE BYTES leaves the first BYTES; minus counts from the end
    header FILE OLD NEW replaces text in a header, and updates its length field

Tensor edits put the weights of a folder into one model.safetensors.
"""

import json
import math
import os
import shutil
import struct
import sys

SIZES = {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "I8": 1, "F64": 8,
         "I32": 4, "F8_E4M3": 1, "F8_E8M0": 1}


def split(data):
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:]


def join(header, body):
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


class Folder:
    def __init__(self, source, path):
        self.path = path
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)
        for name in os.listdir(path):
            os.chmod(self.at(name), 0o644)
        with open(self.at("config.json")) as file:
            self.config = json.load(file)

    def at(self, name):
        return os.path.join(self.path, name)

    def read(self, name):
        with open(self.at(name), "rb") as file:
            return file.read()

    def write(self, name, data):
        with open(self.at(name), "wb") as file:
            file.write(data)

    def tensors(self):
        """Removes all weight files. Returns name -> (dtype, shape, bytes)."""
        found = {}
        for name in sorted(os.listdir(self.path)):
            if ".safetensors" not in name:
                continue
            if name.endswith(".safetensors"):
                header, body = split(self.read(name))
                header.pop("__metadata__", None)
                for tensor, entry in header.items():
                    begin, end = entry["data_offsets"]
                    found[tensor] = (entry["dtype"], entry["shape"],
                                     body[begin:end])
            os.remove(self.at(name))
        return found

    def put(self, tensors):
        header, body = {}, b""
        for name, (dtype, shape, data) in tensors.items():
            header[name] = {"dtype": dtype, "shape": shape,
                            "data_offsets": [len(body), len(body) + len(data)]}
            body += data
        self.write("model.safetensors", join(header, body))

    def set(self, key, value):
        *path, last = key.split(".")
        target = self.config
        for part in path:
            target = target[part]
        target[last] = json.loads(value)
        self.text(json.dumps(self.config))

    def unset(self, key):
        *path, last = key.split(".")
        target = self.config
        for part in path:
            target = target[part]
        del target[last]
        self.text(json.dumps(self.config))

    def text(self, text):
        self.write("config.json", text.encode())

    def drop(self, ending):
        tensors = self.tensors()
        kept = {n: t for n, t in tensors.items() if not n.endswith(ending)}
        if len(kept) == len(tensors):
            sys.exit(f"no tensor ends with {ending}")
        self.put(kept)

    def add(self, name, dtype, shape):
        shape = [int(n) for n in shape.split("x")]
        tensors = self.tensors()
        tensors[name] = (dtype, shape, bytes(SIZES[dtype] * math.prod(shape)))
        self.put(tensors)

    def copy(self, name, other):
        tensors = self.tensors()
        tensors[other] = tensors[name]
        self.put(tensors)

    def strip(self, start):
        self.put({name.removeprefix(start): tensor
                  for name, tensor in self.tensors().items()})

    def prefix(self, start):
        self.put({start + name: tensor
                  for name, tensor in self.tensors().items()})

    def nest(self, key):
        self.config = {key: self.config}
        self.text(json.dumps(self.config))

    def remove(self, name):
        os.remove(self.at(name))

    def truncate(self, name, count):
        self.write(name, self.read(name)[:int(count)])

    def header(self, name, old, new):
        data = self.read(name)
        length = struct.unpack("<Q", data[:8])[0]
        text = data[8:8 + length]
        if old.encode() not in text:
            sys.exit(f"no {old} in the header")
        text = text.replace(old.encode(), new.encode(), 1)
        self.write(name, struct.pack("<Q", len(text)) + text +
                   data[8 + length:])


ARGUMENTS = {"set": 2, "unset": 1, "text": 1, "drop": 1, "add": 3, "copy": 2,
             "nest": 1, "strip": 1, "prefix": 1, "remove": 1, "truncate": 2,
             "header": 3}


def main():
    source, path, *words = sys.argv[1:]
    folder = Folder(source, path)
    while words:
        edit, count = words[0], ARGUMENTS[words[0]]
        getattr(folder, edit)(*words[1:1 + count])
        words = words[1 + count:]


if __name__ == "__main__":
    main()
