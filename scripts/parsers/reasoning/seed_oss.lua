-- seed_oss: <seed:think>…</seed:think>; remarks about the thinking budget inside belong to the reasoning.
return require("parsers.think").new {
  name = "seed_oss",
  open = "<seed:think>",
  close = "</seed:think>",
  selftest = {
    { text = "<seed:think>a\n<seed:cot_budget_reflect>9 left</seed:cot_budget_reflect>\nb</seed:think>C",
      reasoning = "a\n<seed:cot_budget_reflect>9 left</seed:cot_budget_reflect>\nb", content = "C" },
    { text = "a</seed:think>C", prompt_tail = "<seed:think>", reasoning = "a", content = "C" },
  },
}
