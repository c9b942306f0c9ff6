# SPDX-License-Identifier: MIT

"""A second implementation of dropout's random numbers: Philox4x32-10 (Salmon
et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), in numpy, from
the documentation of runtime/Kernels/Math/Philox.h.
"""

import numpy as np

from goldens import Failure


def rounds(counter, key):
    """Philox4x32-10; four words of counter, two of key, as uint64 arrays."""
    c, key = list(counter), list(key)
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        first = np.uint64(0xD2511F53) * c[0]
        second = np.uint64(0xCD9E8D57) * c[2]
        c = [(second >> np.uint64(32)) ^ c[1] ^ key[0], second & low,
             (first >> np.uint64(32)) ^ c[3] ^ key[1], first & low]
        key = [(key[0] + np.uint64(0x9E3779B9)) & low,
               (key[1] + np.uint64(0xBB67AE85)) & low]
    return c


def uniform(seed, micro_batch, op, rows, columns):
    """Returns Philox.h's qlora_uniform for a matrix, f32 [rows, columns]."""
    quads = np.arange((columns + 3) // 4, dtype=np.uint64)[None, :]
    row = np.arange(rows, dtype=np.uint64)[:, None]
    same = np.zeros((rows, quads.size), np.uint64)
    low = (1 << 32) - 1
    words = rounds(
        [quads + same, row + same, np.uint64(op & low) + same,
         np.uint64(micro_batch & low) + same],
        [np.uint64(seed & low), np.uint64(seed >> 32)])
    words = np.stack(words, axis=-1).reshape(rows, -1)[:, :columns]
    return (words >> np.uint64(8)).astype(np.float32) * np.float32(2.0**-24)


def mask(share, seed, micro_batch, op, shape):
    """Returns u8, 1 for kept values; `shape`: rows, columns."""
    random = uniform(seed, micro_batch, op, *shape)
    return (random >= np.float32(share)).astype(np.uint8)


def expect_share(what, hits, share):
    """Checks `hits`, booleans that are true with probability `share`, within
    six standard deviations."""
    limit = 6 * np.sqrt(share * (1 - share) / hits.size)
    if not abs(hits.mean() - share) <= limit:
        raise Failure(f"{what}: {hits.mean():.4f}, expected {share:.4f} within "
                      f"{limit:.1g}")


# Random123's known answers.
_ZEROS = rounds([np.zeros(1, np.uint64)] * 4, [np.uint64(0)] * 2)
assert [int(word[0]) for word in _ZEROS] == [
    0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
