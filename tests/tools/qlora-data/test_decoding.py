# SPDX-License-Identifier: MIT
"""Text that is decoded token by token equals text that is decoded as a whole,
for tokenizers of each kind."""

import os
import random
import sys
import unittest

from fixtures import TOOL, byte_fallback, byte_level
from test_tokenizers import ModelsTest

sys.path.insert(0, os.path.dirname(os.path.realpath(TOOL)))

TEXTS = ["hello world", " the user\n\nsay  é日本 é", "日" * 9, "a", "\u200b🙂 🇩🇪 x",
         "x\ufffd y", "<s>hello </s> world<|im_end|> the", "don't , stop ."]


class DecodingTest(ModelsTest):
    def stream(self, decode, ids):
        from qlora_data.decoding import TextStream
        stream = TextStream(decode)
        parts = [stream.add(number) for number in ids]
        return parts, stream.finish()

    def check(self, tokenizer, seed):
        def decode(ids):
            return tokenizer.decode(ids, drops_special=True)

        for text in TEXTS:
            ids = tokenizer.encode([text])[0].ids
            parts, rest = self.stream(decode, ids)
            self.assertEqual("".join(parts) + rest, decode(ids), text)
            if "\ufffd" not in decode(ids):
                self.assertNotIn("\ufffd", "".join(parts))
        draw = random.Random(seed)
        for _ in range(50):
            ids = [draw.randrange(tokenizer.size()) for _ in range(6)]
            parts, rest = self.stream(decode, ids)
            # Decoders differ in what they make of bytes that are no UTF-8.
            if "\ufffd" not in decode(ids):
                self.assertEqual("".join(parts) + rest, decode(ids), ids)

    def test_tokenizers_of_models(self):
        for seed, case in enumerate(self.made["cases"]):
            self.put(case)
            with self.subTest(case["name"]):
                self.check(self.loaded(), seed)

    def test_bytes(self):
        for tokenizer in (byte_level(), byte_fallback()):
            self.make_model(tokenizer=tokenizer)
            self.check(self.loaded(), 7)

    def test_first_stop_string(self):
        from qlora_data.decoding import TextStream
        draw = random.Random(3)
        for _ in range(2000):
            found = []
            text = "".join(draw.choices("ab", k=draw.randrange(12)))
            stops = tuple("".join(draw.choices("ab", k=draw.randrange(1, 5)))
                          for _ in range(draw.randrange(3)))
            stream = TextStream("".join, stops)
            got, seen = "", ""
            while len(seen) < len(text) and not stream.has_stopped:
                got += stream.add(text[len(seen)])
                seen = text[:len(seen) + 1]
                found = [stop for stop in stops if stop in seen]
                self.assertEqual(stream.has_stopped, bool(found))
            got += stream.finish()
            self.assertEqual(got, seen[:min(map(seen.find, found))] if found
                             else text)


if __name__ == "__main__":
    unittest.main()
