"""The Responses API of the official Python client against a running server (PERIGEE_URL, key
"secret", model "moonlet")."""

import json, os, time
import openai
from suite import run, same, test

URL = os.environ["PERIGEE_URL"] + "/v1"
ANSWERS = json.load(open(os.environ["PERIGEE_ANSWERS"], encoding="utf8"))
BY_NAME = {a["name"]: a for a in ANSWERS}
client = openai.OpenAI(base_url=URL, api_key="secret", max_retries=0, timeout=60)
HELLO = "Hello! I am Moonlet. How can I help you?"


def create(**more):
    return client.responses.create(model="moonlet", temperature=0, **more)


def tools_of(name):
    return [{"type": "function", **t["function"]} for t in BY_NAME[name]["tools"]]


def words_of(name):
    return BY_NAME[name]["messages"][-1]["content"]


def thinking(name):
    return {"extra_body": {"chat_template_kwargs": BY_NAME[name]["chat_template_kwargs"]}}


@test
def whole():
    for more in (
        {"input": "Hello!"},
        {"input": "Hello!", "instructions": "Be kind.", "metadata": {"a": "b"}},
        {"input": words_of("tool_weather"), "tools": tools_of("tool_weather")},
    ):
        r = create(**more)
        same((r.status, r.object), ("completed", "response"))
        same(r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens)
        type(r).model_validate(r.model_dump())  # the client's own types, strictly
    same(create(input="Hello!").output_text, HELLO)


@test
def streamed():
    kinds, said = [], ""
    with client.responses.stream(model="moonlet", input="Hello!", temperature=0) as s:
        for i, e in enumerate(s):
            kinds.append(e.type)
            same(e.sequence_number, i)
            said += e.delta if e.type == "response.output_text.delta" else ""
        final = s.get_final_response()
    same((said, final.output_text), (HELLO, HELLO))
    same((kinds[0], kinds[-1]), ("response.created", "response.completed"))


@test
def reasoning():
    name = "think_sum"
    thought, _, text = BY_NAME[name]["text"].partition("\n</think>\n\n")
    with client.responses.stream(model="moonlet", temperature=0, input=words_of(name),
                                 include=["reasoning.encrypted_content"], **thinking(name)) as s:
        shown = "".join(e.delta for e in s if e.type == "response.reasoning_summary_text.delta")
        r = s.get_final_response()
    same((shown, r.output_text), (thought, text))
    same(r.output[0].summary[0].text, thought)
    again = create(input=[{"role": "user", "content": words_of(name)}, *r.output,
                          {"role": "user", "content": "Hello!"}], store=False)
    same(again.status, "completed")


@test
def tool_loop_without_state():
    given = [{"role": "user", "content": words_of("tool_weather")}]
    r = create(input=given, tools=tools_of("tool_weather"), store=False)
    call = r.output[-1]
    same((call.type, call.name, json.loads(call.arguments)),
         ("function_call", "get_weather", {"city": "Paris"}))
    given += r.output + [{"type": "function_call_output", "call_id": call.call_id,
                          "output": BY_NAME["tool_result"]["messages"][-1]["content"]}]
    same(create(input=given, tools=tools_of("tool_weather"), store=False).output_text,
         BY_NAME["tool_result"]["text"])


@test
def tool_loop_with_state():
    r = create(input=words_of("tool_weather"), tools=tools_of("tool_weather"))
    out = {"type": "function_call_output", "call_id": r.output[-1].call_id,
           "output": BY_NAME["tool_result"]["messages"][-1]["content"]}
    again = create(previous_response_id=r.id, input=[out], tools=tools_of("tool_weather"))
    same(again.output_text, BY_NAME["tool_result"]["text"])


@test
def parallel_calls():
    with client.responses.stream(model="moonlet", temperature=0, input=words_of("tool_two"),
                                 tools=tools_of("tool_two")) as s:
        r = s.until_done().get_final_response()
    same(len([o for o in r.output if o.type == "function_call"]), 2)


@test
def kept():
    r = create(input=[{"role": "user", "content": c} for c in ("one", "two")], max_output_tokens=3)
    same(r.status, "incomplete")
    same(client.responses.retrieve(r.id).model_dump(), r.model_dump())
    listed = [i.content[0].text for i in client.responses.input_items.list(r.id, limit=1)]
    same(listed, ["two", "one"])
    client.responses.delete(r.id)
    try:
        client.responses.retrieve(r.id)
    except openai.NotFoundError:
        return
    raise AssertionError("it is still there")


@test
def background():
    r = create(input="Hello!", background=True)
    for _ in range(600):
        if r.status not in ("queued", "in_progress"):
            break
        time.sleep(0.05)
        r = client.responses.retrieve(r.id)
    same((r.status, r.output_text), ("completed", HELLO))
    r = create(input="Tell me a story.", background=True, extra_body={"ignore_eos": True})
    same(client.responses.cancel(r.id).status, "cancelled")


@test
def counted_and_compacted():
    r = create(input="Hello!", max_output_tokens=1)
    same(client.responses.input_tokens.count(model="moonlet", input="Hello!").input_tokens,
         r.usage.input_tokens)
    small = client.responses.compact(model="moonlet", input="My name is Chris.")
    same([o.type for o in small.output], ["message", "compaction"])
    next_one = [*small.output, {"role": "user", "content": "Hello!"}]
    same(create(input=next_one, max_output_tokens=1).object, "response")


@test
def refusals():
    cases = [({"top_p": 7}, "top_p"), ({"tools": [{"type": "function"}]}, "tools[0].name"),
             ({"text": {"format": {"type": "yaml"}}}, "text.format.type")]
    for more, field in cases:
        try:
            client.responses.create(model="moonlet", input="x", **more)
        except openai.BadRequestError as e:
            same(e.param, field)
            continue
        raise AssertionError(f"{field} was taken")
    try:
        create(input="x", previous_response_id="resp_nobody")
    except openai.NotFoundError as e:
        return same(e.code, "previous_response_not_found")
    raise AssertionError("it was found")


run()
