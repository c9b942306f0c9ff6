# SPDX-License-Identifier: MIT
"""Writes Inputs/llamafactory-texts.json: conversations as LLaMA-Factory's own
code renders them with its templates. Needs only its sources.

    python3 make_llamafactory_texts.py LLAMA_FACTORY/src
"""

import enum
import json
import logging
import os
import sys
import types
import typing

CONVERSATIONS = {
    "one": (None, [("hello", "hi 日本")]),
    "system": ("Be kind.", [("hello", " hi "), ("and?", "bye now")]),
    "thought": (None, [("a", "<think>\nt\n</think>\n\nb"), ("c", "d")])}
NAMES = {"chatml": "chatml", "gemma": "gemma", "gemma3": "gemma",
         "llama3": "llama3", "phi": "phi", "phi4": "phi4", "qwen": "qwen",
         "qwen3": "qwen3", "qwen3_nothink": "chatml"}
BOS, EOS = -1, -2


class Role(str, enum.Enum):
    USER = "user"
    ASSISTANT = "assistant"
    SYSTEM = "system"
    FUNCTION = "function"
    OBSERVATION = "observation"


class Characters:
    """A tokenizer with a token for each character."""
    bos_token_id, eos_token_id = BOS, EOS

    def encode(self, text, add_special_tokens=False):
        return [ord(character) for character in text]


def _stub(name, folder=None, **attributes):
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    if folder:
        module.__path__ = [folder]
    sys.modules[name] = module


def _templates(source):
    """Loads LLaMA-Factory's templates without its imports, such as torch."""
    folder = os.path.join(source, "llamafactory")
    log = types.SimpleNamespace(get_logger=logging.getLogger)
    _stub("llamafactory", folder)
    _stub("llamafactory.data", os.path.join(folder, "data"))
    _stub("llamafactory.extras", folder + "/none", logging=log)
    _stub("llamafactory.data.mm_plugin", get_mm_plugin=lambda *a, **k: None)
    _stub("llamafactory.data.data_utils", Role=Role, SLOTS=list)
    _stub("typing_extensions", override=lambda method: method,
          NotRequired=typing.NotRequired)
    from llamafactory.data.template import TEMPLATES
    return TEMPLATES


def _text(ids):
    return "".join({BOS: "<s>", EOS: "</s>"}.get(number) or chr(number)
                   for number in ids)


def main():
    templates = _templates(sys.argv[1])
    cases = []
    for name, ours in NAMES.items():
        for system, turns in CONVERSATIONS.values():
            messages = [{"role": role, "content": text} for turn in turns
                        for role, text in zip(("user", "assistant"), turn)]
            pieces = templates[name].encode_multiturn(Characters(), messages,
                                                      system, None)
            cases.append({"template": name, "ours": "llamafactory-" + ours,
                          "system": system, "turns": turns, "pieces":
                          [[_text(asked), _text(said)]
                           for asked, said in pieces]})
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "Inputs",
                        "llamafactory-texts.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
