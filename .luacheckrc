std = "lua54"
max_line_length = 100
files["scripts/meta"] = { ignore = { "212", "111", "112", "113", "131", "241" } }
