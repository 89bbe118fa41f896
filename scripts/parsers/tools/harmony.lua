-- harmony: the channels of gpt-oss; calls are messages with a recipient. The channel `analysis` is
-- reasoning if a reasoning parser was asked for, otherwise it is reported as analysis.
local harmony = require "parsers.harmony"

return {
  name = "harmony",
  aliases = { "gpt-oss" },
  run = harmony.read,
  inner = harmony.marks,
  opening = { "<|channel|>commentary to=functions.", " <|constrain|>json<|message|>" },
  grammar = function(s)
    local json = { s:text " ", s:mark "<|constrain|>", s:text "json" }
    local header = s.b:rule "header" -- the recipient comes after the channel, or before it
    s.b:define(header, { json, { s:mark "<|channel|>", s:text "commentary", table.unpack(json) } })
    return { lead = { s:mark "<|channel|>", s:text "commentary " }, mark = "to=functions.",
      call = s:each(function(tool)
        return { s:text(tool.name), header, s:mark "<|message|>", s:object(tool) }
      end), after = s:finish "<|call|>", gap = { s:mark "<|start|>", s:text "assistant" } }
  end,
  channels = true,
  selftest = {
    { text = '<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary '
        .. 'to=functions.tide <|constrain|>json'
        .. '<|message|>{"port": "Brest"}<|call|>', calls = { { "tide", '{"port": "Brest"}' } },
      analysis = "hm" },
    { text = "<|start|>assistant to=functions.now<|channel|>commentary<|message|>{}<|call|>"
        .. "<|channel|>final<|message|>Done.<|return|>",
      content = "Done.", calls = { { "now", "{}" } } },
    { text = "<|channel|>commentary<|message|>I will look.<|end|><|channel|>final<|message|>\n"
        .. "Seen.",
      content = "I will look.\nSeen." },
    { text = "<|channel|>commentary to=functions.f<|message|>{oops}<|call|>",
      calls = { { "f", '"{oops}"' } } },
    { text = '<|channel|>commentary to=functions.f<|message|>{"a": 1\n<|channel|>final'
        .. '<|message|>Done<|return|>',
      content = "Done",
      unfinished = '<|channel|>commentary to=functions.f<|message|>{"a": 1\n' },
    { text = "Plain text.", content = "Plain text." },
  },
}
