# SPDX-License-Identifier: MIT

"""What a user would run today on a CPU: transformers + PEFT (+ bitsandbytes NF4), random weights of a real shape.

usage: peer_cpu.py SHAPE {nf4,bf16,f32} [--compute bf16|f32] [--ckpt] [--seq 512] [--batch 1] [--steps 6] [--sft]
Prints one line: tokens per second (median step after one warm-up), peak RSS after the model was built, loss. With --sft: rows of 40 to 512 tokens (mean about 170), the first
60 % of each without a label, padded to the longest of the batch, as the usual collator does; the figures are then real (not padding)
and labelled tokens over the total time of the steps.
"""
import argparse, ctypes, gc, statistics, time
import torch, transformers
from peft import LoraConfig, get_peft_model
transformers.logging.set_verbosity_error()
SHAPES = {
    "smollm2-135m": dict(kind="llama", hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3, vocab_size=49152, tie_word_embeddings=True, rope_theta=1e5),
    "qwen2.5-0.5b": dict(kind="qwen2", hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14, num_key_value_heads=2, vocab_size=151936, tie_word_embeddings=True, rope_theta=1e6),
    "llama3.2-1b": dict(kind="llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, tie_word_embeddings=True, rope_theta=5e5),
}
ap = argparse.ArgumentParser()
ap.add_argument("shape", choices=SHAPES); ap.add_argument("mode", choices=["nf4", "bf16", "f32"])
ap.add_argument("--compute", default="bf16"); ap.add_argument("--ckpt", action="store_true")
ap.add_argument("--seq", type=int, default=512); ap.add_argument("--batch", type=int, default=1); ap.add_argument("--steps", type=int, default=6); ap.add_argument("--rank", type=int, default=16); ap.add_argument("--sft", action="store_true")
a = ap.parse_args()
torch.manual_seed(0); torch.set_num_threads(2)
s = dict(SHAPES[a.shape]); kind = s.pop("kind")
C = {"llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM), "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM)}[kind]
cfg = C[0](**s, max_position_embeddings=4096)
dt = {"bf16": torch.bfloat16, "f32": torch.float32}
wd = torch.float32 if a.mode == "f32" else (dt[a.compute] if a.mode == "nf4" else torch.bfloat16)
torch.set_default_dtype(wd); m = C[1](cfg); torch.set_default_dtype(torch.float32)
if a.mode == "nf4":
    import bitsandbytes as bnb
    for name, mod in list(m.named_modules()):
        if isinstance(mod, torch.nn.Linear) and "lm_head" not in name:
            parent = m.get_submodule(name.rsplit(".", 1)[0])
            q = bnb.nn.Linear4bit(mod.in_features, mod.out_features, bias=mod.bias is not None, compute_dtype=dt[a.compute], compress_statistics=True, quant_type="nf4")
            q.weight = bnb.nn.Params4bit(mod.weight.data.float(), requires_grad=False, quant_type="nf4", compress_statistics=True)
            if mod.bias is not None: q.bias = mod.bias
            setattr(parent, name.rsplit(".", 1)[1], q.to("cpu"))
m = get_peft_model(m, LoraConfig(r=a.rank, lora_alpha=2 * a.rank, target_modules="all-linear", task_type="CAUSAL_LM"))
for n, p in m.named_parameters():
    if "lora_" in n: p.data = p.data.float()
if a.ckpt:
    m.enable_input_require_grads(); m.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
m.train(); m.config.use_cache = False
opt = torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-4)
gc.collect(); ctypes.CDLL(None).malloc_trim(0); open("/proc/self/clear_refs", "w").write("5")  # forget the peak of building the model
g = torch.Generator().manual_seed(1); times, real, labelled = [], [], []
def rows():
    """One batch: ids, attention mask, labels."""
    if not a.sft:
        ids = torch.randint(0, cfg.vocab_size, (a.batch, a.seq), generator=g); return ids, torch.ones_like(ids), ids
    n = torch.clamp(torch.exp(4.95 + 0.6 * torch.randn(a.batch, generator=g)), 40, a.seq).int(); T = int(n.max()); pos = torch.arange(T)
    ids = torch.randint(0, cfg.vocab_size, (a.batch, T), generator=g); att = (pos < n[:, None]).long()
    return ids, att, torch.where((pos >= (0.6 * n[:, None])) & (att == 1), ids, -100)
fixed = rows()
for i in range(a.steps):
    ids, att, lab = rows() if a.sft else fixed; t = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=wd != torch.float32):
        loss = m(input_ids=ids, attention_mask=att if a.sft else None, labels=lab).loss
    loss.backward(); opt.step(); opt.zero_grad()
    if i: times.append(time.perf_counter() - t); real.append(int(att.sum())); labelled.append(int((lab != -100).sum()))
rss = next(int(l.split()[1]) for l in open("/proc/self/status") if l.startswith("VmHWM")) / 2**20; what = f"{a.shape} {a.mode} compute={a.compute} ckpt={a.ckpt} B={a.batch} T={a.seq} r={a.rank}"
if a.sft:
    print(f"{what} sft: {sum(real)/sum(times):.1f} real tok/s {sum(labelled)/sum(times):.1f} labelled tok/s rss {rss:.2f} GiB", flush=True)
else:
    print(f"{what}: {real[0]/statistics.median(times):.1f} tok/s step {statistics.median(times):.2f} s rss {rss:.2f} GiB loss {loss.item():.4f}", flush=True)
