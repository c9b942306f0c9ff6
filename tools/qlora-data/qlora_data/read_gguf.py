# SPDX-License-Identifier: MIT

"""Reads a GGUF file for read_back.py: its tensors with the package gguf, and
its loss with llama.cpp, from llama-cpp-python or from xllamacpp.

xllamacpp's library has llama.cpp's C functions, but its Python interface has no
logits. The functions are called here, with the structures of the tested build.
"""

import ctypes
import hashlib
import importlib.metadata
import importlib.util
import json

import numpy as np

# Tokens that llama.cpp computes at a time. Bounds the memory of logits.
CHUNK = 256
F32 = 0            # ggml_type
NO_FLASH = 0       # llama_flash_attn_type; flash attention rounds to f16
UNLABELLED = -100


def read(path, rows, digests, base):
    """Returns the fields that read_back.py prints. `base`: GGUF file of the
    model, if `path` is an adapter."""
    with open(digests, encoding="utf-8") as file:
        equal, different = compare(path, json.load(file))
    reader = f"gguf {importlib.metadata.version('gguf')}"
    result = {"tensors": equal, "different": different, "loss": None}
    library, name = find_llama()
    if library is None:
        return {**result, "reader": reader, "unmeasured": name}
    with Llama(library, base or path, base and path, rows) as model:
        loss = loss_of(model, rows)
    return {**result, "reader": f"{reader}, {name}", "loss": loss}


def compare(path, digests):
    """Counts the tensors whose values have the digests. Returns also the names
    of the others."""
    import gguf
    equal, different, missing = 0, [], set(digests)
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        values = np.ascontiguousarray(values, dtype=np.float32)
        missing.discard(tensor.name)
        if hashlib.sha256(values.data).hexdigest() \
                == digests.get(tensor.name):
            equal += 1
        else:
            different.append(tensor.name)
    return equal, different + sorted(missing)


def loss_of(model, rows):
    """Returns the mean loss over labelled tokens, row by row."""
    total, count = 0.0, 0
    for row in rows:
        ids, labels = row["input_ids"], row["labels"]
        # The logits at a token are those of the next one.
        wanted = {place - 1: label for place, label in enumerate(labels)
                  if place and label != UNLABELLED}
        for place, logits in model.logits(ids, wanted):
            scores = logits.astype(np.float64)
            scores -= scores.max()
            total += np.log(np.exp(scores).sum()) - scores[wanted[place]]
            count += 1
    return total / count


# llama.cpp ------------------------------------------------------------------

LogCallback = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p,
                               ctypes.c_void_p)


class Batch(ctypes.Structure):
    """llama_batch."""
    _fields_ = [("n_tokens", ctypes.c_int32),
                ("token", ctypes.POINTER(ctypes.c_int32)),
                ("embd", ctypes.POINTER(ctypes.c_float)),
                ("pos", ctypes.POINTER(ctypes.c_int32)),
                ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
                ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
                ("logits", ctypes.POINTER(ctypes.c_int8))]


class ModelParameters(ctypes.Structure):
    """llama_model_params: only the fields below are used. The rest of the
    structure is smaller than `rest`."""
    _fields_ = [("devices", ctypes.c_void_p),
                ("tensor_buft_overrides", ctypes.c_void_p),
                ("n_gpu_layers", ctypes.c_int32),
                ("rest", ctypes.c_uint8 * 492)]


class ContextParameters(ctypes.Structure):
    """llama_context_params: its last fields are in `rest`."""
    _fields_ = [(name, ctypes.c_uint32) for name in
                ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq",
                 "n_outputs_max", "n_outputs_max_per_seq")] + [
                (name, ctypes.c_int32) for name in
                ("n_threads", "n_threads_batch", "ctx_type",
                 "rope_scaling_type", "pooling_type", "attention_type",
                 "flash_attn_type")] + [
                (name, ctypes.c_float) for name in
                ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor",
                 "yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")] + [
                ("yarn_orig_ctx", ctypes.c_uint32),
                ("defrag_thold", ctypes.c_float),
                ("cb_eval", ctypes.c_void_p),
                ("cb_eval_user_data", ctypes.c_void_p),
                ("type_k", ctypes.c_int32), ("type_v", ctypes.c_int32),
                ("rest", ctypes.c_uint8 * 400)]


# Values of llama_context_default_params() by which the structure is known.
KNOWN = {"n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1,
         "rope_scaling_type": -1, "pooling_type": -1, "attention_type": -1,
         "flash_attn_type": -1, "rope_freq_base": 0, "yarn_ext_factor": -1,
         "defrag_thold": -1, "type_k": 1, "type_v": 1}


def find_llama():
    """Returns llama.cpp's functions and the name of their package. Without
    them: None and the reason."""
    def is_there(name):
        return importlib.util.find_spec(name) is not None
    if is_there("llama_cpp"):
        import llama_cpp
        return llama_cpp, ("llama-cpp-python "
                           f"{importlib.metadata.version('llama-cpp-python')}")
    if not is_there("xllamacpp"):
        return None, "not installed: llama_cpp or xllamacpp"
    name = f"xllamacpp {importlib.metadata.version('xllamacpp')}"
    library = declared(importlib.util.find_spec("xllamacpp.xllamacpp").origin)
    defaults = library.llama_context_default_params()
    if any(getattr(defaults, field) != value
           for field, value in KNOWN.items()):
        return None, f"{name} has an unknown version of llama.cpp"
    return library, name


def declared(path):
    """Opens a library, and declares the functions that are used."""
    library = ctypes.CDLL(path)
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    for name, result, arguments in (
            ("llama_backend_init", None, ()),
            ("llama_log_set", None, (LogCallback, pointer)),
            ("llama_model_default_params", ModelParameters, ()),
            ("llama_context_default_params", ContextParameters, ()),
            ("llama_model_load_from_file", pointer,
             (ctypes.c_char_p, ModelParameters)),
            ("llama_init_from_model", pointer, (pointer, ContextParameters)),
            ("llama_model_get_vocab", pointer, (pointer,)),
            ("llama_vocab_n_tokens", number, (pointer,)),
            ("llama_adapter_lora_init", pointer, (pointer, ctypes.c_char_p)),
            ("llama_set_adapters_lora", number,
             (pointer, ctypes.POINTER(pointer), ctypes.c_size_t,
              ctypes.POINTER(ctypes.c_float))),
            ("llama_get_memory", pointer, (pointer,)),
            ("llama_memory_clear", None, (pointer, ctypes.c_bool)),
            ("llama_batch_init", Batch, (number, number, number)),
            ("llama_batch_free", None, (Batch,)),
            ("llama_decode", number, (pointer, Batch)),
            ("llama_get_logits_ith", ctypes.POINTER(ctypes.c_float),
             (pointer, number)),
            ("llama_free", None, (pointer,)),
            ("llama_model_free", None, (pointer,))):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


class Llama:
    """A model on the CPU, with a cache of float32."""

    def __init__(self, library, path, adapter, rows):
        self._library = library
        self._listener = LogCallback(self._remember)
        self._messages = []
        library.llama_backend_init()
        library.llama_log_set(self._listener, None)
        parameters = library.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self._model = self._checked(library.llama_model_load_from_file(
            path.encode(), parameters))
        parameters = library.llama_context_default_params()
        parameters.n_ctx = max(len(row["input_ids"]) for row in rows)
        parameters.n_batch = parameters.n_ubatch = CHUNK
        parameters.type_k = parameters.type_v = F32
        parameters.flash_attn_type = NO_FLASH
        self._context = self._checked(library.llama_init_from_model(
            self._model, parameters))
        if adapter:
            self._apply(adapter)
        self.vocabulary = library.llama_model_get_vocab(self._model)
        self._width = library.llama_vocab_n_tokens(self.vocabulary)
        self._batch = library.llama_batch_init(CHUNK, 0, 1)

    def _remember(self, level, text, _data):
        if level >= 3:  # warnings and errors
            self._messages.append(text.decode(errors="replace").strip())

    def _checked(self, result):
        if not result:
            raise RuntimeError("llama.cpp: " + " ".join(self._messages[-3:]))
        return result

    def _apply(self, path):
        adapter = self._checked(
            self._library.llama_adapter_lora_init(self._model, path.encode()))
        # llama-cpp-python has a type for the pointer.
        kind = ctypes.c_void_p if isinstance(adapter, int) else type(adapter)
        if self._library.llama_set_adapters_lora(
                self._context, (kind * 1)(adapter), 1, (ctypes.c_float * 1)(1)):
            raise RuntimeError("llama.cpp cannot apply the adapter")

    def logits(self, ids, wanted):
        """Yields (place, logits) of the wanted places."""
        self._library.llama_memory_clear(
            self._library.llama_get_memory(self._context), True)
        for first in range(0, len(ids), CHUNK):
            places = range(first, min(first + CHUNK, len(ids)))
            self._decode(ids, places, wanted)
            for place in places:
                if place in wanted:
                    values = self._library.llama_get_logits_ith(
                        self._context, place - first)
                    yield place, np.ctypeslib.as_array(values, (self._width,))

    def _decode(self, ids, places, wanted):
        batch = self._batch
        batch.n_tokens = len(places)
        for i, place in enumerate(places):
            batch.token[i], batch.pos[i] = ids[place], place
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = place in wanted
        if self._library.llama_decode(self._context, batch):
            raise RuntimeError("llama.cpp cannot compute a row: "
                               + " ".join(self._messages[-3:]))

    def __enter__(self):
        return self

    def __exit__(self, *_error):
        self._library.llama_batch_free(self._batch)
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)
