"""The typed helpers of the official Python clients against a running server (PERIGEE_URL, key
"secret", model "moonlet"): what they parse must be objects of the types that were asked for. The
model is small and knows nothing of them, so it is the server that makes them fit."""

import datetime, enum, os
from typing import Annotated, List, Literal, Optional, Union

import anthropic, openai
from pydantic import BaseModel, ConfigDict, Field
from suite import run, same, test

ROOT = os.environ["PERIGEE_URL"]
client = openai.OpenAI(base_url=ROOT + "/v1", api_key="secret", max_retries=0, timeout=120)
claude = anthropic.Anthropic(base_url=ROOT, api_key="secret", max_retries=0, timeout=120)
SHORT = Annotated[str, Field(max_length=8)]


class Sky(enum.Enum):
    clear = "clear"
    cloudy = "cloudy"


class Moon(BaseModel):
    name: SHORT
    radius: float = Field(ge=0, le=5000)


class Planet(BaseModel):
    name: SHORT
    sky: Sky
    kind: Literal["rock", "gas"]
    age: int = Field(ge=0, le=150)
    moons: List[Moon] = Field(max_length=2)
    found: Optional[datetime.date]


class Chain(BaseModel):  # recursive
    link: Literal["a", "b"]
    rest: Optional["Chain"]


class Line(BaseModel):
    kind: Literal["line"]
    length: int = Field(ge=1, le=9)


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: int = Field(ge=1, le=9)


class Drawing(BaseModel):
    shape: Union[Line, Circle]


class Weather(BaseModel):  # without bounds, which the client of Messages leaves out
    sky: Sky
    wet: bool
    wind: Optional[Literal["north", "south"]]


def asked(**more):
    return {"model": "moonlet", "messages": [{"role": "user", "content": "Tell me of Luna."}],
            "max_tokens": 600, **more}


# ---- Chat Completions ----------------------------------------------------------------------------


@test
def chat_parse():
    for model in (Planet, Drawing, Moon):
        for temperature in (0, 1):
            r = client.chat.completions.parse(**asked(response_format=model, seed=3,
                                                      temperature=temperature))
            said = r.choices[0].message
            assert isinstance(said.parsed, model), said
            same(said.parsed, model.model_validate_json(said.content))
            same(r.choices[0].finish_reason, "stop")


@test
def chat_parse_of_a_recursive_type():
    for seed in range(30):  # the model may go on as long as it likes
        try:
            r = client.chat.completions.parse(**asked(
                response_format=Chain, temperature=1.5, seed=seed, max_tokens=100))
        except openai.LengthFinishReasonError:
            continue
        assert isinstance(r.choices[0].message.parsed, Chain), r.choices[0]
        return
    raise AssertionError("no chain ends")


@test
def several_choices_parse():
    r = client.chat.completions.parse(**asked(response_format=Moon, temperature=1, seed=1, n=4))
    same([type(c.message.parsed) for c in r.choices], [Moon] * 4)


@test
def chat_parse_after_reasoning():
    thinking = {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 20}
    r = client.chat.completions.parse(**asked(response_format=Moon, extra_body=thinking))
    assert isinstance(r.choices[0].message.parsed, Moon), r.choices[0]


@test
def chat_stream():
    ask = asked(response_format=Planet, temperature=1, seed=5)
    with client.chat.completions.stream(**ask) as s:
        kinds = [e.type for e in s]
        final = s.get_final_completion().choices[0].message.parsed
    assert isinstance(final, Planet), final
    assert "content.delta" in kinds and kinds[-1] == "content.done", kinds
    same(final, client.chat.completions.parse(**ask).choices[0].message.parsed)


@test
def an_answer_that_is_cut_is_not_parsed():
    try:
        client.chat.completions.parse(**asked(response_format=Planet, max_tokens=5))
    except openai.LengthFinishReasonError as e:
        return same(e.completion.choices[0].finish_reason, "length")
    raise AssertionError("it was parsed")


@test
def chat_tools():
    tools = [openai.pydantic_function_tool(Moon), openai.pydantic_function_tool(Planet)]
    ask = asked(tools=tools, parallel_tool_calls=False, temperature=1)
    for choice, names in (("required", {"Moon", "Planet"}),
                          ({"type": "function", "function": {"name": "Planet"}}, {"Planet"})):
        for seed in (1, 2, 3):
            r = client.chat.completions.parse(**ask, tool_choice=choice, seed=seed)
            [call] = r.choices[0].message.tool_calls
            assert call.function.name in names, call
            same(type(call.function.parsed_arguments).__name__, call.function.name)
    with client.chat.completions.stream(**ask, tool_choice="required", seed=2) as s:
        streamed = s.until_done().get_final_completion()
    [call] = streamed.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, (Moon, Planet)), call


@test
def what_strict_mode_forbids_is_refused():
    class Loose(BaseModel):
        model_config = ConfigDict(extra="allow")
        name: str

    form = {"type": "json_schema", "json_schema": {
        "name": "loose", "strict": True, "schema": Loose.model_json_schema()}}
    try:
        client.chat.completions.create(**asked(response_format=form))
    except openai.BadRequestError as e:
        return same((e.param, e.code), ("response_format.json_schema.schema", "grammar_invalid"))
    raise AssertionError("it was taken")


# ---- Responses -----------------------------------------------------------------------------------


@test
def responses_parse():
    for model in (Planet, Drawing):
        r = client.responses.parse(model="moonlet", input="Tell me of Luna.", text_format=model)
        assert isinstance(r.output_parsed, model), r.output
        form = r.text.format
        same((r.status, form.type, form.strict), ("completed", "json_schema", True))
        same(r.output_parsed, model.model_validate_json(r.output_text))


@test
def responses_stream():
    with client.responses.stream(model="moonlet", input="Tell me of Luna.", temperature=1,
                                 text_format=Planet) as s:
        for _ in s:
            pass
        assert isinstance(s.get_final_response().output_parsed, Planet)


@test
def responses_tools():
    r = client.responses.parse(model="moonlet", input="Tell me of Luna.", tool_choice="required",
                               parallel_tool_calls=False,
                               tools=[openai.pydantic_function_tool(Moon)])
    [call] = [o for o in r.output if o.type == "function_call"]
    assert isinstance(call.parsed_arguments, Moon), call


# ---- Messages ------------------------------------------------------------------------------------


@test
def messages_parse():
    r = claude.messages.parse(**asked(), output_format=Weather)
    assert isinstance(r.parsed_output, Weather), r
    with claude.messages.stream(**asked(), output_format=Weather) as s:
        same(s.get_final_message().parsed_output, r.parsed_output)


run()
