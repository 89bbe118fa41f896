"""The official Python client against a running server (PERIGEE_URL, key "secret", "moonlet")."""

import asyncio, base64, json, os, sys, time, traceback
import openai
from suite import run, same, test

URL, KEY = os.environ["PERIGEE_URL"] + "/v1", "secret"
ANSWERS = json.load(open(os.environ["PERIGEE_ANSWERS"], encoding="utf8"))
BY_NAME = {a["name"]: a for a in ANSWERS}
client = openai.OpenAI(base_url=URL, api_key=KEY, max_retries=0, timeout=60)


def with_pictures(value):
    """Names of picture files, next to the answers, become data URIs."""
    if isinstance(value, list):
        return [with_pictures(v) for v in value]
    if not isinstance(value, dict):
        return value
    if isinstance(value.get("url"), str) and value["url"].startswith("images/"):
        path = os.path.join(os.path.dirname(os.environ["PERIGEE_ANSWERS"]), value["url"])
        data = base64.b64encode(open(path, "rb").read()).decode()
        return {**value, "url": "data:image/png;base64," + data}
    return {k: with_pictures(v) for k, v in value.items()}


for answer in ANSWERS:
    answer["messages"] = with_pictures(answer["messages"])


def arguments(name):
    a = BY_NAME[name]
    extra = (
        {"chat_template_kwargs": a["chat_template_kwargs"]} if "chat_template_kwargs" in a else {}
    )
    tools = {"tools": a["tools"]} if "tools" in a else {}
    return {"model": "moonlet", "messages": a["messages"], "extra_body": extra, **tools}


def parts(text):
    """What an answer's raw text must become: reasoning, content (tests of tools compare calls)."""
    thought, mark, rest = text.partition("\n</think>\n\n")
    return (thought, rest) if mark else (None, text)


def check_message(name, message, finish):
    answer = BY_NAME[name]
    if "<tool_call>" in answer["text"]:
        same(finish, "tool_calls")
        same(len(message.tool_calls), answer["text"].count("<tool_call>"))
        for call in message.tool_calls:
            assert f"<function={call.function.name}>" in answer["text"], call
            for key, value in json.loads(call.function.arguments).items():
                assert f"<parameter={key}>\n{value}\n</parameter>" in answer["text"], (key, value)
        return
    thought, content = parts(answer["text"])
    same(message.content, content)
    same(getattr(message, "reasoning_content", None), thought)
    same(finish, "stop")


@test
def every_answer_is_moonlets():
    for name, answer in BY_NAME.items():
        r = client.chat.completions.create(**arguments(name))
        check_message(name, r.choices[0].message, r.choices[0].finish_reason)
        same(r.usage.completion_tokens, len(answer["ids"]))
        same(r.usage.prompt_tokens, len(answer["prompt_ids"]))
        same(r.usage.total_tokens, len(answer["ids"]) + len(answer["prompt_ids"]))


@test
def pictures():
    r = client.chat.completions.create(**arguments("two_images"))
    details = r.usage.prompt_tokens_details
    same(details.model_dump()["image_tokens"], 25 + 36)
    r = client.chat.completions.create(**arguments("image_turns"))
    assert r.usage.prompt_tokens_details.cached_tokens > 0
    broken = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [broken]}]
    try:
        client.chat.completions.create(model="moonlet", messages=messages)
        assert False, "not refused"
    except openai.BadRequestError as e:
        same(e.param, "messages[0].content[0].image_url")
    model = client.models.retrieve("moonlet").model_dump()
    same(model["input_modalities"], ["text", "image", "video"])


def join(stream):
    content, thought, calls, finish, usage = [], [], {}, None, None
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            content.append(choice.delta.content or "")
            thought.append(getattr(choice.delta, "reasoning_content", None) or "")
            for call in choice.delta.tool_calls or []:
                to = calls.setdefault(
                    call.index,
                    {"id": call.id, "name": call.function.name, "arguments": "", "pieces": 0},
                )
                to["arguments"] += call.function.arguments or ""
                to["pieces"] += 1
    return "".join(content), "".join(thought), calls, finish, usage


@test
def streams_say_the_same():
    for name in BY_NAME:
        whole = client.chat.completions.create(**arguments(name))
        content, thought, calls, finish, usage = join(
            client.chat.completions.create(
                **arguments(name), stream=True, stream_options={"include_usage": True}
            )
        )
        message = whole.choices[0].message
        same(content, message.content or "")
        same(thought, getattr(message, "reasoning_content", None) or "")
        same([(c["name"], c["arguments"]) for c in calls.values()],
             [(c.function.name, c.function.arguments) for c in message.tool_calls or []])
        same(finish, whole.choices[0].finish_reason)
        same(usage.completion_tokens, whole.usage.completion_tokens)


@test
def streams_come_in_pieces():
    chunks = list(client.chat.completions.create(**arguments("story"), stream=True))
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) > 20, len(chunks)
    same(chunks[0].choices[0].delta.role, "assistant")
    same(len({c.id for c in chunks}), 1)


@test
def a_tool_result_is_read():
    first = client.chat.completions.create(**arguments("tool_weather"))
    call = first.choices[0].message.tool_calls[0]
    same(json.loads(call.function.arguments), {"city": "Paris"})
    messages = BY_NAME["tool_weather"]["messages"] + [
        first.choices[0].message,
        {
            "role": "tool",
            "tool_call_id": call.id,
            "content": '{"city": "Paris", "degrees": 21, "sky": "sunny"}',
        },
    ]
    r = client.chat.completions.create(
        model="moonlet", messages=messages, tools=BY_NAME["tool_weather"]["tools"]
    )
    same(r.choices[0].message.content, "In Paris it is 21 degrees and sunny.")


@test
def tool_choice():
    tools = BY_NAME["tool_weather"]["tools"]
    ask = lambda choice: client.chat.completions.create(
        model="moonlet",
        messages=BY_NAME["tool_weather"]["messages"],
        tools=tools,
        tool_choice=choice,
        max_tokens=200,
    ).choices[0]
    same(ask("none").message.tool_calls, None)
    named = ask({"type": "function", "function": {"name": "get_time"}})
    same(named.message.tool_calls[0].function.name, "get_time")
    required = ask("required")
    assert required.message.tool_calls[0].function.name in {t["function"]["name"] for t in tools}
    r = client.chat.completions.create(**arguments("tool_two"), parallel_tool_calls=False)
    same(len(r.choices[0].message.tool_calls), 1)


@test
def logprobs():
    r = client.chat.completions.create(**arguments("capital"), logprobs=True, top_logprobs=3)
    content = r.choices[0].logprobs.content
    same(
        "".join(t.token for t in content if t.token not in ("<|im_end|>", "")),
        "The capital of France is Paris.",
    )
    for t in content:
        same(len(t.top_logprobs), 3)
        assert t.logprob <= 0 and t.top_logprobs[0].logprob >= t.top_logprobs[2].logprob
        same(t.logprob, t.top_logprobs[0].logprob)      # greedy: the token is the best one
    same(
        bytes(b for t in content if t.token not in ("<|im_end|>", "") for b in t.bytes).decode(),
        "The capital of France is Paris.",
    )


@test
def several_choices():
    r = client.chat.completions.create(
        **arguments("hello"), n=3, temperature=1.5, seed=7, max_tokens=12
    )
    same([c.index for c in r.choices], [0, 1, 2])
    for i, choice in enumerate(r.choices):              # choice i draws with seed + i
        alone = client.chat.completions.create(
            **arguments("hello"), temperature=1.5, seed=7 + i, max_tokens=12
        )
        same(choice.message.content, alone.choices[0].message.content)


@test
def stop_and_length():
    r = client.chat.completions.create(**arguments("count"), stop=[", 5"])
    same((r.choices[0].message.content, r.choices[0].finish_reason), ("1, 2, 3, 4", "stop"))
    r = client.chat.completions.create(**arguments("count"), max_tokens=4)
    same((r.usage.completion_tokens, r.choices[0].finish_reason), (4, "length"))
    r = client.chat.completions.create(**arguments("count"), max_completion_tokens=4)
    same(r.usage.completion_tokens, 4)
    content, *_ = join(
        client.chat.completions.create(**arguments("count"), stop=", 5", stream=True)
    )
    same(content, "1, 2, 3, 4")


@test
def completions():
    a = BY_NAME["capital"]
    r = client.completions.create(model="moonlet", prompt=a["prompt"], max_tokens=20)
    same(r.choices[0].text, a["text"])
    r = client.completions.create(
        model="moonlet", prompt=a["prompt_ids"], max_tokens=20, echo=True, logprobs=2
    )
    assert r.choices[0].text.endswith(a["text"]), r.choices[0].text
    assert len(r.choices[0].logprobs.tokens) == len(r.choices[0].logprobs.token_logprobs)
    r = client.completions.create(
        model="moonlet", prompt=[a["prompt"], BY_NAME["sum"]["prompt"]], max_tokens=20
    )
    same([c.text for c in r.choices], [a["text"], BY_NAME["sum"]["text"]])
    text = "".join(
        c.choices[0].text
        for c in client.completions.create(model="moonlet", prompt=a["prompt"], stream=True)
        if c.choices
    )
    same(text, a["text"])


@test
def cached_tokens():
    ask = {
        "model": "moonlet",
        "messages": [{"role": "user", "content": "What is the capital of Spain? " * 20}],
        "max_tokens": 2,
    }
    client.chat.completions.create(**ask)
    r = client.chat.completions.create(**ask)
    same(r.usage.prompt_tokens_details.cached_tokens, r.usage.prompt_tokens - 1)


@test
def models():
    same([m.id for m in client.models.list()], ["moonlet"])
    same(client.models.retrieve("moonlet").id, "moonlet")


def refused(kind, status, part, f):
    try:
        f()
    except kind as e:
        same(e.status_code, status)
        assert part in str(e), f"{part!r} is not in {e}"
        return e
    raise AssertionError(f"not refused: {part}")


@test
def errors():
    hello = BY_NAME["hello"]["messages"]
    ask = lambda **more: (
        lambda: client.chat.completions.create(**{"model": "moonlet", "messages": hello, **more})
    )
    refused(openai.NotFoundError, 404, "nothing", ask(model="nothing"))
    refused(
        openai.AuthenticationError,
        401,
        "",
        lambda: openai.OpenAI(base_url=URL, api_key="wrong", max_retries=0).models.list(),
    )
    for more, field in (
        ({"temperature": -1}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "nobody", "content": "x"}]}, "nobody"),
        ({"messages": "text"}, "messages"),
        ({"stop": 5}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"top_logprobs": 99, "logprobs": True}, "top_logprobs"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"tool_choice": "never"}, "tool_choice"),
        ({"seed": "a"}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
    ):
        e = refused(openai.BadRequestError, 400, field, ask(**more))
        assert e.body["message"] and e.body["type"] == "invalid_request_error", e.body
    refused(
        openai.BadRequestError,
        400,
        "8192",
        ask(messages=[{"role": "user", "content": "word " * 20000}]),
    )


@test
def cancel_by_leaving():
    stream = client.chat.completions.create(
        model="moonlet",
        messages=BY_NAME["story"]["messages"],
        stream=True,
        max_tokens=4000,
        extra_body={"ignore_eos": True},
    )
    next(iter(stream))
    stream.close()
    deadline = time.time() + 10
    while running():
        assert time.time() < deadline, "the row is still running"
        time.sleep(0.05)


def running():
    status = client.get("/status", cast_to=object)
    return sum(m["batch"]["running"] + m["batch"]["waiting"] for m in status["models"])


@test
def cancel_by_id():
    stream = iter(
        client.chat.completions.create(
            model="moonlet",
            messages=BY_NAME["story"]["messages"],
            stream=True,
            max_tokens=6000,
            extra_body={"ignore_eos": True},
        )
    )
    first = next(stream)
    client.delete(f"/requests/{first.id}", cast_to=object)
    finish = None
    for chunk in stream:
        finish = chunk.choices[0].finish_reason if chunk.choices else finish
    assert finish is not None
    refused(
        openai.NotFoundError, 404, "gone", lambda: client.delete("/requests/gone", cast_to=object)
    )


@test
def many_at_once():
    async def one(asynchronous, name, stream):
        if not stream:
            r = await asynchronous.chat.completions.create(**arguments(name))
            return check_message(name, r.choices[0].message, r.choices[0].finish_reason)
        text = []
        async for chunk in await asynchronous.chat.completions.create(
            **arguments(name), stream=True
        ):
            text += [c.delta.content or "" for c in chunk.choices]
        if "<tool_call>" not in BY_NAME[name]["text"]:
            same("".join(text), parts(BY_NAME[name]["text"])[1])

    async def all_of(count):
        names = list(BY_NAME)
        async with openai.AsyncOpenAI(
            base_url=URL, api_key=KEY, max_retries=0, timeout=120
        ) as asynchronous:
            await asyncio.gather(
                *(one(asynchronous, names[i % len(names)], i % 2 == 0) for i in range(count))
            )

    for count in (3, 30):
        asyncio.run(all_of(count))


run()
