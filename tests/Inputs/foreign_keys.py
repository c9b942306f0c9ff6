#!/usr/bin/env python3
# SPDX-License-Identifier: MIT

"""Writes foreign_keys.json: all keys of the configuration files of axolotl,
LLaMA-Factory and TRL, with the tools' defaults.

    pip download --no-deps axolotl llamafactory trl transformers   # unpack them
    foreign_keys.py axolotl=FOLDER@VERSION llamafactory=FOLDER@VERSION \\
        trl=FOLDER@VERSION transformers=FOLDER@VERSION > foreign_keys.json

FOLDER contains the Python package of that name. The classes are read, not
imported, so that the tools' own requirements are not needed. A default is null
if it is null, missing, or computed.
"""

import ast
import glob
import json
import os
import re
import sys

# Files of each package, relative to its folder, that declare the keys.
FILES = {
    "axolotl": ["utils/schemas/*.py", "integrations/*/args.py"],
    "llamafactory": ["hparams/*.py"],
    "trl": ["trainer/base_config.py", "trainer/sft_config.py",
            "trainer/dpo_config.py", "trainer/kto_config.py",
            "trainer/model_config.py", "experimental/orpo/orpo_config.py",
            "scripts/utils.py"],
    "transformers": ["training_args.py", "training_args_seq2seq.py"]}
# A tool, the packages that its keys come from, and the classes of a file.
# "*Args" stands for the classes of axolotl's plugins, except nested ones.
TOOLS = {
    "axolotl": (["axolotl"], ["AxolotlInputConfig", "*Args"]),
    "LLaMA-Factory": (["llamafactory", "transformers"], [
        "ModelArguments", "DataArguments", "TrainingArguments",
        "FinetuningArguments", "GeneratingArguments",
        "MegatronBridgeArguments", "_KTransformersRuntimeArguments"]),
    "TRL": (["trl", "transformers"], [
        "SFTConfig", "DPOConfig", "KTOConfig", "ORPOConfig", "ModelConfig",
        "ScriptArguments", "DatasetMixtureConfig"])}
# LLaMA-Factory's name for the class that its arguments extend.
BASES = {"BaseTrainingArguments": "Seq2SeqTrainingArguments"}


def literal(node):
    try:
        value = ast.literal_eval(node)
        json.dumps(value)
        return value
    except (ValueError, TypeError):
        return None


def names_of(field, value):
    """Returns the key, its alias if it has one, and its default."""
    if not isinstance(value, ast.Call):
        return [field], None if value is None else literal(value)
    words = {word.arg: word.value for word in value.keywords}
    if literal(words.get("init", ast.Constant(True))) is False:
        return [], None
    names = [field]
    if isinstance(words.get("alias"), ast.Constant):
        names.append(words["alias"].value)
    first = value.args[0] if value.args else ast.Constant(None)
    return names, literal(words.get("default", first))


class Package:
    """The classes of a package's files."""

    def __init__(self, name, folder):
        self.classes = {}
        self.used = set()  # words of the fields' types
        for pattern in FILES[name]:
            for path in sorted(glob.glob(os.path.join(folder, name, pattern))):
                with open(path, encoding="utf-8") as file:
                    for node in ast.parse(file.read()).body:
                        if isinstance(node, ast.ClassDef):
                            self.classes[node.name] = node
        for node in self.classes.values():
            for field in node.body:
                if isinstance(field, ast.AnnAssign):
                    self.used.update(re.findall(
                        r"\w+", ast.unparse(field.annotation)))


def keys_of(name, packages, seen=()):
    """Returns {key: default} of a class, its bases first."""
    for package in packages:
        node = package.classes.get(name)
        # LLaMA-Factory extends a class of transformers with the same name.
        if node is None or node in seen:
            continue
        keys = {}
        for base in reversed(node.bases):
            base = ast.unparse(base)
            keys.update(keys_of(BASES.get(base, base), packages,
                                (*seen, node)))
        for field in node.body:
            if not isinstance(field, ast.AnnAssign) or \
                    "ClassVar" in ast.unparse(field.annotation):
                continue
            names, initial = names_of(field.target.id, field.value)
            keys.update({key: initial for key in names
                         if not key.startswith("_")})
        return keys
    return {}


def main(arguments):
    packages, versions = {}, {}
    for argument in arguments:
        name, _, place = argument.partition("=")
        folder, _, versions[name] = place.rpartition("@")
        packages[name] = Package(name, folder)
    tools = {}
    for tool, (sources, classes) in TOOLS.items():
        used = [packages[source] for source in sources]
        keys = {}
        for name in classes:
            found = [name]
            if name.startswith("*"):
                found = [other for other in used[0].classes
                         if other.endswith(name[1:]) and
                         other not in used[0].used]
            for each in found:
                for key, initial in keys_of(each, used).items():
                    # Two configurations of TRL may disagree: no default then.
                    agrees = keys.get(key, initial) == initial
                    keys[key] = initial if agrees else None
        tools[tool] = {"versions": {name: versions[name] for name in sources},
                       "keys": dict(sorted(keys.items()))}
    print(json.dumps(tools, indent=1))


if __name__ == "__main__":
    main(sys.argv[1:])
