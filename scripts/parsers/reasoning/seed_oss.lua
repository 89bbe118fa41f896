-- seed_oss: <seed:think>…</seed:think>; remarks on the thinking budget stay in the reasoning.
return require("parsers.think").new {
  name = "seed_oss",
  open = "<seed:think>",
  close = "</seed:think>",
  selftest = {
    { text = "<seed:think>a\n<seed:cot_budget_reflect>9 left</seed:cot_budget_reflect>\n"
        .. "b</seed:think>C",
      reasoning = "a\n<seed:cot_budget_reflect>9 left</seed:cot_budget_reflect>\nb",
      content = "C" },
    { text = "a</seed:think>C", prompt_tail = "<seed:think>", reasoning = "a", content = "C" },
  },
}
