std = "lua54"
max_line_length = 100
-- A type is one line, however long.
files["scripts/meta"] = { max_comment_line_length = false, ignore = { "212", "111", "112", "113", "131", "241" } }
files["tests/lua/test_chat.lua"] = { max_line_length = 160 }
