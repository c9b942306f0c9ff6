# SPDX-License-Identifier: MIT
"""The data step: JSONL rows in, token ids and labels out (see README.md)."""
