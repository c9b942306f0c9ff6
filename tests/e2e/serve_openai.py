# SPDX-License-Identifier: MIT

"""serve_openai.py URL: asks a server with the official `openai` package.
Reads expectations as JSON from standard input, and fails if an answer differs.
serve_clients.py runs it in an environment that has the package."""

import asyncio
import json
import sys

import openai

URL = sys.argv[1] + "/v1"
KEY = "secret"
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0)


def equal(found, expected):
    if found != expected:
        raise SystemExit(f"got {found!r}, but expected {expected!r}")


def close(found, expected):
    if len(found) != len(expected) or any(
            abs(one - other) > 1e-4 for one, other in zip(found, expected)):
        raise SystemExit(f"got {found}, but expected {expected}")


def raises(kind, status, call):
    try:
        call()
    except kind as error:
        equal(error.status_code, status)
        return error
    raise SystemExit(f"no {kind.__name__}")


def check_chat(row):
    def create(**options):
        return client.chat.completions.create(
            model="base", max_completion_tokens=row["count"], messages=[
                {"role": "user", "content": row["question"]}], **options)

    answer = create(logprobs=True, top_logprobs=3)
    choice, = answer.choices
    equal(choice.message.content, row["text"])
    equal(choice.finish_reason, row["finish"])
    equal((answer.usage.prompt_tokens, answer.usage.completion_tokens),
          (row["prompt_tokens"], len(row["log_probs"])))
    close([step.logprob for step in choice.logprobs.content],
          row["log_probs"])
    for step in choice.logprobs.content:
        equal(step.top_logprobs[0].token, step.token)
        equal(bytes(step.bytes).decode(), step.token)
    text, events = "", list(create(stream=True, stream_options={
        "include_usage": True}))
    equal(events[0].choices[0].delta.role, "assistant")
    for event in events[:-1]:
        text += event.choices[0].delta.content or ""
    equal(text, row["text"])
    equal(events[-2].choices[0].finish_reason, row["finish"])
    equal(events[-1].usage, answer.usage)


def check_texts(rows):
    answer = client.completions.create(
        model="base", prompt=[row["prompt"] for row in rows],
        max_tokens=rows[0]["count"], echo=True, logprobs=0)
    for choice, row in zip(answer.choices, rows, strict=True):
        equal(choice.text, row["prompt_text"] + row["text"])
        # The first token has none.
        equal(choice.logprobs.token_logprobs[0], None)
        close(choice.logprobs.token_logprobs[1:],
              row["prompt_log_probs"] + row["log_probs"])
    row = rows[0]
    one, two = (client.completions.create(
        model="base", prompt=row["prompt_text"], n=3, seed=seed,
        temperature=2, max_tokens=16).choices for seed in (5, 6))
    equal(len({choice.text for choice in one}), 3)
    equal([choice.text for choice in one[1:]],
          [choice.text for choice in two[:2]])
    stop = row["text"][3:6]
    choice, = client.completions.create(
        model="base", prompt=row["prompt"], stop=stop, max_tokens=64).choices
    equal((choice.text, choice.finish_reason),
          (row["text"][:row["text"].index(stop)], "stop"))


def check_errors():
    def create(**options):
        return client.completions.create(
            **{"model": "base", "prompt": "a", **options})

    raises(openai.NotFoundError, 404, lambda: create(model="none"))
    raises(openai.NotFoundError, 404, lambda: client.models.retrieve("none"))
    error = raises(openai.BadRequestError, 400,
                   lambda: create(frequency_penalty=1))
    equal((error.param, error.type), ("frequency_penalty",
                                      "invalid_request_error"))
    raises(openai.BadRequestError, 400, lambda: create(max_tokens=10000))
    raises(openai.NotFoundError, 404, lambda: client.embeddings.create(
        model="base", input="a"))
    other = openai.OpenAI(base_url=URL, api_key="wrong", max_retries=0)
    raises(openai.AuthenticationError, 401, other.models.list)


async def check_many(rows):
    """Asks everything at once, and leaves some streams early."""
    async with openai.AsyncOpenAI(base_url=URL, api_key=KEY) as many:
        async def whole(row):
            answer = await many.completions.create(
                model="base", prompt=row["prompt"], max_tokens=row["count"])
            equal(answer.choices[0].text, row["text"])

        async def left(row):
            stream = await many.completions.create(
                model="base", prompt=row["prompt"], max_tokens=200,
                stream=True, extra_body={"ignore_eos": True})
            async for _ in stream:
                break
            await stream.close()

        await asyncio.gather(*(ask(row) for row in rows * 8
                               for ask in (whole, left)))


def main():
    expected = json.load(sys.stdin)
    equal([model.id for model in client.models.list()], ["base"])
    equal(client.models.retrieve("base").owned_by, "qlora")
    for row in expected["chats"]:
        check_chat(row)
    check_texts(expected["texts"])
    check_errors()
    asyncio.run(check_many(expected["texts"]))
    print(f"openai {openai.__version__}: {len(expected['chats'])} chats and "
          f"{len(expected['texts'])} texts are equal")


if __name__ == "__main__":
    main()
