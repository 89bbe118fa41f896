"""Whole runs of agents that speak the Responses API, against a server with scripted answers
(PERIGEE_URL, site/hooks/scripted.lua, model "scripted", also by the name gpt-5.5): Codex at
PERIGEE_CODEX, openai-agents, pydantic-ai, LiteLLM."""

import os, subprocess, tempfile, threading
from suite import run, same, test

URL = os.environ["PERIGEE_URL"] + "/v1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch a newer one
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"  # it would send traces to its vendor
MODEL, HELLO, FINAL = "scripted", "Hello from the script.", "Done, as the script says."


# ---- Codex ---------------------------------------------------------------------------------------

CONFIG = """model = "%s"
model_provider = "local"
[model_providers.local]
name = "local"
base_url = "%s"
wire_api = "responses"
env_key = "LOCAL_KEY"
request_max_retries = 0
stream_max_retries = 0
supports_websockets = %s
"""


def codex(script, model=MODEL, websockets=False):
    """What it says, and what it wrote into hello.txt (None: nothing)."""
    with tempfile.TemporaryDirectory() as folder:
        home, work = folder + "/home", folder + "/work"
        os.mkdir(home), os.mkdir(work)
        with open(home + "/config.toml", "w") as f:
            f.write(CONFIG % (model, URL, "true" if websockets else "false"))
        env = {"PATH": os.environ["PATH"], "HOME": home, "CODEX_HOME": home, "LOCAL_KEY": "none"}
        command = [os.environ["PERIGEE_CODEX"], "exec", "--skip-git-repo-check"]
        command += ["--sandbox", "danger-full-access", f"SCRIPT:{script} please"]
        run = subprocess.run(
            command, cwd=work, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=120
        )
        assert run.returncode == 0, (run.stdout, run.stderr)
        path = work + "/hello.txt"
        written = open(path).read() if os.path.exists(path) else None
        return run.stdout.decode().strip(), written


@test
def codex_says_hello():
    same(codex("hello"), (HELLO, None))


@test
def codex_writes_a_file():
    same(codex("write"), (FINAL, "hi"))


@test
def codex_thinks_and_writes_a_file():
    same(codex("reasonwrite"), (FINAL, "hi"))


@test
def codex_patches_by_a_custom_tool():
    same(codex("write", model="gpt-5.5"), (FINAL, "hi\n"))


@test
def codex_goes_on_without_websockets():
    same(codex("hello", websockets=True), (HELLO, None))


@test
def codex_in_six_folders_at_once():
    got = []
    threads = [threading.Thread(target=lambda: got.append(codex("write"))) for _ in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    same(got, [(FINAL, "hi")] * 6)


# ---- libraries -----------------------------------------------------------------------------------


@test
def openai_agents():
    from agents import Agent, OpenAIResponsesModel, Runner, function_tool
    from openai import AsyncOpenAI

    cities = []

    @function_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return "sunny"

    for script in "tool", "parallel", "reasontool":
        client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
        model = OpenAIResponsesModel(model=MODEL, openai_client=client)
        agent = Agent(name="a", instructions="Be short.", model=model, tools=[get_weather])
        cities.clear()
        same(Runner.run_sync(agent, "SCRIPT:" + script).final_output, FINAL)
        same(sorted(cities), ["Paris", "Rome"] if script == "parallel" else ["Paris"])


@test
def pydantic_ai():
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=URL, api_key="none", max_retries=0)
    agent = Agent(OpenAIResponsesModel(MODEL, provider=OpenAIProvider(openai_client=client)))
    cities = []

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """The weather of a city."""
        cities.append(city)
        return "sunny"

    for script in "tool", "reasontool":
        same(agent.run_sync("SCRIPT:" + script).output, FINAL)
    same(cities, ["Paris", "Paris"])


@test
def litellm_streams():
    import litellm

    events = litellm.responses(
        model="openai/" + MODEL, input="SCRIPT:hello", api_base=URL, api_key="none", stream=True
    )
    same("".join(e.delta for e in events if e.type == "response.output_text.delta"), HELLO)


run()
