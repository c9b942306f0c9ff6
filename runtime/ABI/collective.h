/* SPDX-License-Identifier: MIT */

/* What ranks do together, and which of them: a part of the format of train.so
 * (module.h).
 */

#ifndef QLORA_RUNTIME_ABI_COLLECTIVE_H
#define QLORA_RUNTIME_ABI_COLLECTIVE_H

/* What the N ranks of a group do together, each with its own operands, which
 * have one element type. Sums are of f32, bf16, f16 or i32; all ranks have the
 * same bits, on a CPU those of a sum in the order of ranks. */
enum qlora_collective {
  QLORA_COLLECTIVE_ALL_REDUCE = 0, /* operand 0 := its sum over the ranks */
  QLORA_COLLECTIVE_ALL_GATHER = 1, /* operand 0, N pieces := operand 1 of every
                                      rank, in their order; operand 1 may be
                                      this rank's piece of operand 0 */
  QLORA_COLLECTIVE_REDUCE_SCATTER = 2, /* operand 0 := the sum of this rank's
                                          piece of everybody's operand 1 */
  QLORA_COLLECTIVE_BROADCAST = 3, /* operand 0 := that of the rank `peer` */
  QLORA_COLLECTIVE_ALL_TO_ALL = 4,/* piece r of operand 0 := this rank's piece
                                     of operand 1 of rank r */
  QLORA_COLLECTIVE_SEND = 5, /* operand 0 goes to the rank `peer` places on,
                                back where it is negative; the first rank of
                                the group follows the last one */
  QLORA_COLLECTIVE_RECV = 6, /* operand 0 := what the rank `peer` places on
                                sends, counted as for SEND */
  QLORA_COLLECTIVE_COUNT = 7
};

/* A group is an axis of the mesh of ranks, not a list of them. */
enum qlora_group {
  QLORA_GROUP_DP = 0,   /* all ranks, each of which has data, or a part of the
                           work, of its own; how many is chosen when a run
                           starts */
  QLORA_GROUP_FSDP = 1, /* the N ranks that follow each other and hold a base,
                           what is trained or what optimizers keep together
                           (`shards`, `trained_pieces` and `update_pieces` of the
                           module): of rank r those with the same r / N, and it
                           is number r % N of them */
  QLORA_GROUP_TP = 2,   /* the T ranks that follow each other and have the same
                           rows, of which each multiplies with its slices of the
                           weights (`tensor_ranks` of the module): of rank r
                           those with the same r / T, and it is number r % T */
  QLORA_GROUP_CP = 3,   /* the C ranks that follow each other and have the same
                           rows, of which each has a C-th of every line's tokens
                           (`context_ranks` of the module): of rank r those with
                           the same r / C, and it is number r % C. A group FSDP
                           beside it is of ranks that follow each other too, so
                           that one size divides the other; beside a group TP
                           of T ranks all these are T apart, and r stands for
                           r / T */
  QLORA_GROUP_PP = 4,   /* the S ranks that are the stages of one pipeline
                           (`stages` of the module), all with the same rows: of
                           W ranks those with the same r % (W / S), and rank r
                           is number r / (W / S), its stage. The other groups
                           but DP are of ranks of one stage */
  QLORA_GROUP_EP = 5,   /* the E ranks that follow each other, each of which has
                           rows of its own and an E-th of the experts of every
                           layer, for the rows of all (`expert_ranks` of the
                           module): of rank r those with the same r / E, and it
                           is number r % E. Groups FSDP and CP beside it are of
                           ranks that follow each other too, as above */
  QLORA_GROUP_REPLICAS = 6, /* of the ranks with the same number in their groups
                           FSDP, which hold the same pieces, those with the same
                           number in their groups TP, of all stages */
  QLORA_GROUP_COUNT = 7
};

#endif /* QLORA_RUNTIME_ABI_COLLECTIVE_H */
