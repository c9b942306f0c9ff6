// SPDX-License-Identifier: MIT

// The program dialect: the commands that the runtime executes, one op each.

#ifndef QLORA_DIALECTS_PROGRAM_PROGRAMOPS_TD
#define QLORA_DIALECTS_PROGRAM_PROGRAMOPS_TD

include "mlir/IR/AttrTypeBase.td"
include "mlir/IR/BuiltinAttributeInterfaces.td"
include "mlir/IR/EnumAttr.td"
include "mlir/IR/OpBase.td"
include "mlir/IR/SymbolInterfaces.td"
include "mlir/Interfaces/SideEffectInterfaces.td"

include "dialects/Enums.td"

def Program_Dialect : Dialect {
  let name = "program";
  let cppNamespace = "::qlora::program";
  let summary = "Buffers and commands: train.so in text";
  let description = [{
    ```
     model ──► train ──► program ──► train.so
                         ^^^^^^^
    ```

    There are no tensors. A `program.kernel` is a generated body (a row region)
    or the name of a Kernels.def op; a `program.entry` is a straight line of
    commands over `program.buffer`s. The ops and the command kinds of
    runtime/ABI/module.h are the same list:

    | op | command |
    |---|---|
    | `program.launch` | LAUNCH |
    | `program.fill` | FILL |
    | `program.copy` | COPY |
    | `program.collective` | COLLECTIVE |
    | `program.record`, `program.wait` | RECORD, WAIT |

    A buffer is in an arena. In `activation`, `saved` and `workspace` it has no
    offset until `plan-memory` assigns it.

    ```mlir
    program.kernel @matmul.onednn attributes {
        op = "matmul", implementation = "onednn"} {
    }
    program.entry accumulate batch 2 length 32 {
      %x = program.buffer activation bytes 16384 : f32
      %w = program.buffer frozen offset 0 bytes 8192 : bf16
      %y = program.buffer activation bytes 16384 : f32
      program.launch @matmul.onednn(%x read f32, %w read bf16, %y write f32)
          absent [3] constants [64, 64, 64, 64, 64, 64, 0, 1, 0, 0] rows 0
          label "model.layers.0.q_proj"
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

/// An enum with the values of the ABI's enum `abi`. Cases come from
/// runtime/ABI/Enums.def. DType lists its own cases; ProgramOps.cpp checks that
/// they equal enum qlora_dtype.
class Program_Enum<string name, string abi, list<I32EnumAttrCase> cases>
    : I32EnumAttr<name, "as enum " # abi, cases> {
  let cppNamespace = "::qlora::program";
  let genSpecializedAttr = 0;
}
class Program_EnumAttr<I32EnumAttr kind, string mnemonic>
    : EnumAttr<Program_Dialect, kind, mnemonic>;

def Program_Arena : Program_Enum<"Arena", "qlora_arena_kind", ABI_ArenaCases>;
def Program_ArenaAttr : Program_EnumAttr<Program_Arena, "arena">;

def Program_EntryKind
    : Program_Enum<"EntryKind", "qlora_entry_kind", ABI_EntryCases>;
def Program_EntryKindAttr : Program_EnumAttr<Program_EntryKind, "entry_kind">;

def Program_Access : Program_Enum<"Access", "qlora_access", ABI_AccessCases>;

def Program_DType : Program_Enum<"DType", "qlora_dtype", [
    I32EnumAttrCase<"F32", 0, "f32">,
    I32EnumAttrCase<"BF16", 1, "bf16">,
    I32EnumAttrCase<"F16", 2, "f16">,
    I32EnumAttrCase<"I32", 3, "i32">,
    I32EnumAttrCase<"NF4", 4, "nf4">,
    I32EnumAttrCase<"U8", 5, "u8">,
    I32EnumAttrCase<"I8", 6, "i8">,
    I32EnumAttrCase<"LLMInt8", 7, "llm_int8">,
    I32EnumAttrCase<"MXFP4", 8, "mxfp4">,
    I32EnumAttrCase<"FP4", 9, "fp4">,
    I32EnumAttrCase<"FP8", 10, "fp8">,
    I32EnumAttrCase<"Int4", 11, "int4">,
    I32EnumAttrCase<"Int8", 12, "int8">]>;
def Program_DTypeAttr : Program_EnumAttr<Program_DType, "dtype">;

def Program_Role : Program_Enum<"Role", "qlora_role", ABI_RoleCases>;
def Program_RoleAttr : Program_EnumAttr<Program_Role, "role">;

def Program_Init : Program_Enum<"Init", "qlora_init", ABI_InitCases>;
def Program_InitAttr : Program_EnumAttr<Program_Init, "init">;

def Program_Quantization
    : Program_Enum<"Quantization", "qlora_quantization", ABI_QuantizationCases>;
def Program_QuantizationAttr
    : Program_EnumAttr<Program_Quantization, "quantization">;

def Program_Queue : Program_Enum<"Queue", "qlora_queue", ABI_QueueCases>;
def Program_QueueAttr : Program_EnumAttr<Program_Queue, "queue">;
/// Queue of a command; printed only if it is not the compute queue.
defvar Program_ComputeQueue =
    DefaultValuedAttr<Program_QueueAttr, "Queue::Compute">;

def Program_Binding
    : Program_Enum<"Binding", "qlora_binding_kind", ABI_BindingCases>;
def Program_BindingAttr : Program_EnumAttr<Program_Binding, "binding">;

def Program_Collective
    : Program_Enum<"Collective", "qlora_collective", ABI_CollectiveCases>;
def Program_CollectiveAttr
    : Program_EnumAttr<Program_Collective, "collective">;

def Program_Group : Program_Enum<"Group", "qlora_group", ABI_GroupCases>;
def Program_GroupAttr : Program_EnumAttr<Program_Group, "group">;

def Program_ArenaOp : Program_Op<"arena"> {
  let summary = "an arena and its size";
  let description = [{
    (C1) only the optimizer state arena may be `on_host`: in pinned host memory,
    like the host arena.
  }];
  let arguments = (ins Program_ArenaAttr:$kind, I64Attr:$bytes,
                       I64Attr:$alignment, UnitAttr:$on_host);
  let assemblyFormat =
      "$kind `bytes` $bytes `alignment` $alignment attr-dict";
  let extraClassDeclaration = [{
    /// Whether the arena is in host memory instead of device memory.
    bool isOnHost() {
      return getOnHost() || getKind() == Arena::Host ||
             getKind() == Arena::Saved;
    }
  }];
  let hasVerifier = 1;
}

def Program_ParameterOp : Program_Op<"parameter"> {
  let summary = "one named tensor in an arena, as qlora_parameter";
  let description = [{
    The attributes are the fields of qlora_parameter in runtime/ABI/module.h.
  }];
  let arguments = (ins StrAttr:$name, Program_ArenaAttr:$arena,
    I64Attr:$offset, I64Attr:$bytes, DenseI64ArrayAttr:$shape,
    Program_DTypeAttr:$dtype, Program_RoleAttr:$role, Program_InitAttr:$init,
    Program_QuantizationAttr:$quantization, I64Attr:$block,
    BoolAttr:$double_quant, Program_DTypeAttr:$file_dtype,
    OptionalAttr<StrAttr>:$file, OptionalAttr<StrArrayAttr>:$parts,
    OptionalAttr<Program_DTypeAttr>:$format,
    DefaultValuedAttr<I64Attr, "0">:$piece,
    DefaultValuedAttr<I64Attr, "0">:$first,
    DefaultValuedAttr<I64Attr, "0">:$slices,
    DefaultValuedAttr<I64Attr, "0">:$slice_dimension,
    DefaultValuedAttr<DenseI64ArrayAttr, "{}">:$segments,
    UnitAttr:$decoded_scales);
  let assemblyFormat = [{
    $name $arena `offset` $offset `bytes` $bytes $shape `:` $dtype
    `from` $file_dtype $role `init` $init `quantization` $quantization
    (`to` $format^)? (`piece` $piece^)? (`first` $first^)? attr-dict
  }];
}

def Program_KernelOp : Program_Op<"kernel", [Symbol, IsolatedFromAbove,
                                             NoTerminator]> {
  let summary = "code that a launch can run";
  let description = [{
    (C1) either `op` names an op of Kernels.def, or the body is a row region.
    After select-kernels, `implementation` names a row of the op. Arguments and
    yield of a row region, `columns` and `maps` are as in `model.rows`.

    `dtypes`, `strides` and `groups` describe the buffers, inputs first, then
    results. A result that is yielded as f32 is one number per row. With C
    `columns`, a buffer of stride s and group size g has g rows of C elements in
    every s elements: row r starts at (r / g) * s + (r % g) * C. Every row
    starts at a multiple of `aligned` elements of its type, or of 16 bytes,
    whichever is less.
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
  let summary = "the commands of one function of train.so";
  let arguments = (ins Program_EntryKindAttr:$kind, I64Attr:$batch,
                       I64Attr:$length);
  let regions = (region SizedRegion<1>:$body);
  let assemblyFormat =
      "$kind `batch` $batch `length` $length attr-dict-with-keyword $body";
}

def Program_BindOp : Program_Op<"bind"> {
  let summary =
      "a buffer that the runtime writes before the entry or reads after it";
  let arguments = (ins Program_BindingAttr:$kind, Program_BufferType:$buffer);
  let assemblyFormat = "$kind $buffer attr-dict";
}

def Program_BufferOp : Program_Op<"buffer"> {
  let summary = "a range of an arena";
  let description = [{
    (C1) bytes is positive, and an offset is not negative. (C2) a buffer with
    several `pieces` has an offset.

    Attributes for the report:
    * `label`: the content;
    * `saved`: a forward value that the backward reads;
    * `backward`: a value of the backward;
    * `recomputed`: a forward value that the backward computes a second time.

    With several `pieces`, each rank of the group `pieces_of` has its own range
    of `bytes` bytes, in rank order. Each range starts `step` bytes (0: `bytes`)
    after the range before.
  }];
  let arguments = (ins Program_ArenaAttr:$arena,
    OptionalAttr<I64Attr>:$offset, I64Attr:$bytes, Program_DTypeAttr:$dtype,
    OptionalAttr<StrAttr>:$label, UnitAttr:$saved, UnitAttr:$backward,
    UnitAttr:$recomputed, DefaultValuedAttr<I64Attr, "1">:$pieces,
    DefaultValuedAttr<Program_GroupAttr, "Group::FSDP">:$pieces_of,
    DefaultValuedAttr<I64Attr, "0">:$step);
  let results = (outs Program_BufferType:$result);
  let assemblyFormat = [{
    $arena (`offset` $offset^)? `bytes` $bytes (`pieces` $pieces^)? `:` $dtype
    attr-dict
  }];
  let extraClassDeclaration = [{
    /// Bytes between the starts of consecutive ranges.
    int64_t getStepBytes() { return getStep() ? getStep() : getBytes(); }
    /// Bytes from the start of the first range to the end of the last.
    int64_t getSpanBytes() {
      return (getPieces() - 1) * getStepBytes() + getBytes();
    }
  }];
  let hasVerifier = 1;
  let builders = [OpBuilder<(ins "Arena":$arena,
      "std::optional<int64_t>":$offset, "int64_t":$bytes, "DType":$dtype,
      CArg<"::llvm::StringRef", "{}">:$label, CArg<"bool", "false">:$saved,
      CArg<"int64_t", "1">:$pieces)>];
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
    (C1) the kernel exists. (C2) one access (Access) and dtype (DType) per
    operand. `absent` lists the positions of absent operands of the library op.
  }];
  let arguments = (ins FlatSymbolRefAttr:$kernel,
    Variadic<Program_BufferType>:$operands, DenseI64ArrayAttr:$access,
    DenseI64ArrayAttr:$dtypes,
    DefaultValuedAttr<DenseI64ArrayAttr, "{}">:$absent,
    DenseI64ArrayAttr:$constants, I64Attr:$rows, StrAttr:$label,
    Program_ComputeQueue:$queue);
  let assemblyFormat = [{
    $kernel `` custom<Uses>($operands, $access, $dtypes) (`absent` $absent^)?
    `constants` $constants `rows` $rows `label` $label (`on` $queue^)? attr-dict
  }];
  let hasVerifier = 1;
}

def Program_FillOp : Program_Op<"fill"> {
  let summary = "zeros a buffer";
  let arguments = (ins Program_BufferType:$buffer,
                       Program_ComputeQueue:$queue);
  let assemblyFormat = "$buffer (`on` $queue^)? attr-dict";
}

def Program_CopyOp : Program_Op<"copy"> {
  let summary = "target := source";
  let description = [{
    With `behind` N the compute queue waits until all earlier copies to the
    arena `saved` are done, except the last N. Then their source memory may be
    overwritten.
  }];
  let arguments = (ins Program_BufferType:$target,
    Program_BufferType:$source, Program_ComputeQueue:$queue,
    OptionalAttr<I64Attr>:$behind);
  let assemblyFormat =
      "$target `from` $source (`on` $queue^)? (`behind` $behind^)? attr-dict";
}

def Program_CollectiveOp : Program_Op<"collective"> {
  let summary = "a collective of the ranks of a group";
  let description = [{
    Does what enum qlora_collective of runtime/ABI/module.h defines, with
    `target` for operand 0 and `source` for operand 1. `number` identifies the
    op in messages, for example the gradient bucket. All collectives run on the
    communication queue, so ranks agree on their order.

    (C1) all_gather, reduce_scatter and all_to_all have a source, others have
    none. (C2) target and source have one dtype; sums are f32, bf16, f16 or i32.
    (C3) the larger of the two is a multiple of the other; in all_to_all their
    sizes are equal. (C4) broadcast has a rank as `peer`; send and recv have the
    distance to the other stage, not 0; others have no peer.
  }];
  let arguments = (ins Program_CollectiveAttr:$kind, I64Attr:$number,
    Program_BufferType:$target, Optional<Program_BufferType>:$source,
    DefaultValuedAttr<I64Attr, "0">:$peer,
    DefaultValuedAttr<Program_GroupAttr, "Group::DP">:$group);
  let assemblyFormat = [{
    $kind $number $target (`from` $source^)? (`peer` $peer^)? (`over` $group^)?
    attr-dict
  }];
  let extraClassDeclaration = [{
    /// Returns how the command accesses the target; it only reads the source.
    Access getTargetAccess();
  }];
  let hasVerifier = 1;
}

def Program_RecordOp : Program_Op<"record"> {
  let summary = "signals an event when the queue reaches this command";
  let arguments = (ins I64Attr:$event, Program_QueueAttr:$queue);
  let assemblyFormat = "$event `on` $queue attr-dict";
}

def Program_WaitOp : Program_Op<"wait"> {
  let summary = "makes the queue wait for an event";
  let arguments = (ins I64Attr:$event, Program_QueueAttr:$queue);
  let assemblyFormat = "$event `on` $queue attr-dict";
}

#endif // QLORA_DIALECTS_PROGRAM_PROGRAMOPS_TD
