-- fields: what clients of OpenAI's API may send (api/schema.lua reads it).
local schema = require "api.schema"
local structured = require "api.structured"

local fields = {}

local INT = 0x7fffffff

--- Where OpenAI's fields differ from the sampler's: top_k = -1 is other servers' way to switch it
--- off.
local sampling = schema.sampling {
  top_k = { from = -1 },
  presence_penalty = { from = -2, to = 2 },
  frequency_penalty = { from = -2, to = 2 },
  skip_special = { name = "skip_special_tokens" },
}

local common = {
  { "n", "integer", from = 1, to = 128 },
  { "stream", "boolean" },
  { "stream_options", "object" },
  { "model", "string", to = 256 },
  { "user", "string", to = 1024 },
  { "metadata", "object" },
  { "store", "boolean" },
  { "return_token_ids", "boolean" },
  { "perigee", "object" },
}

local chat = {
  { "messages", "array", from = 1, into = "chat" },
  { "tools", "array", to = 1024, into = "chat" },
  { "tool_choice", "any", into = "chat" },
  { "parallel_tool_calls", "boolean", into = "chat" },
  { "add_generation_prompt", "boolean", into = "chat" },
  { "continue_final_message", "boolean", into = "chat" },
  { "chat_template_kwargs", "object", into = "chat", as = "kwargs" },
  { "enable_thinking", "boolean" },
  { "reasoning_effort", "string", from = 1, to = 64 },
  { "thinking_token_budget", "integer", from = 0, to = INT },
  { "prompt_cache_key", "string", to = 1024 },
  { "max_tokens", "integer", from = 1, to = INT },
  { "max_completion_tokens", "integer", from = 1, to = INT },
  { "logprobs", "boolean" },
  { "top_logprobs", "integer", from = 0, to = 20 },
  { "modalities", "array" },
}

local completions = {
  { "prompt", "any" },
  { "max_tokens", "integer", from = 0, to = INT },
  { "max_completion_tokens", "integer", from = 0, to = INT },
  { "logprobs", "integer", from = 0, to = 20 },
  { "echo", "boolean" },
  { "best_of", "integer", from = 1, to = 128 },
  { "add_special_tokens", "boolean" },
}

local NEVER = "is not supported by this server"

--- Fields that would change the answer, and that this server does not have.
local refused = {
  use_beam_search = NEVER, prompt_logprobs = NEVER, truncate_prompt_tokens = NEVER,
  include_stop_str_in_output = NEVER, audio = NEVER, web_search_options = NEVER,
  functions = "is deprecated, send 'tools'", function_call = "is deprecated, send 'tool_choice'",
  suffix = "is not supported: text can be continued, not filled in",
  chat_template = "cannot be sent: the server's own template is used",
}

fields.chat = schema.fields({ sampling, common, structured.FIELDS, chat }, refused)
fields.completions = schema.fields({ sampling, common, structured.FIELDS, completions }, refused)

return fields
