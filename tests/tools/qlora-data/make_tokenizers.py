#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes Inputs/tokenizers.json: small tokenizers of each kind that models
have, in folders like those of models, and AutoTokenizer's results for texts and
a conversation. The script trains the tokenizers. Needs the packages
transformers and sentencepiece:

    make_tokenizers.py Inputs/tokenizers.json
"""

import base64
import importlib.metadata
import io
import json
import os
import sys
import tempfile
import zlib

import sentencepiece
from fixtures import CHATML_MARKED, byte_fallback, byte_level
from tokenizers import (Regex, Tokenizer, models, normalizers, pre_tokenizers,
                        processors, trainers)
from transformers import AutoTokenizer

CORPUS = ["hello world the user and the assistant say 日本 é",
          "12 34 567 numbers  and   runs of spaces",
          "def f(x):\n    return x + 1",
          "the quick brown fox jumps over the lazy dog",
          "assistant: hello there, how are you today?"] * 20
TEXTS = ["hello world", "  hello  world ", "the user</s>say<s> x",
         "日本 😀 é\n\n", " ", "a\tb\r\nc", "ﬁne ① ½", "▁hello ▁▁x",
         "<|im_start|>user\nhello<|im_end|>\n  two   three", "<unk>x <0x0A>",
         "def f(x):\n    return x + 1", "x<extra> y <extra>z", "Hello WÖRLD 12"]
TALK = [{"role": "system", "content": "Be kind."},
        {"role": "user", "content": "hello 日本"},
        {"role": "assistant", "content": " é world\n\n"},
        {"role": "user", "content": "and?"},
        {"role": "assistant", "content": "the 😀"}]
CHAT = ["<|im_start|>", "<|im_end|>"]


def train(**options):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=out, minloglevel=2,
        hard_vocab_limit=False, **options)
    return out.getvalue()


def word_piece():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(CORPUS, trainers.WordPieceTrainer(
        vocab_size=200, show_progress=False,
        special_tokens=["[UNK]", "[CLS]", "[SEP]", *CHAT]))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return tokenizer


def unigram():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.train_from_iterator(CORPUS, trainers.UnigramTrainer(
        vocab_size=100, show_progress=False, unk_token="<unk>",
        special_tokens=["<unk>", "<s>", "</s>", *CHAT]))
    return tokenizer


def written(model):
    """Returns the texts of vocab.json and merges.txt for a byte-level
    tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        return [open(path, "rb").read() for path in model.save(folder)]


BPE = {"model_type": "bpe", "vocab_size": 400, "byte_fallback": True,
       "normalization_rule_name": "identity", "remove_extra_whitespaces": False,
       "allow_whitespace_only_pieces": True}
VOCABULARY, MERGES = written(byte_level().model)
FILES = {
    "llama": train(**BPE, split_digits=True),
    "gemma": train(
        **BPE, add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
        pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>",
        user_defined_symbols=[*CHAT, "\n",
                              *("▁" * count for count in range(2, 17))]),
    "nmt": train(model_type="unigram", vocab_size=120),
    "bytes": train(model_type="unigram", vocab_size=400, byte_fallback=True,
                   normalization_rule_name="identity",
                   user_defined_symbols=CHAT),
    "vocab": VOCABULARY, "merges": MERGES,
    **{name: tokenizer.to_str().encode() for name, tokenizer in (
        ("byte-level", byte_level()), ("byte-fallback", byte_fallback()),
        ("word-piece", word_piece()), ("unigram", unigram()))}}
PIECES = {name: sentencepiece.SentencePieceProcessor(
    model_proto=FILES[name]).vocab_size()
    for name in ("llama", "gemma", "nmt", "bytes")}


def folder(name, model, kind, model_type, **config):
    """Returns a case: the model folder's files by name, each as text or as
    JSON."""
    names = {"model": ["tokenizer.model"], "json": ["tokenizer.json"],
             "slow": ["vocab.json", "merges.txt"]}[kind]
    files = dict(zip(names, model.split()))
    return {"name": name, "files": files, "json": {
        "config.json": {"model_type": model_type},
        "tokenizer_config.json": config}}


def extra(number, **flags):
    return {str(number): {"content": "<extra>", "lstrip": False,
                          "rstrip": False, "single_word": False,
                          "normalized": True, "special": False, **flags}}


def cases():
    made = []

    def add(*arguments, beside=None, **config):
        made.append(folder(*arguments, **config))
        made[-1]["json"].update(beside or {})

    llama = {"tokenizer_class": "LlamaTokenizer"}
    for name, config in (
            ("", {}), (" legacy", {"legacy": True}),
            (" no prefix", {"add_prefix_space": False}),
            (" bos, eos", {"add_bos_token": True, "add_eos_token": True}),
            (" added", {"added_tokens_decoder": extra(PIECES["llama"])})):
        add("Llama 2" + name, "llama", "model", "llama", **llama, **config)
        add("Mistral" + name, "llama", "model", "mistral", **llama, **config)
        add("Llama 2 json" + name, "byte-fallback", "json", "llama", **llama,
            **({} if "added" in name else config))
        add("Gemma" + name, "gemma", "model", "gemma2",
            tokenizer_class="GemmaTokenizer",
            **({} if "added" in name else config))
    add("added_tokens.json", "llama", "model", "llama", **llama,
        beside={"added_tokens.json": {"<extra>": PIECES["llama"]}})
    add("special_tokens_map.json", "llama", "model", "llama", **llama,
        eos_token="<unk>", beside={"special_tokens_map.json": {
            "eos_token": {"content": "<|im_end|>", "lstrip": False,
                          "rstrip": False, "normalized": False,
                          "single_word": False}}})
    add("renamed", "llama", "model", "phi3", **llama,
        added_tokens_decoder=extra(5, special=True, normalized=False))
    add("no configuration", "bytes", "model", "internlm2")
    add("not legacy", "bytes", "model", "internlm2", legacy=False)
    add("charsmap", "nmt", "model", "internlm2", add_bos_token=True)
    fast = {"tokenizer_class": "PreTrainedTokenizerFast"}
    for model, names in (("byte-level", ("<s>", "</s>")),
                         ("byte-fallback", ("<s>", "</s>")),
                         ("word-piece", ("[CLS]", "[SEP]")),
                         ("unigram", ("<s>", "</s>"))):
        size = Tokenizer.from_str(FILES[model].decode()).get_vocab_size()
        named = {**fast, "bos_token": names[0], "eos_token": names[1]}
        add(model, model, "json", "llama", **named, add_bos_token=True)
        add(model + " listed", model, "json", "llama", **named,
            additional_special_tokens=["<extra>"])
        add(model + " in the map", model, "json", "llama", **named,
            beside={"special_tokens_map.json": {
                "eos_token": "<|im_end|>",
                "additional_special_tokens": ["<extra>"]}})
        add(model + " added", model, "json", "llama", **named,
            added_tokens_decoder=extra(size, lstrip=True))
    add("flags of the other file", "byte-level", "json", "llama", **fast,
        eos_token="</s>", added_tokens_decoder={"4": {
            "content": "</s>", "lstrip": True, "rstrip": True,
            "single_word": False, "normalized": False, "special": True}})
    add("Llama 3", "byte-level", "json", "llama", **llama)
    for name, config in (("", {}), (" prefix", {"add_prefix_space": True}),
                         (" bos", {"add_bos_token": True})):
        add("GPT-2" + name, "vocab merges", "slow", "gpt2", **config)
        add("Qwen2" + name, "vocab merges", "slow", "qwen2",
            tokenizer_class="Qwen2Tokenizer", **config)
    return made


def tokens_of(case):
    with tempfile.TemporaryDirectory() as path:
        for name, model in case["files"].items():
            with open(os.path.join(path, name), "wb") as file:
                file.write(FILES[model])
        for name, value in case["json"].items():
            with open(os.path.join(path, name), "w", encoding="utf-8") as file:
                json.dump(value, file)
        tokenizer = AutoTokenizer.from_pretrained(path)
    chat = tokenizer.apply_chat_template(
        TALK, chat_template=CHATML_MARKED, tokenize=True, return_dict=True,
        return_assistant_tokens_mask=True)
    return {"special": {name: getattr(tokenizer, name) for name in
                        ("bos_token", "eos_token", "unk_token")},
            "texts": [tokenizer(text, add_special_tokens=False)["input_ids"]
                      for text in TEXTS],
            "plain": tokenizer("hello")["input_ids"],
            "chat": chat["input_ids"], "mask": chat["assistant_masks"]}


def main(output):
    made = [{**case, **tokens_of(case)} for case in cases()]
    versions = {name: importlib.metadata.version(name) for name in (
        "transformers", "tokenizers", "sentencepiece")}
    packed = {name: base64.b64encode(zlib.compress(data, 9)).decode()
              for name, data in FILES.items()}
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in made)
    head = json.dumps({"made_by": "make_tokenizers.py", "versions": versions,
                       "texts": TEXTS, "talk": TALK, "files": packed},
                      ensure_ascii=False, indent=1)
    with open(output, "w", encoding="utf-8") as file:
        file.write(head[:-2] + f',\n "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main(sys.argv[1])
