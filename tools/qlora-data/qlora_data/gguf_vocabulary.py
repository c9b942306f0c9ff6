# SPDX-License-Identifier: MIT
"""`qlora-data gguf`: the tokenizer of a model folder as keys of a GGUF file.

    qlora-data gguf --model DIR --vocab-size N [--chat-template FILE|NAME]
                    [--modelfile NAME]

Prints one JSON object: `keys`, a list of [name, type, value] in file order;
`warnings`; with --modelfile also `modelfile`, the text of ollama's Modelfile
for the GGUF file NAME. `qlora export` calls it.

llama.cpp has two kinds of tokenizers for the supported families:

  gpt2   byte-level BPE, with a pre-tokenizer that llama.cpp knows by name
  llama  SentencePiece's BPE. It has no merges: the pair whose union has the
         highest score is merged first, so scores stand for the merges' order
"""

from __future__ import annotations

import json
import re

from .arguments import Parser, positive
from .environment import ensure_packages
from .errors import DataError
from .gguf_pretokenizers import pretokenizer_of
from .model_files import ModelFiles

# Types of tokens.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_SPACE = "▁"
# Score of tokens that no merge makes, as in llama.cpp's converter.
_NO_MERGE = -1000.0
# Tokens that llama.cpp takes for ends of an answer because of their text.
_KNOWN_ENDS = frozenset(
    ("<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>",
     "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>",
     "<|end_of_text|>", "<eos>"))
_INSTEAD = "use --to merged, which keeps the tokenizer's files"


class Vocabulary:
    """The keys of one tokenizer. `size`: rows of the embedding."""

    def __init__(self, tokenizer, files: ModelFiles, size: int):
        self._tokenizer, self._files, self._size = tokenizer, files, size
        self._description = tokenizer.description()
        self._model = self._description["model"]
        self._added = {token["id"]: token for token
                       in self._description.get("added_tokens") or ()}
        self.warnings: list[str] = []
        self.adds_bos = False  # llama.cpp begins a text with BOS

    def keys(self) -> list[tuple[str, str, object]]:
        kind = self._model.get("type")
        if kind != "BPE":
            raise DataError(f"llama.cpp has no tokenizer of kind {kind} for "
                            "decoders", _INSTEAD, self._tokenizer.path)
        self._refuse_unusual()
        texts, types = self._tokens()
        if self._model.get("byte_fallback"):
            keys = self._sentencepiece(texts, types)
        else:
            keys = self._byte_level(texts, types)
        return keys + self._special()

    def _refuse_unusual(self) -> None:
        for name in ("continuing_subword_prefix", "end_of_word_suffix"):
            if self._model.get(name):
                raise DataError(f"llama.cpp's tokenizers have no '{name}'",
                                _INSTEAD, self._tokenizer.path)

    def _tokens(self) -> tuple[list[str], list[int]]:
        """Returns text and type of each token. Ids without a token, which pad
        the embedding, get unused ones."""
        tokens = dict(enumerate(f"[PAD{number}]"
                                for number in range(self._size)))
        types = [_UNUSED] * self._size
        vocabulary = {number: text for text, number
                      in self._model["vocab"].items()}
        vocabulary |= {number: token["content"]
                       for number, token in self._added.items()}
        for number, text in vocabulary.items():
            if number >= self._size:
                raise DataError(
                    f"token '{text}' has the id {number}, but the model has "
                    f"{self._size} tokens",
                    "resize the embedding, or remove the token",
                    self._tokenizer.path)
            tokens[number], types[number] = text, self._type(number, text)
        texts = [tokens[number] for number in range(self._size)]
        if len(set(texts)) != len(texts):
            twice = next(text for text in texts if texts.count(text) > 1)
            raise DataError(f"token '{twice}' has two ids, which llama.cpp "
                            "cannot have", _INSTEAD, self._tokenizer.path)
        return texts, types

    def _type(self, number: int, text: str) -> int:
        if text == self._model.get("unk_token"):
            return _UNKNOWN
        if number in self._added:
            return (_CONTROL if self._added[number].get("special")
                    else _USER_DEFINED)
        if self._model.get("byte_fallback") and len(text) == 6 \
                and text.startswith("<0x") and text.endswith(">"):
            return _BYTE
        return _NORMAL

    # Byte-level ------------------------------------------------------------

    def _byte_level(self, texts, types) -> list[tuple[str, str, object]]:
        self._warn_of_normalizer()
        name = pretokenizer_of(self._description, self._tokenizer.path)
        return [("tokenizer.ggml.model", "string", "gpt2"),
                ("tokenizer.ggml.pre", "string", name),
                ("tokenizer.ggml.tokens", "[string]", texts),
                ("tokenizer.ggml.token_type", "[int32]", types),
                ("tokenizer.ggml.merges", "[string]",
                 [" ".join(pair) for pair in self._merges()])]

    def _warn_of_normalizer(self) -> None:
        normalizer = self._description.get("normalizer")
        if not normalizer or normalizer == {"type": "Sequence",
                                            "normalizers": []}:
            return
        if normalizer.get("type") != "NFC":
            raise DataError(f"llama.cpp has no normalizer "
                            f"{normalizer.get('type')}", _INSTEAD,
                            self._tokenizer.path)
        self.warnings.append("llama.cpp does not normalize text to NFC, so "
                             "decomposed characters get other tokens")

    def _merges(self) -> list[tuple[str, str]]:
        """Returns the pairs; older files write them as one text."""
        return [tuple(pair.split(" ", 1)) if isinstance(pair, str)
                else tuple(pair) for pair in self._model["merges"]]

    # SentencePiece ---------------------------------------------------------

    def _sentencepiece(self, texts, types) -> list[tuple[str, str, object]]:
        missing = next((byte for byte in range(256) if f"<0x{byte:02X}>"
                        not in self._model["vocab"]), None)
        if missing is not None:
            raise DataError(f"has no token <0x{missing:02X}>, but llama.cpp "
                            "needs one for each byte", _INSTEAD,
                            self._tokenizer.path)
        ranks = self._ranks()
        scores = [float(-ranks[text]) if text in ranks else _NO_MERGE
                  for text in texts]
        # Added tokens are found before spaces are replaced.
        texts = [text.replace(_SPACE, " ") if kind == _USER_DEFINED else text
                 for text, kind in zip(texts, types)]
        return [("tokenizer.ggml.model", "string", "llama"),
                ("tokenizer.ggml.pre", "string", "default"),
                ("tokenizer.ggml.tokens", "[string]", texts),
                ("tokenizer.ggml.scores", "[float32]", scores),
                ("tokenizer.ggml.token_type", "[int32]", types),
                ("tokenizer.ggml.add_space_prefix", "bool",
                 self._adds_space())]

    def _ranks(self) -> dict[str, int]:
        """Returns the rank of each text that merges make. Scores can say the
        order only if all merges of a text follow each other, and if any two
        tokens whose union is a token have a merge."""
        ranks: dict[str, int] = {}
        pairs = set()
        last = None
        for pair in self._merges():
            text = "".join(pair)
            if text != last and text in ranks:
                raise self._unordered(text)
            ranks.setdefault(text, len(ranks))
            pairs.add(pair)
            last = text
        vocabulary = self._model["vocab"]
        added = {token["content"] for token in self._added.values()}
        for text in ranks:
            for cut in range(1, len(text)):
                pair = text[:cut], text[cut:]
                if pair not in pairs and added.isdisjoint(pair) \
                        and pair[0] in vocabulary and pair[1] in vocabulary:
                    raise self._unordered(text)
        return ranks

    def _unordered(self, text: str) -> DataError:
        return DataError(f"the merges of '{text}' are not those of "
                         "SentencePiece, and llama.cpp has no other tokenizer "
                         "with byte fallback", _INSTEAD, self._tokenizer.path)

    def _adds_space(self) -> bool:
        """Returns whether a space is put before the text. Refuses other changes
        of it than spaces that become `▁`."""
        prefix = False
        for step in _steps(self._description.get("normalizer"),
                           "normalizers"):
            kind = step.get("type")
            if kind == "Prepend" and step.get("prepend") == _SPACE:
                prefix = True
            elif not (kind == "Replace" and step.get("content") == _SPACE
                      and step.get("pattern") == {"String": " "}):
                raise DataError(f"llama.cpp has no normalizer {kind}",
                                _INSTEAD, self._tokenizer.path)
        for step in _steps(self._description.get("pre_tokenizer"),
                           "pretokenizers"):
            kind = step.get("type")
            if kind == "Metaspace":
                prefix |= step.get("prepend_scheme", "always") != "never"
            elif kind != "Split" or step.get("pattern") != {"String": " "}:
                raise DataError(f"llama.cpp has no pre-tokenizer {kind} with "
                                "byte fallback", _INSTEAD,
                                self._tokenizer.path)
        return prefix

    # Special tokens --------------------------------------------------------

    def _special(self) -> list[tuple[str, str, object]]:
        named = self._tokenizer.special_tokens
        keys = []
        for key, name in (("bos", "bos_token"), ("unknown", "unk_token"),
                          ("padding", "pad_token")):
            number = self._tokenizer.id_of(named.get(name, ""))
            if number is not None:
                keys.append((f"tokenizer.ggml.{key}_token_id", "uint32",
                             number))
        before, after = self._tokenizer.affixes(
            self._tokenizer.encode(["a"])[0])
        for name, ids in (("bos", before), ("eos", after)):
            number = self._tokenizer.id_of(named.get(f"{name}_token", ""))
            if ids not in ([], [number]):
                text = ", ".join(self._tokenizer.token(id_) for id_ in ids)
                raise DataError(f"adds {text} to a text; llama.cpp adds only "
                                f"the {name.upper()} token there", _INSTEAD,
                                self._tokenizer.path)
            keys.append((f"tokenizer.ggml.add_{name}_token", "bool",
                         bool(ids)))
        self.adds_bos = bool(before)
        return keys

    def end_keys(self, ends: list[int]) -> list[tuple[str, str, object]]:
        """Returns the keys of the tokens that end an answer."""
        eos = self._tokenizer.id_of(
            self._tokenizer.special_tokens.get("eos_token", ""))
        ordered = list(dict.fromkeys(
            number for number in [eos, *ends] if number is not None))
        keys = [(f"tokenizer.ggml.{name}_token_id", "uint32", number)
                for name, number in zip(("eos", "eot", "eom"), ordered)]
        for number in ordered[3:]:
            text = self._tokenizer.token(number)
            if text not in _KNOWN_ENDS:
                self.warnings.append("llama.cpp has keys for three end tokens,"
                                     f" so '{text}' does not end an answer")
        return keys


def _steps(value: dict | None, key: str) -> list[dict]:
    """Returns the parts of a sequence, or the single part."""
    if not value:
        return []
    return value[key] if value.get("type") == "Sequence" else [value]


def _template_keys(files: ModelFiles, override: str | None
                   ) -> list[tuple[str, str, object]]:
    templates = files.chat_templates(override)
    keys = []
    others = sorted(name for name in templates if name != "default")
    if others:
        keys.append(("tokenizer.chat_templates", "[string]", others))
    for name in others:
        keys.append((f"tokenizer.chat_template.{name}", "string",
                     _without_marks(templates[name][0])))
    if "default" in templates:
        keys.append(("tokenizer.chat_template", "string",
                     _without_marks(templates["default"][0])))
    return keys


def _without_marks(source: str) -> str:
    """Replaces {% generation %}, which only training needs, by a tag that every
    Jinja has."""
    source = re.sub(r"(\{%[-+]?\s*)generation(\s*[-+]?%\})", r"\1if true\2",
                    source)
    return re.sub(r"(\{%[-+]?\s*)endgeneration(\s*[-+]?%\})", r"\1endif\2",
                  source)


def gguf(arguments: list[str]) -> None:
    """Runs the command. `arguments` begin with its name."""
    parser = Parser(prog="qlora-data gguf", allow_abbrev=False,
                    description="Prints a tokenizer as keys of a GGUF file. "
                    "qlora export calls it.")
    parser.add_argument("--model", required=True, metavar="DIR")
    parser.add_argument("--vocab-size", required=True, type=positive,
                        metavar="N", help="rows of the embedding")
    parser.add_argument("--chat-template", metavar="FILE|NAME",
                        help="chat template to use instead of the tokenizer's")
    parser.add_argument("--modelfile", metavar="NAME", help="also write "
                        "ollama's Modelfile for the file NAME")
    args = parser.parse_args(arguments[1:])
    ensure_packages(arguments)
    # Not imported earlier: these modules need the packages.
    from .prompts import Prompts
    from .sampling import end_tokens_of, stop_strings_of
    files = ModelFiles(args.model)
    prompts = Prompts(files, args.chat_template, None)
    tokenizer = prompts.converter.tokenizer
    vocabulary = Vocabulary(tokenizer, files, args.vocab_size)
    keys = vocabulary.keys()
    stops = stop_strings_of(files)
    ends = list(dict.fromkeys(end_tokens_of(files) + prompts.answer(stops)[0]))
    keys += vocabulary.end_keys(ends)
    keys += _template_keys(files, args.chat_template)
    result = {"keys": keys, "warnings": vocabulary.warnings}
    if args.modelfile:
        from .ollama import describe
        result["modelfile"], warning = describe(
            args.modelfile, prompts,
            (*stops, *map(tokenizer.token, ends)), vocabulary.adds_bos)
        result["warnings"] += [warning] if warning else []
    print(json.dumps(result, ensure_ascii=False, separators=(",", ":")))
