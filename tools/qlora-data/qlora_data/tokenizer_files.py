# SPDX-License-Identifier: MIT
"""Loads the tokenizer of a model folder from any of its formats: tokenizer.json
(BPE, Unigram, WordPiece, WordLevel), tokenizer.model of SentencePiece,
vocab.json with merges.txt. The tokens are those of AutoTokenizer in
transformers 5 for the same folder, even if a file alone gives other tokens: the
settings of LlamaTokenizer, for example, decide about a space before the text.
"""

from __future__ import annotations

import os

from tokenizers import (AddedToken, Regex, Tokenizer, models, normalizers,
                        pre_tokenizers)

from .errors import DataError
from .model_files import ModelFiles
from .sentencepiece import (CONTROL, SPACE, USER_DEFINED, read_sentencepiece,
                            tiktoken_error, tokenizer_of)

# Models for which transformers uses the files unchanged, even if they name
# LlamaTokenizer.
_AS_WRITTEN = frozenset(
    "mistral mixtral ministral ministral3 mistral3 phi3 phimoe granite "
    "granitemoe granitemoehybrid granitemoeshared olmo2 olmo3 flex_olmo glm "
    "glm4 glm4_moe stablelm nemotron jamba internlm2 internlm3 minicpm3 "
    "minimax_m2 ernie4_5 ernie4_5_moe gpt_bigcode arctic persimmon qwen2"
    .split())
_TOKEN_FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
_LLAMA = ("LlamaTokenizer", "CodeLlamaTokenizer")
_TIKTOKEN = ("qwen.tiktoken", "tiktoken.model", "tekken.json",
             "vocab.tiktoken")
_OTHERS = ("merges.txt", "vocab.json", "vocab.txt", "spiece.model",
           "sentencepiece.bpe.model")

_QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def load_tokenizer(files: ModelFiles) -> tuple[Tokenizer, str, dict[str, str]]:
    """Returns the tokenizer, its file, and the default special tokens of its
    kind, for a folder that names none."""
    for name, load in (("tokenizer.json", _from_json),
                       ("tokenizer.model", _from_sentencepiece),
                       ("merges.txt", _from_merges)):
        path = os.path.join(files.folder, name)
        if os.path.isfile(path):
            try:
                tokenizer, named = load(files, path)
            except DataError:
                raise
            except Exception as error:  # the library raises bare Exception
                raise DataError(f"not a readable tokenizer: {error}",
                                f"copy {name} again from the model",
                                path) from None
            # Llama 3's tokenizer has the same class, but is byte-level.
            if _names_llama(files) and "ByteLevel" not in repr(
                    tokenizer.pre_tokenizer):
                _as_llama(files, tokenizer)
                named = {"unk_token": "<unk>", "bos_token": "<s>",
                         "eos_token": "</s>", **named}
            _declare(files, tokenizer, name)
            return tokenizer, path, named
    raise _missing(files)


def _declare(files: ModelFiles, tokenizer: Tokenizer, name: str) -> None:
    """Adds the tokens of the folder's other files, in the order of their ids.
    Those files override the tokenizer's own properties."""
    for number, token in files.declared_tokens():
        if name == "tokenizer.model" and not _names_llama(files) \
                and "Metaspace" in repr(tokenizer.pre_tokenizer):
            # Split at this token before normalization, so that the text after
            # the token gets the dummy prefix, too.
            token = {**token, "normalized": False}
        add_tokens(tokenizer, [token])
        got = tokenizer.token_to_id(token["content"])
        if got != number:
            raise DataError(
                f"'added_tokens_decoder' gives '{token['content']}' the id"
                f" {number}, but in {name} it would be {got}",
                "save the tokenizer again with transformers",
                files.config_path)


def add_tokens(tokenizer: Tokenizer, tokens: list[dict]) -> None:
    """Adds tokens that are given as {"content", flags...}."""
    tokenizer.add_tokens([
        AddedToken(token["content"], **{flag: bool(token[flag])
                                        for flag in _TOKEN_FLAGS
                                        if flag in token})
        for token in tokens])


def _missing(files: ModelFiles) -> DataError:
    def there(names):
        return next((name for name in names if os.path.exists(
            os.path.join(files.folder, name))), "")

    if name := there(_TIKTOKEN):
        return tiktoken_error(f"has {name},", files.folder)
    if name := there(_OTHERS):
        return DataError(
            f"has {name} but no tokenizer.json",
            "convert it once with transformers: python3 -c \"from transformers"
            " import AutoTokenizer as T; T.from_pretrained("
            f"{files.folder!r}).save_pretrained({files.folder!r})\"",
            files.folder)
    return DataError("has no tokenizer.json, tokenizer.model or merges.txt",
                     "copy it from the original model", files.folder)


def _names_llama(files: ModelFiles) -> bool:
    return files.tokenizer_class in _LLAMA \
        and files.model_type not in _AS_WRITTEN


def _as_llama(files: ModelFiles, tokenizer: Tokenizer) -> None:
    scheme = "always" if files.config.get("legacy") else "first"
    if files.config.get("add_prefix_space") is False:
        scheme = "never"
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement=SPACE, prepend_scheme=scheme, split=False)


def _from_json(_: ModelFiles, path: str) -> tuple[Tokenizer, dict[str, str]]:
    return Tokenizer.from_file(path), {}


def _from_sentencepiece(files: ModelFiles,
                        path: str) -> tuple[Tokenizer, dict[str, str]]:
    spm = read_sentencepiece(path)
    renamed = {number: token["content"] for number, token
               in files.declared_tokens() if number < len(spm.pieces)}
    scheme = "always" if files.config.get("legacy", True) else "first"
    tokenizer = tokenizer_of(spm, scheme, renamed)
    kinds = [CONTROL]
    if _names_llama(files) or files.tokenizer_class == "GemmaTokenizer":
        kinds.append(USER_DEFINED)
    add_tokens(tokenizer, [
        {"content": renamed.get(number, text), "normalized": False,
         "special": kind == CONTROL} for kind in kinds
        for number, text in spm.of_type(kind)])
    return tokenizer, spm.named_tokens()


def _from_merges(files: ModelFiles,
                 path: str) -> tuple[Tokenizer, dict[str, str]]:
    """Loads vocab.json and merges.txt of GPT-2 and Qwen models, as
    transformers' slow tokenizers do."""
    is_qwen = files.model_type.startswith("qwen") \
        or files.tokenizer_class == "Qwen2Tokenizer"
    if not is_qwen and files.tokenizer_class not in ("GPT2Tokenizer", ""):
        raise _missing(files)
    vocabulary = os.path.join(files.folder, "vocab.json")
    tokenizer = Tokenizer(models.BPE.from_file(vocabulary, path))
    add_prefix = bool(files.config.get("add_prefix_space"))
    if not is_qwen:
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(
            add_prefix_space=add_prefix)
        return tokenizer, dict.fromkeys(("unk_token", "bos_token",
                                         "eos_token"), "<|endoftext|>")
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(_QWEN2), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=add_prefix,
                                 use_regex=False)])
    return tokenizer, dict.fromkeys(("unk_token", "eos_token", "pad_token"),
                                    "<|endoftext|>")
