"""The official Python client of the Messages API against a running server (PERIGEE_URL, key
"secret", "moonlet"): its own answers, equal to those of chat completions."""

import base64, json, os, sys, traceback
import anthropic
from suite import run, same, test

ANSWERS = json.load(open(os.environ["PERIGEE_ANSWERS"], encoding="utf8"))
BY_NAME = {a["name"]: a for a in ANSWERS}
MODEL = "moonlet"
client = anthropic.Anthropic(
    base_url=os.environ["PERIGEE_URL"], api_key="secret", max_retries=0, timeout=60
)


def block(part):
    if part["type"] == "text":
        return part
    path = os.path.join(os.path.dirname(os.environ["PERIGEE_ANSWERS"]), part["image_url"]["url"])
    data = base64.b64encode(open(path, "rb").read()).decode()
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }


def arguments(name):
    """The request of a stored answer, in the words of this API."""
    a, out = BY_NAME[name], {"model": MODEL, "max_tokens": 400, "messages": []}
    for m in a["messages"]:
        said = m["content"]
        if isinstance(said, list):
            said = [block(p) for p in said]
        if m["role"] == "system":
            out["system"] = said
        else:
            out["messages"].append({"role": m["role"], "content": said})
    out["tools"] = [
        {
            "name": t["function"]["name"],
            "description": t["function"]["description"],
            "input_schema": t["function"]["parameters"],
        }
        for t in a.get("tools", [])
    ]
    if a.get("chat_template_kwargs", {}).get("enable_thinking"):
        out["thinking"] = {"type": "enabled", "budget_tokens": 1024}
    out["extra_body"] = {"temperature": 0}
    return out


def check(name, message):
    answer = BY_NAME[name]
    thought, mark, rest = answer["text"].partition("\n</think>\n\n")
    if mark:
        same(message.content[0].thinking.strip("\n"), thought.strip("\n"))
        assert message.content[0].signature
    if "<tool_call>" in answer["text"]:
        same(message.stop_reason, "tool_use")
        calls = [b for b in message.content if b.type == "tool_use"]
        same(len(calls), answer["text"].count("<tool_call>"))
        for call in calls:
            assert f"<function={call.name}>" in answer["text"], call
            assert isinstance(call.input, dict)
    else:
        same(message.content[-1].text, rest if mark else answer["text"])
        same(message.stop_reason, "end_turn")
    same(message.usage.output_tokens, len(answer["ids"]))


NAMES = ["hello", "who", "policy", "history3", "emoji", "story", "image", "two_images",
         "tool_weather", "tool_two", "think_sum"]


@test
def whole():
    for name in NAMES:
        check(name, client.messages.create(**arguments(name)))


@test
def streamed():
    for name in NAMES:
        with client.messages.stream(**arguments(name)) as stream:
            check(name, stream.get_final_message())


@test
def a_tool_loop():
    a = arguments("tool_weather")
    first = client.messages.create(**a)
    call = next(b for b in first.content if b.type == "tool_use")
    a["messages"] += [
        {"role": "assistant", "content": first.content},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": call.id,
                    "content": [{"type": "text", "text": "sunny, 21 degrees"}],
                }
            ],
        },
    ]
    second = client.messages.create(**a)
    same(second.stop_reason, "end_turn")
    assert second.usage.cache_read_input_tokens > 0, second.usage


@test
def the_tool_runner_sends_everything_again():
    """Its threads are refused; it then keeps the conversation itself."""

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """Get the weather in a city

        Args:
            city: its name
        """
        return "sunny in " + city

    runner = client.beta.messages.tool_runner(
        model=MODEL,
        max_tokens=200,
        tools=[get_weather],
        messages=[{"role": "user", "content": "What is the weather in Paris?"}],
    )
    turns = list(runner)
    same([t.stop_reason for t in turns], ["tool_use", "end_turn"])


@test
def tokens_and_models():
    a = arguments("policy")
    counted = client.messages.count_tokens(
        model=MODEL, messages=a["messages"], system=a["system"]
    ).input_tokens
    made = client.messages.create(**a)
    same(made.usage.input_tokens + made.usage.cache_read_input_tokens, counted)
    models = client.models.list().data
    same([(m.id, m.type, m.display_name) for m in models], [(MODEL, "model", MODEL)])
    same(client.models.retrieve(MODEL).id, MODEL)


@test
def errors_are_of_the_right_class():
    hello = {"model": MODEL, "max_tokens": 4, "messages": [{"role": "user", "content": "Hi"}]}
    for wrong, kind, part in [
        ({"model": "nothing"}, anthropic.NotFoundError, "does not exist"),
        ({"max_tokens": -1}, anthropic.BadRequestError, "max_tokens must be"),
        (
            {"messages": [{"role": "user", "content": "a b " * 20000}]},
            anthropic.BadRequestError,
            "prompt is too long: ",
        ),
    ]:
        try:
            client.messages.create(**{**hello, **wrong})
            assert False, wrong
        except kind as e:
            assert part in e.body["error"]["message"], e.body
            assert e.body["request_id"]
    stranger = client.with_options(api_key="wrong")
    try:
        stranger.messages.create(**hello)
        assert False
    except anthropic.AuthenticationError:
        pass


run()
