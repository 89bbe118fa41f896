-- house_rules: every conversation gets the house's instructions, before the client's system
-- message. Copy it to SITE/hooks and serve with --site SITE. Setting: hooks = { { "house_rules",
-- text = "…" } }. Hook: normalize gets the chat before it is brought into the template's form, and
-- may replace it.
return {
  version = 1,
  config = { text = "Answer in the language of the question. Never give medical advice." },

  normalize = function(_, chat, self)
    local messages, first = {}, chat.messages[1]
    local text = self.config.text
    if first and first.role == "system" and type(first.content) == "string" then
      text = text .. "\n\n" .. first.content
    end
    messages[1] = { role = "system", content = text }
    for i, message in ipairs(chat.messages) do
      if i > 1 or message.role ~= "system" then messages[#messages + 1] = message end
    end
    chat.messages = messages
    return chat
  end,

  selftest = function(try)
    local user = { role = "user", content = "Hi" }
    local chat = { messages = { { role = "system", content = "Be short." }, user } }
    chat = try.normalize(try.req {}, chat)
    assert(#chat.messages == 2 and chat.messages[1].content:find("advice.\n\nBe short.", 1, true))
    assert(#try.normalize(try.req {}, { messages = { user } }).messages == 2)
  end,
}
