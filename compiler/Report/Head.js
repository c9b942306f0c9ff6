// SPDX-License-Identifier: MIT

// plan.html: the tiles, the options, and the bar of the arenas.

//---- Tiles ------------------------------------------------------------------

function addTile(name, value, ...notes) {
  const tile = make('div', 'tile', make('div', 'name', name),
                    make('div', 'value', value));
  for (const note of notes.filter(Boolean))
    tile.append(make('div', 'note', note));
  byId('tiles').append(tile);
  return tile;
}

function addModel() {
  const {shape} = run, family = (run.family || 'model').replace(
      /ForCausalLM$/, '');
  const parts = [['num_hidden_layers', 'layers'], ['hidden_size', 'wide'],
                 ['vocab_size', 'tokens in the vocabulary']];
  addTile('Model', `${family}, ${inCount(run.parameters)}`,
          `parameters; ${inFull(run.trainable)} are trainable (${
              inShare(run.trainable, run.parameters + run.adapters)})`,
          parts.filter(([key]) => shape[key])
              .map(([key, word]) => `${inFull(shape[key])} ${word}`)
              .join(', '));
}

// Returns the batch size and the row lengths, without token buckets.
function fullBatch() {
  const batch = run.options.per_device_train_batch_size;
  const lengths = run.options.max_length;
  return {batch, lengths, length: Math.max(...lengths)};
}

function addBatch() {
  const {batch, lengths, length} = fullBatch();
  const buckets = entries.filter(
      (e) => e.kind === 'accumulate' && e.batch === 1 &&
          !(batch === 1 && lengths.includes(e.length))).map((e) => e.length);
  const steps = run.options.gradient_accumulation_steps;
  addTile('Batch × length', `${batch} × ${lengths.join(', ')}`,
          `${inFull(batch * length)} tokens in a micro-batch, ${
              several(steps, 'micro-batch').replace('chs', 'ches')} in a step`,
          buckets.length && `short rows are packed into sequences of ${
              Math.min(...buckets)} to ${Math.max(...buckets)} tokens (${
              several(buckets.length, 'bucket')})`);
}

function addLimit() {
  const total = plan.total_bytes, limit = run.options.memory_limit;
  const [number, unit] = inBytes(total).split(kSpace);
  const isSameUnit = inBytes(limit).endsWith(kSpace + unit);
  const value = !limit ? inBytes(total)
      : `${isSameUnit ? number : inBytes(total)} of ${inBytes(limit)}`;
  const tile = addTile('Plan of a rank', value,
                       limit ? 'within --memory-limit'
                             : 'no limit; set one with --memory-limit');
  tile.title = exactly(total) + (limit ? ` of ${inFull(limit)}` : '');
}

function addResident() {
  const resident = plan.resident_bytes;
  if (!resident)
    return addTile('Resident at most',
                   `${inBytes(plan.total_bytes)} + driver`,
                   'qlora-run prints the GPU memory of the driver and its ' +
                       'libraries');
  addTile('Resident at most', inBytes(resident),
          `the plan, and about ${inBytes(resident - plan.total_bytes)} ` +
              'of code and libraries').title = exactly(resident);
}

function addStep() {
  const {batch, length} = fullBatch();
  const steps = run.options.gradient_accumulation_steps;
  const seconds = (kind, key) => plan.entries.find((e) =>
      e.kind === kind &&
      (kind === 'update' || e.batch === batch && e.length === length))
      ?.[key] ?? 0;
  const step = (key) => (steps - 1) * seconds('accumulate', key) +
      seconds('accumulate_last', key) + seconds('update', key);
  const rate = (time) => inFull(Math.round(steps * batch * length / time));
  const high = step('seconds'), low = step('seconds_low');
  addTile('Predicted step', inTime(high * 1e6) +
              (low ? ` to ${inTime(low * 1e6)}` : ''),
          `${low ? `${rate(low)} to ` : ''}${rate(high)} tokens/s of one rank`,
          'with full rows and the rates ' + (run.rates.is_assumed
              ? 'assumed for ' : 'measured on ') + ratesName() + (low
              ? '; the slower time assumes lower rates for GEMM, attention ' +
                  'and memory, and no overlap' : ''));
}

function addAdapter() {
  const {lora_r, lora_alpha, lora_dropout, use_rslora, lora_target_modules,
         lora_rank_pattern, modules_to_save,
         trainable_token_indices} = run.options;
  const targets = [lora_target_modules].flat().join(', ');
  const more = Object.keys(lora_rank_pattern).length;
  addTile('LoRA', `rank ${lora_r}, alpha ${lora_alpha}`,
          `on ${targets}` + (more ? `; ${several(more, 'other rank')}` : ''),
          [lora_dropout && `dropout ${lora_dropout}`,
           use_rslora && 'rank-stabilised',
           modules_to_save.length && `in full: ${modules_to_save.join(', ')}`,
           trainable_token_indices.length &&
               `rows of ${several(trainable_token_indices.length, 'token')}`]
              .filter(Boolean).join('; '));
}

function addFormats() {
  const {quantized, options, parameters} = run;
  const offloaded = plan.arenas.host; // bytes of frozen weights
  addTile('Base weights',
          quantized ? quantized.format : 'as in the files',
          quantized ? (quantized.double_quant ? 'double quantization, ' : '') +
              `blocks of ${quantized.block}` : '',
          quantized ? `${inShare(quantized.parameters,
                                 parameters)} of the parameters`
                    : '--load-in-4bit stores them in 4 bits',
          offloaded && `${inBytes(offloaded)} of them in host memory`);
  addTile('Computes in', options.compute_dtype,
          run.target === 'cuda' ? 'on NVIDIA GPUs (--target cuda)'
                                : 'on CPUs (--target cpu)',
          options.gradient_checkpointing && 'blocks are recomputed');
}

//---- Options ----------------------------------------------------------------

function optionText(value) {
  if (Array.isArray(value)) return value.join(',');
  return value !== null && typeof value === 'object' ? JSON.stringify(value)
                                                     : String(value);
}

// Shows an option in command line syntax.
function optionChip(name) {
  const value = run.options[name], isSize = name === 'memory_limit';
  const text = isSize ? inBytes(value).replace(kSpace, '') : optionText(value);
  const chip = make('code', '', `--${name.replaceAll('_', '-')}` +
                                    (value === true ? '' : ` ${text}`));
  if (isSize) chip.title = exactly(value);
  return chip;
}

function addOptions() {
  const count = run.set.length;
  byId('options-count').textContent = `${several(count, 'option')} that ${
      count === 1 ? 'is' : 'are'} not the default`;
  byId('options').append(...run.set.map(optionChip));
}

//---- Arenas -----------------------------------------------------------------

const colourBox = (name) => {
  const box = make('i');
  box.style.background = `var(--${name})`;
  return box;
};

function addPart(key, name, what, bytes, whole) {
  const part = make('div');
  part.style.flexGrow = bytes;
  part.style.background = `var(--${key})`;
  part.title = `${name}: ${inBytes(bytes)}`;
  byId('bar').append(part);
  const size = make('td', 'number', inBytes(bytes));
  size.title = exactly(bytes);
  byId('arenas').append(
      make('tr', '', make('td', '', colourBox(key), name),
           make('td', 'what', what), size,
           make('td', 'number', inShare(bytes, whole))));
}

function addArenas() {
  const {arenas, total_bytes: total} = plan;
  const limit = run.options.memory_limit, left = limit - total;
  for (const [key, name, what] of kArenas)
    if (arenas[key]) addPart(key, name, what, arenas[key], total);
  if (left > total / 200) {
    const free = make('div', 'free');
    free.style.flexGrow = left;
    free.title = `free within the limit: ${inBytes(left)}`;
    byId('bar').append(free);
  }
  const size = make('td', 'number', inBytes(total));
  size.title = exactly(total);
  byId('arenas').append(make('tr', 'total', make('td', '', 'the plan'),
                             make('td', 'what', left > 0
                                 ? `${inBytes(left)} free within the limit`
                                 : ''),
                             size, make('td', 'number', inShare(1, 1))));
  const onHost = [
    arenas.host && `${inBytes(arenas.host)} of frozen weights`,
    arenas.saved && `${inBytes(arenas.saved)} of offloaded activations`,
  ].filter(Boolean);
  byId('host').textContent = onHost.length
      ? `In pinned host memory: ${onHost.join(', and ')}.` : '';
}

//---- Rates ------------------------------------------------------------------

const ratesName = () => run.rates.device === 'default'
    ? `a server of ${several(run.rates.cores, 'core')}` : run.rates.device;

// Shows the rates behind the times, and how to measure better ones.
function addRates() {
  const {rates, target} = run;
  const rate = (key) => inFull(Number(rates[key].toPrecision(3)));
  const list = `GEMM ${rate('gemm_f32_gflops')} GFLOP/s in float32 and ${
      rate('gemm_bf16_gflops')} in bfloat16, memory ${
      rate('copy_gbps')} GB/s, NF4 decoded at ${rate('decode_gbps')} GB/s`;
  byId('rates').textContent = (rates.is_assumed
      ? `Every time on this page is predicted, not measured, from rates that ` +
          `are assumed for ${ratesName()}: ${list}.`
      : `Every time on this page is predicted from rates that were measured ` +
          `on ${ratesName()}: ${list}.`);
  const file = make('code', '', '--device-profile device.json');
  if (rates.is_assumed && target === 'cpu')
    byId('calibrate').append(
        'To use the rates of your machine, run ',
        make('code', '', 'qlora-run --calibrate'),
        ', which writes device.json, and compile with ', file, '.');
  if (rates.is_assumed && target === 'cuda')
    byId('calibrate').append(
        'For another GPU compile with ',
        make('code', '', '--device-profile'), ' and its name, or ', file,
        ' with your own rates.');
}

function writeHead() {
  const folder = (run.options.model_name_or_path || '').split('/')
      .filter(Boolean).pop();
  byId('summary').textContent = (folder ? `${folder}, ` : '') +
      `compiled on ${run.date}`;
  for (const add of [addModel, addBatch, addLimit, addResident, addStep,
                     addAdapter, addFormats, addOptions, addArenas, addRates])
    add();
}
