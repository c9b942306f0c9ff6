# SPDX-License-Identifier: MIT
"""Answers of `qlora-data serve`, with an engine that gives prepared tokens."""

import os
import unittest

from fixtures import LLAMA3, QWEN_TOOLS, adds, byte_fallback, byte_level
from serving import CHAT, HI, TEXT, ServeTest

TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}


class ChatTest(ServeTest):
    def setUp(self):
        super().setUp()
        self.start()

    def test_an_answer(self):
        body = self.chat().body
        self.assertRegex(body.pop("id"), "^chatcmpl-[0-9a-f]{32}$")
        self.assertGreater(body.pop("created"), 1e9)
        self.assertEqual(body, {
            "object": "chat.completion", "model": "model",
            "usage": {"prompt_tokens": 12, "completion_tokens": 4,
                      "total_tokens": 16},
            "choices": [{"index": 0, "logprobs": None,
                         "finish_reason": "length", "message": {
                             "role": "assistant", "refusal": None,
                             "content": "hello world the user"}}]})
        request, = self.requests()
        self.assertEqual(self.decode(request["input_ids"]),
                         "<|im_start|>user\nhi<|im_end|>\n"
                         "<|im_start|>assistant\n")
        self.assertEqual(request["max_new_tokens"], 64)

    def test_a_stream(self):
        events = self.chat(stream=True, stream_options={
            "include_usage": True}).events
        self.assertEqual({event["object"] for event in events},
                         {"chat.completion.chunk"})
        self.assertEqual(len({event["id"] for event in events}), 1)
        *parts, last = events
        self.assertEqual((last["choices"], last["usage"]), ([], {
            "prompt_tokens": 12, "completion_tokens": 4, "total_tokens": 16}))
        choices = [event["choices"][0] for event in parts]
        self.assertEqual([choice["delta"] for choice in choices], [
            {"role": "assistant", "content": ""}, {"content": "hello"},
            {"content": " world"}, {"content": " the"}, {"content": " user"}])
        self.assertEqual([choice["finish_reason"] for choice in choices],
                         [None] * 4 + ["length"])
        self.assertEqual({str(event["usage"]) for event in parts}, {"None"})
        self.assertNotIn("usage", self.chat(stream=True).events[0])

    def test_log_probabilities(self):
        choice, = self.chat(logprobs=True, top_logprobs=2,
                            max_tokens=1).body["choices"]
        self.assertEqual(choice["logprobs"], {"refusal": None, "content": [{
            "token": "hello", "logprob": -0.5, "bytes": list(b"hello"),
            "top_logprobs": [
                {"token": token, "logprob": value, "bytes":
                 list(token.encode())} for token, value in (
                    ("<|endoftext|>", -1.0), ("<|im_start|>", -2.0))]}]})
        for count in (None, 0):
            choice, = self.chat(logprobs=True, top_logprobs=count,
                                stream=True).events[1]["choices"]
            self.assertEqual(choice["logprobs"]["content"], [{
                "token": "hello", "logprob": -0.5, "bytes": list(b"hello"),
                "top_logprobs": []}])
        self.assertEqual([request["logprobs"] for request in self.requests()],
                         [2, 1, 1])

    def test_parts_of_characters(self):
        self.end()
        self.script["answers"] = [self.tokens("日é")]
        self.start()
        events = self.chat(logprobs=True, stream=True).events[1:]
        steps = [step for event in events
                 for step in event["choices"][0]["logprobs"]["content"]]
        self.assertEqual(bytes(sum((step["bytes"] for step in steps), [])),
                         "日é".encode())
        self.assertGreater(len(steps), 2)
        self.assertTrue(steps[0]["token"].startswith("bytes:\\xe6"))
        self.assertEqual("".join(event["choices"][0]["delta"]["content"]
                                 for event in events), "日é")

    def test_choices(self):
        self.end()
        self.script["answers"] = list(map(self.tokens, (
            "hello world", "the user", "say")))
        self.start()
        choices = self.chat(n=3, seed=7).body["choices"]
        self.assertEqual([(choice["index"], choice["message"]["content"])
                          for choice in choices],
                         [(0, "hello world"), (1, "the user"), (2, "say")])
        self.assertEqual([request["seed"] for request in self.requests()],
                         [7, 8, 9])
        texts = ["", "", ""]
        for event in self.chat(n=3, stream=True).events:
            for choice in event["choices"]:
                texts[choice["index"]] += choice["delta"].get("content", "")
        self.assertEqual(texts, ["say"] * 3)

    def test_seeds(self):
        for seed in (-1, (1 << 64) - 1):
            self.chat(seed=seed)
        self.chat()
        self.chat()
        self.assertEqual([request["seed"] for request in self.requests()],
                         [(1 << 64) - 1, (1 << 64) - 1, 2, 3])

    def test_stop_strings_and_end_tokens(self):
        body = self.chat(stop="the").body
        self.assertEqual(body["choices"][0]["message"]["content"],
                         "hello world ")
        self.assertEqual(body["choices"][0]["finish_reason"], "stop")
        self.assertEqual(body["usage"]["completion_tokens"], 3)
        for event in self.chat(stop=["or", "x"], stream=True).events:
            self.assertNotIn("orld", str(event))
        self.wait_until_idle()
        self.end()
        self.script["answers"] = [self.tokens("hello<|im_end|>world")]
        self.start()
        for fields, text in (({}, "hello"), ({"ignore_eos": True},
                                             "helloworld")):
            choice, = self.chat(**fields).body["choices"]
            self.assertEqual(choice["message"]["content"], text)
        choice, = self.chat(logprobs=True).body["choices"]
        self.assertEqual([step["token"] for step in
                          choice["logprobs"]["content"]],
                         ["hello", "<|im_end|>"])

    def test_sampling(self):
        options = {"temperature": 0.5, "top_k": 5, "top_p": 0.5, "min_p": 0.1,
                   "repetition_penalty": 1.5, "presence_penalty": -1}
        self.chat(**options, max_completion_tokens=3, user="me", store=False,
                  metadata={}, frequency_penalty=0, logit_bias={}, n=None,
                  response_format={"type": "text"}, top_logprobs=None)
        request, = self.requests()
        for name, value in options.items():
            self.assertEqual(request[name], value)
        self.assertEqual(request["max_new_tokens"], 3)
        self.chat(top_k=-1)
        self.assertEqual(self.requests()[0]["top_k"], 0)

    def test_defaults_of_the_command_line(self):
        self.end()
        self.start("--temperature=0.25", "--max-new-tokens=2", "--stop=hello",
                   "--seed=40", "--system=the user", "--ignore-eos")
        choice, = self.chat().body["choices"]
        self.assertEqual((choice["message"]["content"],
                          choice["finish_reason"]), ("", "stop"))
        self.chat(temperature=1)
        self.text()
        one, two, text = (request for request in self.requests()
                          if "cancel" not in request)
        self.assertEqual((one["temperature"], one["max_new_tokens"],
                          one["seed"], one["eos_token_id"]), (0.25, 2, 40, []))
        self.assertEqual((two["temperature"], two["seed"]), (1, 41))
        self.assertIn("system\nthe user", self.decode(one["input_ids"]))
        self.assertEqual(self.decode(text["input_ids"]), "hi")

    def test_tools(self):
        self.end()
        self.make_model(QWEN_TOOLS)
        self.script["capacity"] = 256
        self.start()
        self.assertIn("answers are not searched for tool calls",
                      self.refused(CHAT, {"messages": HI, "tools": [TOOL]}))
        self.chat(tools=[TOOL], tool_choice="none")
        self.assertIn('"name": "add"',
                      self.decode(self.requests()[0]["input_ids"]))
        self.make_model(LLAMA3)
        self.end()
        self.start()
        self.assertIn("has no place for tools", self.refused(
            CHAT, {"messages": HI, "tools": [TOOL], "tool_choice": "none"}))

    def test_template_options(self):
        self.end()
        self.make_model("{{ mood }}{{ messages[0].content }}")
        self.start()
        self.chat(chat_template_kwargs={"mood": "say "}, messages=[
            {"role": "user", "content": [{"type": "text", "text": "the "},
                                         {"type": "text", "text": "user"}]}])
        self.assertEqual(self.decode(self.requests()[0]["input_ids"]),
                         "say the user")


class TextTest(ServeTest):
    def setUp(self):
        super().setUp()
        self.start()

    def test_an_answer(self):
        body = self.text("say").body
        self.assertEqual(body["object"], "text_completion")
        self.assertRegex(body["id"], "^cmpl-")
        self.assertEqual(body["choices"], [{
            "index": 0, "text": "hello world the user", "logprobs": None,
            "finish_reason": "length"}])
        request, = self.requests()
        self.assertEqual(request["input_ids"], self.tokens("say"))
        self.assertEqual(request["max_new_tokens"], 16)

    def test_prompts(self):
        self.end()
        self.script["answers"] = list(map(self.tokens, (
            "hello", "world", "the", "user")))
        self.start()
        ids = self.tokens("say")
        body = self.text(["say", "the"], n=2).body
        self.assertEqual([choice["text"] for choice in body["choices"]],
                         ["hello", "world", "the", "user"])
        self.assertEqual(body["usage"], {
            "prompt_tokens": len(ids) + 1, "completion_tokens": 5,
            "total_tokens": len(ids) + 6})
        self.requests()
        self.text(ids)
        self.text([ids, [5]])
        self.assertEqual([request["input_ids"] for request in self.requests()],
                         [ids, ids, [5]])

    def test_one_bos(self):
        self.end()
        self.make_model(tokenizer=adds(byte_level(), "<s> $A </s>"))
        self.start()
        for prompt in ("say", "<s>say", self.tokens("say")):
            self.text(prompt)
        self.assertEqual([self.decode(request["input_ids"])
                          for request in self.requests()],
                         ["<s>say", "<s>say", "say"])
        logprobs = self.text("say", echo=True, logprobs=0,
                             max_tokens=0).body["choices"][0]["logprobs"]
        self.assertEqual((logprobs["tokens"][0], logprobs["text_offset"][:2]),
                         ("<s>", [0, 0]))

    def test_echo(self):
        choice, = self.text("say", echo=True, max_tokens=1).body["choices"]
        self.assertEqual(choice["text"], "sayhello")
        for prompt in ("say", self.tokens("say")):
            body = self.text(prompt, echo=True, max_tokens=0).body
            self.assertEqual((body["choices"][0]["text"],
                              body["choices"][0]["finish_reason"],
                              body["usage"]["completion_tokens"]),
                             ("say", "length", 0))
        events = self.text("say", echo=True, stream=True).events
        self.assertEqual("".join(event["choices"][0]["text"]
                                 for event in events),
                         "sayhello world the user")

    def test_log_probabilities_of_the_prompt(self):
        # This is what lm-eval sends. It reads token_logprobs[context:-1].
        ids = self.tokens("say the 日 user")
        fields = {"echo": True, "logprobs": 1, "max_tokens": 1,
                  "temperature": 0, "seed": 1234}
        choice, = self.text([ids], **fields).body["choices"]
        found = choice["logprobs"]
        self.assertEqual(found["token_logprobs"],
                         [None] + [-0.5] * len(ids))
        self.assertIsNone(found["top_logprobs"][0])
        self.assertEqual(found["top_logprobs"][-1],
                         {"<|endoftext|>": -1.0, "hello": -0.5})
        self.assertEqual(found["tokens"][-1], "hello")
        text = choice["text"]
        self.assertEqual(text, "say the 日 userhello")
        for token, start, end in zip(found["tokens"], found["text_offset"],
                                     found["text_offset"][1:] + [len(text)]):
            if not token.startswith("bytes:"):
                self.assertEqual(text[start:end], token)
        self.assertEqual(found["text_offset"], sorted(found["text_offset"]))
        # The same in a stream.
        events = self.text([ids], stream=True, **fields).events
        for name, values in found.items():
            self.assertEqual(
                sum((event["choices"][0]["logprobs"][name]
                     for event in events), []), values)

    def test_spaces_of_sentencepiece(self):
        self.end()
        self.make_model(tokenizer=byte_fallback())
        self.script["answers"] = [self.tokenizer.encode("a b").ids]
        self.start()
        choice, = self.text("hi", echo=True, logprobs=0).body["choices"]
        # An answer to a text keeps the space at its start.
        self.assertEqual(choice["text"], "hi a b")
        self.assertEqual("".join(choice["logprobs"]["tokens"]), " hi a b")
        self.assertEqual(choice["logprobs"]["text_offset"],
                         [0, 0, 1, 2, 3, 4, 5])

    def test_equal_texts_of_tokens(self):
        logprobs = self.text("a", logprobs=2).body["choices"][0]["logprobs"]
        self.assertEqual([len(top) for top in logprobs["top_logprobs"]],
                         [3] * 4)
        self.end()
        self.script["answers"] = [[0, 1]]
        self.start()
        top = self.text("a", logprobs=2).body["choices"][0]["logprobs"][
            "top_logprobs"]
        self.assertEqual(top[0], {"<|endoftext|>": -1.0,
                                  "<|im_start|>": -2.0})


class ModelsTest(ServeTest):
    def names_of(self, requests):
        return [request.get("adapter", "absent") for request in requests]

    def test_the_base_alone(self):
        self.start()
        body = self.ask("/v1/models").body
        self.assertEqual(body["object"], "list")
        card, = body["data"]
        self.assertEqual((card["id"], card["object"], card["owned_by"],
                          card["max_model_len"]),
                         ("model", "model", "qlora", 64))
        self.assertEqual(self.ask("/v1/models/model").body, card)
        self.text()
        self.assertEqual(self.names_of(self.requests()), ["absent"])

    def test_adapters(self):
        self.script["adapters"] = ["one", "two"]
        self.start("--served-model-name=org/base")
        self.assertEqual(self.names, ["org/base", "one", "two"])
        self.assertEqual([card["id"] for card in
                          self.ask("/v1/models").body["data"]], self.names)
        self.assertEqual(self.ask("/v1/models/org/base").body["id"],
                         "org/base")
        for name in self.names:
            self.assertEqual(self.text(model=name).body["model"], name)
        self.assertEqual(self.names_of(self.requests()), [None, "one", "two"])
        for path, body in (("/v1/models/model", None), (TEXT, {"prompt": "a"})):
            response = self.ask(path, body, 404)
            self.assertEqual(response.error["code"], "model_not_found")
            self.assertEqual(response.error["message"], "no model is called "
                             "'model'. There are: org/base, one, two")

    def test_an_adapter_without_a_base(self):
        self.script.update(adapters=["one"], has_base=False)
        self.start()
        self.assertEqual(self.names, ["one"])
        self.text(model="one")
        self.assertEqual(self.names_of(self.requests()), ["absent"])

    def test_a_snapshot_of_the_hub(self):
        self.model = self.path("models--org--a--b", "snapshots", "0123")
        os.makedirs(self.model)
        self.make_model()
        self.start()
        self.assertEqual(self.names, ["org/a--b"])


if __name__ == "__main__":
    unittest.main()
