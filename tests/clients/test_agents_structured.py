"""Libraries that ask for typed objects against a running server (PERIGEE_URL, key "secret", model
"moonlet"): instructor and pydantic-ai in the modes that they have for OpenAI's API."""

import os
from typing import List, Literal

import instructor, openai
from pydantic import BaseModel, ConfigDict, Field
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from suite import run, same, test

URL = os.environ["PERIGEE_URL"] + "/v1"
ASK = "Tell me of Luna."


class Exact(BaseModel):  # a name that is not declared is an error, so that the schema says so
    model_config = ConfigDict(extra="forbid")


class Moon(Exact):
    name: str = Field(max_length=8)
    radius: int = Field(ge=0, le=5000)


class Planet(Exact):
    kind: Literal["rock", "gas"]
    moons: List[Moon] = Field(max_length=2)


# Without bounds: pydantic-ai leaves them out of the schemas that it sends.
class Weather(Exact):
    sky: Literal["clear", "cloudy"]
    wet: bool


class Forecast(Exact):
    today: Weather
    tomorrow: Weather


# ---- instructor ----------------------------------------------------------------------------------


def instructed(mode, kind=openai.OpenAI):
    plain = kind(base_url=URL, api_key="secret", max_retries=0, timeout=120)
    return instructor.from_openai(plain, mode=mode)


def asked(**more):
    return {"model": "moonlet", "messages": [{"role": "user", "content": ASK}], "max_tokens": 600,
            "temperature": 1, "seed": 1, "max_retries": 0, **more}


MODES = [instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.JSON_SCHEMA]


@test
def instructor_makes_objects():
    for mode in MODES:
        for model in (Moon, Planet):
            made = instructed(mode).chat.completions.create(response_model=model, **asked())
            assert isinstance(made, model), (mode, made)


@test
async def instructor_asynchronously():
    for mode in MODES:
        client = instructed(mode, openai.AsyncOpenAI)
        made = await client.chat.completions.create(response_model=Planet, **asked())
        assert isinstance(made, Planet), (mode, made)


@test
def instructor_streams_parts():
    for mode in MODES:
        parts = list(instructed(mode).chat.completions.create_partial(
            response_model=Planet, **asked()))
        same(Planet.model_validate(parts[-1].model_dump()).kind, parts[-1].kind)


# In this mode the schema is words of the prompt only: what comes is an object of JSON.
@test
def instructor_in_json_mode():
    class Anything(BaseModel):
        pass

    made = instructed(instructor.Mode.JSON).chat.completions.create(
        response_model=Anything, **asked(max_tokens=4000))
    assert isinstance(made, Anything), made


# ---- pydantic-ai ---------------------------------------------------------------------------------

PROVIDER = OpenAIProvider(base_url=URL, api_key="secret")
SETTINGS = {"max_tokens": 600, "temperature": 1, "seed": 1}


def agents(output):
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        yield Agent(kind("moonlet", provider=PROVIDER), output_type=output, retries=0,
                    model_settings=SETTINGS)


@test
def pydantic_ai_by_tools_and_natively():
    for model in (Weather, Forecast):
        for output in (model, NativeOutput(model), NativeOutput(model, strict=True)):
            for agent in agents(output):
                made = agent.run_sync(ASK).output
                assert isinstance(made, model), (output, made)
    for agent in agents(ToolOutput(Weather, strict=True)):
        made = agent.run_sync(ASK).output
        assert isinstance(made, Weather), made


@test
def pydantic_ai_chooses_among_types():
    for agent in agents([Weather, Forecast]):
        made = agent.run_sync(ASK).output
        assert isinstance(made, (Weather, Forecast)), made
    for agent in agents(NativeOutput([Weather, Forecast])):
        made = agent.run_sync(ASK).output
        assert isinstance(made, (Weather, Forecast)), made


@test
async def pydantic_ai_streams():
    for output in (Forecast, NativeOutput(Forecast)):
        for agent in agents(output):
            async with agent.run_stream(ASK) as stream:
                made = await stream.get_output()
            assert isinstance(made, Forecast), (output, made)


run()
