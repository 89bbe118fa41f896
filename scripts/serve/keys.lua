-- keys: where API keys come from: `keys` of the configuration (or --api-key, which replaces it),
-- the file api_key_file and the environment variable PERIGEE_API_KEY. All of them together are the
-- keys of the server.
--
-- A source that is given but has no key is an error: it nearly always means that a variable is
-- unset, and a server without keys serves everyone.
--
-- No message shows a key.
local uv = require "luv"

local keys = { VARIABLE = "PERIGEE_API_KEY" }

local MOST = 1 << 20 -- bytes of a key file: thousands of keys

--- Adds "[NAME=]KEY" to a list of { name, key }. Returns true, or nil and a message. A KEY may
--- contain "=" (base64), so NAME needs another character after its "=". A text that is only
--- "NAME=" is refused: with a shell's unset variable it would become a key that everyone can guess.
function keys.add(list, given, where)
  local name, key = given:match "^([%w_.-]+)=([^=].*)$"
  if not name then key = given end
  if key == "" then return nil, where .. ": the key is empty" end
  if not name and key:find "^[%w_.-]+=+$" then
    return nil, where .. ": no key after 'NAME=' (a key that ends in '=' needs a name: NAME=KEY)"
  end
  if key:find "[%s%c]" then
    return nil, where .. ": a key must not contain white space"
  end
  list[#list + 1] = { name = name, key = key, where = where }
  return true
end

--- The list as { name = key }. Keys without a name get the first of key1, key2, … that is free; a
--- single one is named "key".
function keys.named(list)
  local out, number = {}, 1
  for _, entry in ipairs(list) do
    local name = entry.name
    if name and out[name] then
      return nil, ("%s: two keys are named '%s'"):format(entry.where, name)
    end
    if name then out[name] = entry.key end
  end
  for _, entry in ipairs(list) do
    if not entry.name then
      while out["key" .. number] do number = number + 1 end
      out[#list == 1 and "key" or "key" .. number] = entry.key
    end
  end
  return out
end

--- Keys separated by line feeds or `separators`; "#" begins a comment line.
local function add_text(list, text, where, separators)
  local before, line = #list, 0
  for row in (text .. "\n"):gmatch "(.-)\r?\n" do
    line = line + 1
    for given in row:gmatch(separators and "[^" .. separators .. "]+" or ".+") do
      given = given:match "^%s*(.-)%s*$"
      if given ~= "" and given:sub(1, 1) ~= "#" then
        local ok, why = keys.add(list, given, separators and where or where .. ":" .. line)
        if not ok then return nil, why end
      end
    end
  end
  if #list == before then return nil, where .. ": there is no key in it" end
  return true
end

--- The text of a key file, which only its owner may write and strangers may not read. The file that
--- is read is the one that was checked.
local function read(path)
  local fd, why = uv.fs_open(path, "r", 0)
  if not fd then return nil, why end
  local stat = uv.fs_fstat(fd)
  local text, wrong
  if not stat or stat.type == "directory" then
    wrong = path .. ": is not a file"
  elseif stat.uid ~= uv.getuid() and stat.uid ~= 0 then
    wrong = ("%s: belongs to user %d: a key file must belong to you or to root"):format(path,
      stat.uid)
  elseif stat.type == "file" and stat.mode & 23 ~= 0 then -- 027
    wrong = ("%s: has mode %04o: others must not read or write a key file (chmod 600)"):format(path,
      stat.mode & 4095)
  else
    local parts, size = {}, 0
    repeat -- a pipe comes in pieces
      local part, failed = uv.fs_read(fd, 65536)
      if not part then wrong = path .. ": " .. tostring(failed) end
      parts[#parts + 1], size = part, size + #(part or "")
      if size > MOST then wrong = ("%s: has more than %d bytes"):format(path, MOST) end
    until wrong or #part == 0
    text = table.concat(parts)
  end
  uv.fs_close(fd)
  if wrong then return nil, wrong end
  return text
end

--- All keys of a merged configuration as { name = key }; {} if it has none. Or nil and a message.
function keys.gather(config)
  local list = {}
  for name, key in pairs(config.keys or {}) do
    list[#list + 1] = { name = type(name) == "string" and name or "key" .. name, key = key,
      where = "keys" }
  end
  if config.api_key_file then
    local text, why = read(config.api_key_file)
    if not text then return nil, "api_key_file: " .. why end
    local ok, wrong = add_text(list, text, config.api_key_file)
    if not ok then return nil, "api_key_file: " .. wrong end
  end
  local variable = os.getenv(keys.VARIABLE)
  if variable then
    local ok, wrong = add_text(list, variable, keys.VARIABLE, ",")
    if not ok then return nil, wrong end
  end
  return keys.named(list)
end

return keys
