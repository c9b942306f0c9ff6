#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes the demo: a tiny pretrained Llama, its tokenizer, and a task for it.

All text is from the grammar below. Every step is seeded. Needs torch >= 2.9,
transformers, peft, bitsandbytes.

    make_demo.py data       data/{train,valid,test}.jsonl
    make_demo.py pretrain   model/: the tokenizer and the base model
    make_demo.py check      fine-tunes in PyTorch as train.yaml says
    make_demo.py all        the three in this order

`check` writes expected.json. The base model is pretrained on notes about
errands and on questions about them. The task, with sentences and answers that
it has not seen, turns one sentence into one record:

    Anna has to bring two lamps to the bank on Friday by noon.
    do: bring; who: Anna; what: two lamps; place: the bank; day: Friday; ...
"""
import json, math, random, sys, time
from pathlib import Path

import bitsandbytes.functional as bnb
import peft
import torch
import transformers
import yaml
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

torch.set_num_threads(2)
transformers.logging.disable_progress_bar()
HERE = Path(__file__).resolve().parent
MODEL, DATA = HERE / "model", HERE / "data"

# --- Names, places and things in the data -------------------------------------

NAMES = """
Anna Ben Carla David Elena Felix Grace Hugo Irene Jonas Karin Leo Maria Nils
Olga Paul Quinn Rosa Simon Tara Ulrich Vera Walter Xenia Yusuf Zoe Amir Bianca
Cyrus Dora Emil Fatima Gita Hana Ivan Jana Kofi Lena Marco Nora Oskar Petra
Rania Stefan Thea Ugo Viola Wendy
""".split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
PLACES = ["the " + place for place in (
    "bank,harbour,library,old mill,station,market,town hall,clinic,bakery,"
    "garage,museum,school,north gate,post office,theatre,farm,little bridge,"
    "warehouse").split(",")]
ITEMS = (
    "the blue folder,two lamps,a box of apples,the spare keys,a new bicycle,"
    "three chairs,the signed contract,a bag of flour,the red umbrella,"
    "a crate of tiles,five notebooks,the repaired clock,a long ladder,"
    "ten candles,the green suitcase,a pot of honey").split(",")
WEATHER = ("rain,snow,bright sun,thick fog,strong wind,"
           "a light drizzle").split(",")
HOURS = {
    "seven in the morning": "07:00", "half past eight in the morning": "08:30",
    "nine in the morning": "09:00", "a quarter past ten": "10:15",
    "eleven in the morning": "11:00", "noon": "12:00",
    "one in the afternoon": "13:00", "half past two in the afternoon": "14:30",
    "three in the afternoon": "15:00", "a quarter to five": "16:45",
    "six in the evening": "18:00", "half past seven in the evening": "19:30",
    "nine at night": "21:00", "midnight": "24:00"}


def facts(r):
    who, to = r.sample(NAMES, 2)
    hour = r.choice(list(HOURS))
    return {"who": who, "to": to, "day": r.choice(DAYS), "hour": hour,
            "time": HOURS[hour], "place": r.choice(PLACES),
            "item": r.choice(ITEMS), "w": r.choice(WEATHER)}


# --- The fine-tuning task: sentence -> structured message ---------------------
TASK = {"meet": ["{who} wants to meet {to} at {place} on {day} at {hour}.",
                 "On {day} at {hour}, {who} is going to see {to} at {place}.",
                 "Please tell {to} that {who} will be waiting at {place}, "
                 "{day}, {hour}.",
                 "Put it down: {who} and {to}, {place}, {day} at {hour}."],
        "bring": ["{who} has to bring {item} to {place} on {day} by {hour}.",
                  "By {hour} on {day}, {item} must be at {place}, so ask "
                  "{who}.",
                  "Ask {who} to take {item} to {place} on {day} around {hour}.",
                  "So {item} goes to {place}, {who} brings it, {day}, {hour}."],
        "call": ["{who} should call {to} on {day} at {hour}.",
                 "Remind {who}: a call with {to}, {day} at {hour}.",
                 "Today {to} expects a call from {who}: {hour} on {day}.",
                 "At {hour} on {day}, {who} picks up the phone and calls "
                 "{to}."]}
RECORD = {"meet": "do: meet; who: {who}; with: {to}; place: {place}; "
                  "day: {day}; time: {time}",
          "bring": "do: bring; who: {who}; what: {item}; place: {place}; "
                   "day: {day}; time: {time}",
          "call": "do: call; who: {who}; with: {to}; day: {day}; "
                  "time: {time}"}


def task_row(r):
    kind, f = r.choice(list(TASK)), facts(r)
    return {"messages": [{"role": "user",
                          "content": r.choice(TASK[kind]).format(**f)},
                         {"role": "assistant",
                          "content": RECORD[kind].format(**f)}]}


def make_data():
    seen = set()  # over all three files: no sentence is in two of them
    for name, count, seed in (("test", 200, 1), ("valid", 200, 2),
                              ("train", 2000, 3)):
        r, rows = random.Random(seed), []
        while len(rows) < count:
            row = task_row(r)
            if row["messages"][0]["content"] not in seen:
                seen.add(row["messages"][0]["content"])
                rows.append(json.dumps(row) + "\n")
        (DATA / f"{name}.jsonl").write_text("".join(rows))


# --- Texts that the base model is pretrained on -------------------------------
PLAIN = ["{who} met {to} at {place} on {day}.",
         "{who} said to {to}: I will be at {place} at {hour}.",
         "There was {w} on {day}, so {who} stayed at {place} until {hour}.",
         "{to} asked {who} for {item}. {who} brought it on {day}.",
         "{who} left {place} at {hour}, that is {time}.",
         "At {time} the doors of {place} open. {to} comes at {hour}.",
         "First {who} went to {place}, then to see {to}. It was {day}, and "
         "there was {w}.",
         "It is {hour}: {time}. Now {hour} is {time}.",
         "{who} can bring {item}, call {to} or meet {to} on {day}."]
# Sentences, each with the keys of the questions that it answers.
SCENES = [("On {day}, {who} and {to} were at {place} at {hour}.",
           "who to day place hour time"),
          ("{who} carried {item} to {place} on {day}.", "who item day place"),
          ("At {hour}, {to} got {item} from {who}.", "who to item hour time"),
          ("It was {day}. {who} phoned {to} from {place}.",
           "who to day place"),
          ("{who} waited for {to}, who came at {hour} with {item}.",
           "who to item hour time"),
          ("Because of {w}, {who} went to {place} on {day} and not at {hour}.",
           "who place day hour time w"),
          ("Then {item} stood in {place} until {day}, when {who} took it to "
           "{to} at {hour}.", "who to item place day hour time"),
          ("{to}, {day}, {hour}: {who} is at {place}.",
           "who to day place hour time")]
ASK = {"who": ["Who did it?", "Name:", "Who is the first one?"],
       "to": ["Who else?", "With whom?", "Other:"],
       "day": ["Which day?", "When?", "Day:"],
       "place": ["Where?", "Place:", "Which place?"],
       "hour": ["At what hour?", "Hour:"],
       "time": ["What does the clock say?", "Time:", "On the clock?"],
       "item": ["Which thing?", "Thing:", "What was it?"],
       "w": ["What was the weather?"]}


def document(r):
    """Returns a random document: a sentence, a scene with questions (as text or
    chat), or a scene with a note."""
    f, kind = facts(r), r.random()
    if kind < 0.15:
        return " " + r.choice(PLAIN).format(**f)
    scene, keys = r.choice(SCENES)
    scene, keys = " " + scene.format(**f), keys.split()
    r.shuffle(keys)
    asked = [(r.choice(ASK[k]), f[k]) for k in keys]
    if kind < 0.4:
        return scene + "".join(f" {q} {v}." for q, v in asked)
    if kind < 0.7:
        return "<|user|>" + scene + "<|user|>".join(
            f" {q}<|end|><|assistant|> {v}.<|end|>" for q, v in asked[:3])
    note = r.choice([" " + ", ".join(f"{k} = {f[k]}" for k in keys) + ".",
                     " " + "; ".join(f"{f[k]} ({k})" for k in keys) + ".",
                     "".join(f" [ {k}: {f[k]} ]" for k in keys),
                     " " + " / ".join(f[k] for k in keys) + "."])
    if kind < 0.85:
        return scene + " Note:" + note
    return "<|user|>" + scene + "<|end|><|assistant|>" + note + "<|end|>"


# --- Tokenizer and base model -------------------------------------------------
SPECIAL = ["<|pad|>", "<|text|>", "<|end|>", "<|user|>", "<|assistant|>",
           "<|system|>"]
PAD, TEXT, END, VOCAB = 0, 1, 2, 896
CHAT = ("{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>"
        "{% if m['role'] == 'assistant' %}"
        "{% generation %} {{ m['content'] }}<|end|>{% endgeneration %}"
        "{% else %} {{ m['content'] }}<|end|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}")


def make_tokenizer():
    """Trains a byte-level BPE tokenizer, in which words of the base's text are
    single tokens."""
    r, byte_level = random.Random(9), pre_tokenizers.ByteLevel
    t = Tokenizer(models.BPE())
    t.pre_tokenizer = byte_level(add_prefix_space=False)
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=SPECIAL, show_progress=False,
        initial_alphabet=sorted(byte_level.alphabet()))
    t.train_from_iterator((document(r) for _ in range(10000)), trainer)
    t.save(str(MODEL / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast",
              "bos_token": "<|text|>", "eos_token": "<|end|>",
              "pad_token": "<|pad|>", "model_max_length": 256,
              "clean_up_tokenization_spaces": False, "chat_template": CHAT}
    (MODEL / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2) + "\n")
    return t


def copy_rows(g, rows, length, ids):
    """Returns rows that repeat one random span of tokens. Labels begin at the
    first repetition: only copying from the context predicts them."""
    x = torch.empty(rows, length, dtype=torch.long)
    y = torch.full((rows, length), -100)
    for b in range(rows):
        span = ids[torch.randperm(len(ids), generator=g)]
        span = span[:int(torch.randint(4, length // 2, (1,), generator=g))]
        x[b] = span.repeat(length // len(span) + 1)[:length]
        y[b, len(span) + 1:] = x[b, len(span) + 1:]
    return x, y


def forward(m, x, y):
    """Returns the mean loss over labels, a mask of tokens that are predicted
    correctly, and a mask of labels."""
    logits, target = m(input_ids=x).logits[:, :-1], y[:, 1:]
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1),
                                             target.flatten())
    return loss, logits.argmax(-1) == target, target != -100


def pretrain(text_steps=800):
    """Pretrains the base model. First it learns to copy random tokens: 24
    different ones, then three times as many whenever it copies well. Then it
    learns text, with some copying. On text alone, copying comes late or never;
    this way it takes some 300 steps."""
    torch.manual_seed(0)
    t = make_tokenizer()
    m = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=256, intermediate_size=384,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=256, rms_norm_eps=1e-5, rope_theta=10000.0,
        tie_word_embeddings=True, initializer_range=0.06, bos_token_id=TEXT,
        eos_token_id=END, pad_token_id=PAD))
    with torch.no_grad():  # without biases, heads need a common vector
        e = m.model.embed_tokens.weight
        e.copy_(0.06 * (torch.randn_like(e) + torch.randn(e.shape[1])))
    linear = [p for n, p in m.named_parameters() if "proj" in n]
    others = [p for n, p in m.named_parameters() if "proj" not in n]
    muon = torch.optim.Muon(linear, weight_decay=0.05,
                            adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(others, betas=(0.9, 0.95), weight_decay=0.05)
    g, started = torch.Generator().manual_seed(1), time.time()

    def step(x, y, scale):
        loss, right, kept = forward(m, x, y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        for o, lr in ((muon, 4e-3), (adam, 2e-3)):
            o.param_groups[0]["lr"] = lr * scale
            o.step()
            o.zero_grad()
        return loss.item(), right[kept].float().mean().item()

    words = len(SPECIAL) + torch.randperm(t.get_vocab_size() - len(SPECIAL),
                                          generator=g)
    active = s = copied = 0
    while copied < 0.95 or active < len(words):
        if copied > 0.8 or s == 0:
            active = min(len(words), 3 * active or 24)
        for s in range(s + 1, s + 26):
            loss, copied = step(*copy_rows(g, 32, 64, words[:active]),
                                min(1, s / 100))
        print(f"copying: step {s}, {active} tokens, loss {loss:.3f}, copied "
              f"{copied:.3f}, {time.time() - started:.0f} s", flush=True)
    r, stream, length, rows = random.Random(11), [], 96, 24
    for s in range(text_steps):
        while len(stream) < rows * length:
            documents = t.encode_batch([document(r) for _ in range(512)])
            stream += [i for e in documents for i in [TEXT] + e.ids + [END]]
        text = torch.tensor(stream[:rows * length]).view(rows, length)
        stream = stream[rows * length:]
        x, y = copy_rows(g, 8, length, words)
        scale = 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * s / text_steps))
        loss, _ = step(torch.cat([text, x]), torch.cat([text, y]), scale)
        if (s + 1) % 50 == 0:
            print(f"text: step {s + 1}/{text_steps}, loss {loss:.3f}, "
                  f"{time.time() - started:.0f} s", flush=True)
    m.to(torch.bfloat16).save_pretrained(MODEL)


# --- The same training in PyTorch, to check train.yaml ------------------------
def encode(tok, name, length):
    """Returns input_ids, labels [rows, length]; only replies are labelled."""
    x, y = [], []
    for line in (DATA / f"{name}.jsonl").read_text().splitlines():
        e = tok.apply_chat_template(json.loads(line)["messages"],
                                    return_dict=True,
                                    return_assistant_tokens_mask=True)
        ids, fill = e["input_ids"], length - len(e["input_ids"])
        assert fill >= 0, f"{len(ids)} tokens in a row of {length}"
        x.append(ids + [PAD] * fill)
        y.append([i if k else -100 for i, k in zip(ids, e["assistant_masks"])]
                 + [-100] * fill)
    return torch.tensor(x), torch.tensor(y)


def fine_tune(c):
    """Trains with configuration c. Returns the content of expected.json."""
    torch.manual_seed(c["seed"])
    tok = transformers.AutoTokenizer.from_pretrained(MODEL)
    m = transformers.AutoModelForCausalLM.from_pretrained(
        MODEL, dtype=torch.float32)
    base = m.num_parameters()
    for p in (p for n, p in m.named_parameters() if "proj" in n):
        packed, state = bnb.quantize_4bit(
            p.data, blocksize=c["bnb_4bit_blocksize"], quant_type="nf4",
            compress_statistics=c["bnb_4bit_use_double_quant"])
        p.data = bnb.dequantize_4bit(packed, state).float()
    m = peft.get_peft_model(m, peft.LoraConfig(
        r=c["lora_r"], lora_alpha=c["lora_alpha"], task_type="CAUSAL_LM",
        target_modules=c["lora_target_modules"]))
    trained = [p for p in m.parameters() if p.requires_grad]
    x, y = encode(tok, "train", c["max_length"])
    held = {n: encode(tok, n, c["max_length"]) for n in ("valid", "test")}

    def measure():
        with torch.no_grad():
            got = {n: forward(m, *xy) for n, xy in held.items()}
        return {n: {"loss": round(loss.item(), 4),
                    "exact_match": (right | ~kept).all(-1).float()
                    .mean().item()}
                for n, (loss, right, kept) in got.items()}

    out = {"parameters": base,
           "lora_parameters": sum(p.numel() for p in trained),
           "before": measure()}
    opt = torch.optim.AdamW(trained, betas=(c["adam_beta1"], c["adam_beta2"]),
                            eps=float(c["adam_epsilon"]),
                            weight_decay=c["weight_decay"])
    batch = (2 * c["per_device_train_batch_size"]  # two ranks
             * c["gradient_accumulation_steps"])
    steps, warm = c["num_train_epochs"] * (len(x) // batch), c["warmup_steps"]
    rows, started = [], time.time()
    for s in range(steps):
        if len(rows) < batch:
            rows = torch.randperm(len(x)).tolist()
        now, rows = rows[:batch], rows[batch:]
        opt.param_groups[0]["lr"] = c["learning_rate"] * (
            s / warm if s < warm else (steps - s) / (steps - warm))
        loss, _, _ = forward(m, x[now], y[now])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, c["max_grad_norm"])
        opt.step()
        opt.zero_grad()
        if (s + 1) % 25 == 0:
            print(f"step {s + 1}/{steps}, loss {loss.item():.4f}, "
                  f"{time.time() - started:.0f} s", flush=True)
    out.update(last_train_loss=round(loss.item(), 4), steps=steps,
               rows_per_step=batch, seconds=round(time.time() - started),
               after=measure())
    return out


def check():
    settings = yaml.safe_load((HERE / "train.yaml").read_text())
    result = json.dumps(fine_tune(settings), indent=2)
    (HERE / "expected.json").write_text(result + "\n")
    print(result)


if __name__ == "__main__":
    parts = {"data": make_data, "pretrain": pretrain, "check": check}
    MODEL.mkdir(exist_ok=True)
    DATA.mkdir(exist_ok=True)
    for part in parts if sys.argv[1:] == ["all"] else sys.argv[1:]:
        parts[part]()
