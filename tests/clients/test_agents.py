"""Whole runs of agents against a server with scripted answers (PERIGEE_URL,
site/hooks/scripted.lua, model "scripted"): what the client does with them is the client's own
doing. Claude Code is at PERIGEE_CLAUDE, opencode at PERIGEE_OPENCODE; LiteLLM and pydantic-ai are
installed here."""

import json, os, subprocess, tempfile, threading
from suite import run, same, test

URL = os.environ["PERIGEE_URL"]
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a newer one
MODEL, FINAL = "scripted", "Done, as the script says."


# ---- Claude Code ---------------------------------------------------------------------------------


def claude(folder, script, *options, model=MODEL):
    """Runs it in an empty folder, which is also its home; returns what it printed."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": folder,
        "ANTHROPIC_BASE_URL": URL,
        "ANTHROPIC_API_KEY": "none",
        "ANTHROPIC_MODEL": model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    words = f"SCRIPT:{script} IN:{folder} please"
    command = [os.environ["PERIGEE_CLAUDE"], "-p", words, "--permission-mode", "acceptEdits"]
    command += [*options, "--allowedTools", "Write", "Bash"]
    run = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
    )
    assert run.returncode == 0, (run.stdout, run.stderr)
    return run.stdout.decode().strip()


def writes(*options, script="write", model=MODEL):
    with tempfile.TemporaryDirectory() as folder:
        same(claude(folder, script, *options, model=model), FINAL)
        same(open(os.path.join(folder, "hello.txt")).read(), "hi")


@test
def claude_code_writes_a_file():
    writes()


@test
def claude_code_thinks_and_writes_a_file():
    writes(script="reasonwrite")


@test
def claude_code_by_a_name_that_it_knows():
    writes(model="claude-sonnet-4-5")


@test
def claude_code_with_few_tools():
    writes("--bare")


@test
def claude_code_in_six_folders_at_once():
    failures = []

    def run():
        try:
            writes("--bare")
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=run) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    same(failures, [])


# ---- opencode ------------------------------------------------------------------------------------


def opencode(folder, script):
    """Runs it in an empty folder, which is also its home; returns the lines that it printed."""
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": URL + "/v1"},
        "models": {MODEL: {}},
    }
    with open(folder + "/opencode.json", "w") as f:
        json.dump({"provider": {"perigee": provider}}, f)
    env = {"PATH": os.environ["PATH"], "HOME": folder, "OPENCODE_DISABLE_AUTOUPDATE": "1"}
    words = f"SCRIPT:{script} IN:{folder} please"
    command = [os.environ["PERIGEE_OPENCODE"], "run", "-m", "perigee/" + MODEL, words]
    run = subprocess.run(
        command, cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=300
    )
    assert run.returncode == 0, (run.stdout, run.stderr)
    return run.stdout.decode().split("\n")


@test
def opencode_writes_a_file():
    with tempfile.TemporaryDirectory() as folder:
        assert FINAL in opencode(folder, "write")
        same(open(folder + "/hello.txt").read(), "hi")


# ---- libraries -----------------------------------------------------------------------------------

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "The weather.", "parameters": PARAMETERS},
}


def litellm_loop(model, base, stream):
    import litellm

    messages = [{"role": "user", "content": "SCRIPT:tool"}]
    for _ in range(3):
        answer = litellm.completion(
            model=model,
            api_base=base,
            api_key="none",
            messages=messages,
            tools=[TOOL],
            max_tokens=200,
            stream=stream,
        )
        if stream:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            same(call.function.name, "get_weather")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "sunny"})


@test
def litellm_by_both_apis():
    for stream in False, True:
        same(litellm_loop("anthropic/" + MODEL, URL, stream), FINAL)
        same(litellm_loop("openai/" + MODEL, URL + "/v1", stream), FINAL)


@test
def pydantic_ai_by_both_apis():
    from anthropic import AsyncAnthropic
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    theirs = AsyncAnthropic(base_url=URL, api_key="none", max_retries=0)
    ours = AsyncOpenAI(base_url=URL + "/v1", api_key="none", max_retries=0)
    for model in (
        AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=theirs)),
        OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=ours)),
    ):
        for script in "tool", "parallel", "reasontool":
            agent, cities = Agent(model), []

            @agent.tool_plain
            def get_weather(city: str) -> str:
                """The weather of a city."""
                cities.append(city)
                return "sunny"

            same(agent.run_sync("SCRIPT:" + script).output, FINAL)
            same(sorted(cities), ["Paris", "Rome"] if script == "parallel" else ["Paris"])


run()
