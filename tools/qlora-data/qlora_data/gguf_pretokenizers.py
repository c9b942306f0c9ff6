# SPDX-License-Identifier: MIT
"""The pre-tokenizers of byte-level BPE that llama.cpp knows, by what they do.

A GGUF file names one of llama.cpp's pre-tokenizers (`tokenizer.ggml.pre`), and
llama.cpp has its rules. The table has the rules of tokenizer.json for each name
(llama_vocab in llama.cpp's src/llama-vocab.cpp)."""

from __future__ import annotations

from .errors import DataError

_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s|"
          r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_MARKED_WORDS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?"
                 r"[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
                 r"\s*[\r\n]+|\s+(?!\S)|\s+")
_GPT2 = (r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|"
         r"\s+(?!\S)|\s+")
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", \
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_CASES = (r"[^\r\n\p{L}\p{N}]?" + _UPPER + "*" + _LOWER + "+%s|"
          r"[^\r\n\p{L}\p{N}]?" + _UPPER + "+" + _LOWER + "*%s|"
          r"\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|"""
             r"[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
             r"\s*[\r\n]+|\s+(?!\S)|\s+")

# Rules -> name. A rule is a regular expression whose matches become words,
# "digits" (each one a word), or "gpt2" (the words of ByteLevel).
_NAMES = {
    ("gpt2",): "gpt-2",
    (_GPT2,): "gpt-2",
    ("digits", "gpt2"): "smollm",
    (r"\p{N}", "gpt2"): "smollm",
    (_WORDS % "",): "qwen2",
    (_MARKED_WORDS,): "qwen35",
    (_CASES % ("", "", ""),): "tekken",
    (_CASES % (_SHORT, _SHORT, "{1,3}"),): "gpt-4o",
    (r"\p{N}{1,3}", "[一-龥\u3040-ゟ゠-ヿ]+", _DEEPSEEK): "deepseek-v3",
}
# The words of Llama 3 have two names: with the first one, llama.cpp takes a
# word that is a token as a whole, whatever the merges are (`ignore_merges`).
_LLAMA3 = (_WORDS % "{1,3}",)


def _rule(step: dict) -> str | None:
    """Returns a step's rule; "" for none, and None if it has no such rule."""
    kind = step.get("type")
    if kind == "ByteLevel" and not step.get("add_prefix_space"):
        return "gpt2" if step.get("use_regex", True) else ""
    if kind == "Digits" and step.get("individual_digits"):
        return "digits"
    if kind == "Split":
        behavior = step.get("behavior"), bool(step.get("invert"))
        if behavior in (("Isolated", False), ("Removed", True)):
            pattern = step.get("pattern") or {}
            return pattern.get("Regex")
    return None


def pretokenizer_of(description: dict, path: str) -> str:
    """Returns llama.cpp's name. `description`: a tokenizer.json."""
    value = description.get("pre_tokenizer") or {}
    steps = value.get("pretokenizers", [value])
    rules = [_rule(step) for step in steps]
    known = tuple(rule for rule in rules if rule)
    is_byte_level = any(step.get("type") == "ByteLevel" for step in steps)
    name = None
    if None not in rules and is_byte_level:
        if known == _LLAMA3:
            name = "llama-bpe" if description["model"].get("ignore_merges") \
                else "dbrx"
        else:
            name = _NAMES.get(known)
    if name is None:
        shown = "; ".join(rule if rule is not None else str(step)
                          for rule, step in zip(rules, steps)
                          if rule != "") or "no pre-tokenizer"
        raise DataError(f"llama.cpp has no pre-tokenizer with these rules: "
                        f"{shown}", "use --to merged, which keeps the "
                        "tokenizer's files", path)
    return name
