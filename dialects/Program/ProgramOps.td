// SPDX-License-Identifier: MIT

// The program dialect: what the runtime executes, one op per ABI command.

#ifndef QLORA_DIALECTS_PROGRAM_PROGRAMOPS_TD
#define QLORA_DIALECTS_PROGRAM_PROGRAMOPS_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

def Program_Dialect : Dialect {
  let name = "program";
  let cppNamespace = "::qlora::program";
  let summary = "Buffers and commands: train.so in text";
  let description = [{
    ```
     model ──► train ──► program ──► train.so
                         ^^^^^^^
    ```

    No tensors are left. A `program.kernel` is a generated body (a row region)
    or the name of a Kernels.def op; a `program.entry` is a straight line of
    commands over `program.buffer`s. The ops and the command kinds of
    runtime/ABI/module.h are the same list:

    | op | command |
    |---|---|
    | `program.launch` | LAUNCH |
    | `program.fill` | FILL |
    | `program.copy` | COPY |
    | `program.all_reduce` | ALL_REDUCE |
    | `program.record`, `program.wait` | RECORD, WAIT |

    A buffer has an arena and, for `activation` and `workspace`, no offset
    until `plan-memory` gives it one.

    ```mlir
    program.entry accumulate batch 2 length 32 {
      %x = program.buffer activation bytes 16384 : f32
      %w = program.buffer frozen offset 0 bytes 8192 : bf16
      program.launch @matmul.onednn (%x read, %w read, %y write)
          constants [64, 64, ...] rows 0 label "model.layers.0.q_proj"
    }
    ```
  }];
  let useDefaultTypePrinterParser = 1;
  let useDefaultAttributePrinterParser = 1;
}

class Program_Op<string mnemonic, list<Trait> traits = []>
    : Op<Program_Dialect, mnemonic, traits>;

def Program_BufferType : TypeDef<Program_Dialect, "Buffer"> {
  let mnemonic = "buffer";
  let summary = "a range of an arena";
}

def Program_Arena : I32EnumAttr<"Arena", "as enum qlora_arena_kind", [
    I32EnumAttrCase<"Frozen", 0, "frozen">,
    I32EnumAttrCase<"Trainable", 1, "trainable">,
    I32EnumAttrCase<"Gradient", 2, "gradient">,
    I32EnumAttrCase<"Moment1", 3, "moment1">,
    I32EnumAttrCase<"Moment2", 4, "moment2">,
    I32EnumAttrCase<"Activation", 5, "activation">,
    I32EnumAttrCase<"Workspace", 6, "workspace">,
    I32EnumAttrCase<"Input", 7, "input">,
    I32EnumAttrCase<"Result", 8, "result">,
    I32EnumAttrCase<"Host", 9, "host">,
    I32EnumAttrCase<"Rounded", 10, "rounded">]> {
  let cppNamespace = "::qlora::program";
  let genSpecializedAttr = 0;
}
def Program_ArenaAttr : EnumAttr<Program_Dialect, Program_Arena, "arena">;

def Program_EntryKind : I32EnumAttr<"EntryKind", "as enum qlora_entry_kind", [
    I32EnumAttrCase<"Accumulate", 0, "accumulate">,
    I32EnumAttrCase<"AccumulateLast", 1, "accumulate_last">,
    I32EnumAttrCase<"Update", 2, "update">,
    I32EnumAttrCase<"Evaluate", 3, "evaluate">]> {
  let cppNamespace = "::qlora::program";
  let genSpecializedAttr = 0;
}
def Program_EntryKindAttr
    : EnumAttr<Program_Dialect, Program_EntryKind, "entry_kind">;

def Program_Access : I32EnumAttr<"Access", "as enum qlora_access", [
    I32EnumAttrCase<"Read", 1, "read">,
    I32EnumAttrCase<"Write", 2, "write">,
    I32EnumAttrCase<"ReadWrite", 3, "read_write">]> {
  let cppNamespace = "::qlora::program";
}

def Program_ArenaOp : Program_Op<"arena"> {
  let summary = "an arena and its size";
  let arguments = (ins Program_ArenaAttr:$kind, I64Attr:$bytes,
                       I64Attr:$alignment);
  let assemblyFormat =
      "$kind `bytes` $bytes `alignment` $alignment attr-dict";
}

def Program_ParameterOp : Program_Op<"parameter"> {
  let summary = "one named tensor in an arena, as qlora_parameter";
  let description = [{
    Attributes as the fields of qlora_parameter in runtime/ABI/module.h; the
    enumerations are numbers of that header.
  }];
  let arguments = (ins StrAttr:$name, Program_ArenaAttr:$arena,
    I64Attr:$offset, I64Attr:$bytes, DenseI64ArrayAttr:$shape,
    I64Attr:$dtype, I64Attr:$role, I64Attr:$init, I64Attr:$quantization,
    I64Attr:$block, BoolAttr:$double_quant, I64Attr:$file_dtype,
    OptionalAttr<StrAttr>:$file);
  let assemblyFormat =
      "$name $arena `offset` $offset `bytes` $bytes $shape attr-dict";
}

def Program_KernelOp : Program_Op<"kernel", [Symbol, IsolatedFromAbove,
                                             NoTerminator]> {
  let summary = "something a launch can run";
  let description = [{
    (C1) either `op` names an op of Kernels.def (and, after select-kernels,
    `implementation` a row of it), or the body is a row region: arguments and
    yield as in `model.rows`, whose `columns` and `maps` it carries;
    `dtypes`, `strides` and `groups` describe the buffers: inputs first, then
    results; one that is yielded as f32 is a number per row. A buffer with row stride s and g rows of C per s elements has
    row r at (r / g) * s + (r % g) * C. Every row starts at a multiple of
    `aligned` elements of its type, or of 16 bytes, whichever is less.
  }];
  let arguments = (ins SymbolNameAttr:$sym_name, OptionalAttr<StrAttr>:$op,
    OptionalAttr<StrAttr>:$implementation, OptionalAttr<I64Attr>:$columns,
    OptionalAttr<ArrayAttr>:$maps, OptionalAttr<DenseI64ArrayAttr>:$dtypes,
    OptionalAttr<DenseI64ArrayAttr>:$strides,
    OptionalAttr<DenseI64ArrayAttr>:$groups,
    DefaultValuedAttr<I64Attr, "1">:$aligned);
  let regions = (region AnyRegion:$body);
  let assemblyFormat = "$sym_name attr-dict-with-keyword $body";
  let hasVerifier = 1;
}

def Program_EntryOp : Program_Op<"entry", [IsolatedFromAbove, NoTerminator,
                                           SingleBlock]> {
  let summary = "a range of commands";
  let arguments = (ins Program_EntryKindAttr:$kind, I64Attr:$batch,
                       I64Attr:$length);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat =
      "$kind `batch` $batch `length` $length attr-dict-with-keyword $body";
}

def Program_BindOp : Program_Op<"bind"> {
  let summary = "a buffer that the runtime writes before or reads after";
  let description = [{
    `kind` is enum qlora_binding_kind of runtime/ABI/module.h.
  }];
  let arguments = (ins I64Attr:$kind, Program_BufferType:$buffer);
  let assemblyFormat = "$kind $buffer attr-dict";
}

def Program_BufferOp : Program_Op<"buffer"> {
  let summary = "a range of an arena";
  let description = [{
    (C1) bytes is positive, and an offset is not negative. For the report,
    `label` says what it holds, `saved` marks a forward value that the backward
    reads, `backward` one that the backward makes, and `recomputed` one that it
    makes a second time.
  }];
  let arguments = (ins Program_ArenaAttr:$arena,
    OptionalAttr<I64Attr>:$offset, I64Attr:$bytes, I64Attr:$dtype,
    OptionalAttr<StrAttr>:$label, UnitAttr:$saved, UnitAttr:$backward,
    UnitAttr:$recomputed);
  let results = (outs Program_BufferType:$result);
  let assemblyFormat =
      "$arena (`offset` $offset^)? `bytes` $bytes `dtype` $dtype attr-dict";
  let hasVerifier = 1;
  let builders = [OpBuilder<(ins "Arena":$arena,
      "std::optional<int64_t>":$offset, "int64_t":$bytes, "int64_t":$dtype,
      CArg<"::llvm::StringRef", "{}">:$label, CArg<"bool", "false">:$saved)>];
}

def Program_ViewOp : Program_Op<"view", [Pure]> {
  let summary = "part of a buffer";
  let description = "(C1) offset + bytes is within the buffer.";
  let arguments = (ins Program_BufferType:$source, I64Attr:$offset,
                       I64Attr:$bytes);
  let results = (outs Program_BufferType:$result);
  let assemblyFormat =
      "$source `offset` $offset `bytes` $bytes attr-dict";
  let hasVerifier = 1;
  let builders = [OpBuilder<(ins "::mlir::Value":$source, "int64_t":$offset,
                                 "int64_t":$bytes)>];
}

def Program_LaunchOp : Program_Op<"launch",
    [DeclareOpInterfaceMethods<SymbolUserOpInterface>]> {
  let summary = "runs a kernel";
  let description = [{
    (C1) the kernel exists. (C2) one access (enum qlora_access) and dtype
    (enum qlora_dtype) per operand. `absent` lists operand positions of the
    library op that are not there. `queue` is enum qlora_queue.
  }];
  let arguments = (ins FlatSymbolRefAttr:$kernel,
    Variadic<Program_BufferType>:$operands, DenseI64ArrayAttr:$access,
    DenseI64ArrayAttr:$dtypes, DenseI64ArrayAttr:$absent,
    DenseI64ArrayAttr:$constants, I64Attr:$rows, StrAttr:$label,
    DefaultValuedAttr<I64Attr, "0">:$queue);
  let assemblyFormat = [{
    $kernel `(` $operands `)` `access` $access `constants` $constants
    `rows` $rows `label` $label attr-dict
  }];
  let hasVerifier = 1;
}

def Program_FillOp : Program_Op<"fill"> {
  let summary = "zeros a buffer";
  let arguments = (ins Program_BufferType:$buffer,
                       DefaultValuedAttr<I64Attr, "0">:$queue);
  let assemblyFormat = "$buffer attr-dict";
}

def Program_CopyOp : Program_Op<"copy"> {
  let summary = "target := source";
  let arguments = (ins Program_BufferType:$target,
    Program_BufferType:$source, DefaultValuedAttr<I64Attr, "0">:$queue);
  let assemblyFormat = "$target `from` $source attr-dict";
}

def Program_AllReduceOp : Program_Op<"all_reduce"> {
  let summary = "sums a buffer over all ranks";
  let arguments = (ins I64Attr:$bucket, Program_BufferType:$buffer,
                       DefaultValuedAttr<I64Attr, "1">:$queue);
  let assemblyFormat = "$bucket $buffer attr-dict";
}

def Program_RecordOp : Program_Op<"record"> {
  let summary = "an event happens when this queue gets here";
  let arguments = (ins I64Attr:$event, I64Attr:$queue);
  let assemblyFormat = "$event `on` $queue attr-dict";
}

def Program_WaitOp : Program_Op<"wait"> {
  let summary = "this queue waits for an event";
  let arguments = (ins I64Attr:$event, I64Attr:$queue);
  let assemblyFormat = "$event `on` $queue attr-dict";
}

#endif // QLORA_DIALECTS_PROGRAM_PROGRAMOPS_TD
