# SPDX-License-Identifier: MIT

"""The baseline Unsloth: FastLanguageModel in 4 bits with LoRA on all linear
layers and random weights of a real shape. Uses no network.

    baseline_unsloth.py CONFIG.json --batch B --length T --accumulation N
                    --rank R --warm-up N --steps N [--checkpointing]
                    [--model DIR]

The folder --model (default $TMPDIR/unsloth-<hash of CONFIG.json>) has random
bf16 weights and a tiny tokenizer. If it is missing, it is written, with weights
made on the GPU.

Prints one JSON object as baseline_gpu.py does. Unsloth's output goes to stderr.
"""

import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import sys
import tempfile
import time

for name, value in {
        "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1", "UNSLOTH_DISABLE_STATISTICS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "UNSLOTH_COMPILE_LOCATION": os.path.join(
            tempfile.gettempdir(), "unsloth_compiled_cache")}.items():
    os.environ.setdefault(name, value)

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj",
               "gate_proj", "up_proj", "down_proj"]


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("config")
    for name in ("batch", "length", "accumulation", "rank", "warm-up",
                 "steps"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--checkpointing", action="store_true",
                        help="use_gradient_checkpointing='unsloth'")
    parser.add_argument("--model", help="folder of random weights")
    parser.add_argument("--keep", action="store_true",
                        help="leave the folder there for the next run")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    return parser.parse_args()


def write_tokenizer(folder, config):
    import tokenizers
    ids = {name: getattr(config, name) for name in ("bos_token_id",
                                                    "eos_token_id")}
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    vocabulary = {token: n for n, token in enumerate(special)}
    vocabulary |= {f"w{n}": n for n in range(len(special), 300)}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(
        vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    inner.add_special_tokens(special)
    inner.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>",
        "bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>",
        "model_max_length": config.max_position_embeddings,
        "padding_side": "right", "clean_up_tokenization_spaces": False}))
    return ids


def write_shards(folder, shards, deviation, device):
    import torch
    from safetensors.torch import save_file
    index, total = {}, 0
    generator = torch.Generator(device).manual_seed(0)
    for shard, values in shards.items():
        file, tensors = f"model-{shard}.safetensors", {}
        for name, value in values.items():
            if value.dim() == 1:
                made = (torch.zeros if name.endswith("bias") else torch.ones)(
                    value.shape, dtype=torch.bfloat16)
            else:
                made = torch.empty(value.shape, dtype=torch.bfloat16,
                                   device=device).normal_(
                    0, deviation, generator=generator).cpu()
            tensors[name], index[name] = made, file
            total += made.numel() * 2
        save_file(tensors, folder / file, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": total}, "weight_map": index}))


def write_model(folder, path, device):
    """Writes a checkpoint of random bf16 weights, one file per layer."""
    import torch
    import transformers
    config = transformers.AutoConfig.from_pretrained(path)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = 1, 2, 3
    config.dtype = torch.bfloat16
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16)
    tied = set(getattr(model, "all_tied_weights_keys", None) or
               ()) if config.tie_word_embeddings else set()
    shards = {}
    for name, value in model.state_dict().items():
        if name in tied:
            continue
        digits = [part for part in name.split(".") if part.isdigit()]
        shards.setdefault(digits[0] if digits else "other", {})[name] = value
    temporary = folder.with_name(folder.name + ".part")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    write_shards(temporary, shards, config.initializer_range, device)
    config.architectures = [type(model).__name__]
    config.save_pretrained(temporary)
    write_tokenizer(temporary, config)
    temporary.rename(folder)


def ensure_model(options):
    text = pathlib.Path(options.config).read_text()
    name = f"unsloth-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    folder = pathlib.Path(options.model or os.path.join(
        tempfile.gettempdir(), name))
    if not folder.exists():
        start = time.perf_counter()
        write_model(folder, options.config, options.device)
        print(f"wrote {folder} in {time.perf_counter() - start:.1f} s",
              file=sys.stderr)
    return folder


def attention_of():
    """Returns the attention implementation that Unsloth selects."""
    with contextlib.suppress(Exception):
        from unsloth.utils import attention_dispatch as dispatch
        return ("flash-attn" if dispatch.HAS_FLASH_ATTENTION
                else "xformers" if dispatch.HAS_XFORMERS else "SDPA")
    return "unknown attention"


def build(options):
    """Returns the adapted model and its description."""
    import unsloth                       # before torch and transformers
    import torch
    import transformers
    from importlib.metadata import version
    torch.manual_seed(0)
    folder = ensure_model(options)
    checkpointing = "unsloth" if options.checkpointing else False
    place = {} if options.device == "cuda" else {"device_map": {"": "cpu"}}
    start = time.perf_counter()
    try:
        model, _ = unsloth.FastLanguageModel.from_pretrained(
            model_name=str(folder), max_seq_length=options.length,
            dtype=torch.bfloat16, load_in_4bit=True, use_exact_model_name=True,
            local_files_only=True, use_gradient_checkpointing=checkpointing,
            **place)
    finally:
        if not options.keep and not options.model:
            shutil.rmtree(folder, ignore_errors=True)
    model = unsloth.FastLanguageModel.get_peft_model(
        model, r=options.rank, target_modules=PROJECTIONS,
        lora_alpha=2 * options.rank, lora_dropout=0, bias="none",
        use_gradient_checkpointing=checkpointing, random_state=0,
        max_seq_length=options.length)
    model = unsloth.FastLanguageModel.for_training(
        model, use_gradient_checkpointing=checkpointing) or model
    print(f"loaded in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    describe(model)
    return model.train(), (
        f"Unsloth {version('unsloth')} (zoo {version('unsloth_zoo')}), "
        f"transformers {transformers.__version__}, PEFT {version('peft')}, "
        f"PyTorch {torch.__version__}, bitsandbytes "
        f"{version('bitsandbytes')} NF4, {attention_of()}, "
        f"gradient checkpointing {checkpointing}")


def describe(model):
    """Prints the types of base layers and trainable parameters to stderr.
    Checks that all base layers are NF4."""
    kinds = {}
    for name, module in model.named_modules():
        if name.endswith("base_layer"):
            state = getattr(module.weight, "quant_state", None)
            kind = (type(module).__name__, str(module.weight.dtype),
                    getattr(state, "quant_type", None),
                    getattr(state, "nested", None))
            kinds[kind] = kinds.get(kind, 0) + 1
    trained = [p for p in model.parameters() if p.requires_grad]
    print(f"base layers {kinds}; {sum(p.numel() for p in trained)} trained "
          f"parameters of {({str(p.dtype) for p in trained})}",
          file=sys.stderr)
    assert all(kind[2] == "nf4" for kind in kinds) and kinds, kinds


def measure(options):
    model, what = build(options)
    import baseline_gpu                      # after Unsloth's changes to torch
    return baseline_gpu.measure(model, what, options)


def main():
    options = parse_arguments()
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "w") as out:
        os.dup2(2, 1)
        print(json.dumps(measure(options)), file=out)


if __name__ == "__main__":
    main()
