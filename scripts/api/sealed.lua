-- sealed: text that a client keeps for this server: the reasoning of an earlier turn or the summary
-- of a conversation, so that it comes back without the server keeping anything. It is the
-- encrypted_content of the Responses API and the signature of a thinking block.
--
-- The secret is made when the server starts: what another process sealed is not opened. Where there
-- is a folder for responses the secret is a file in it, and outlives the process as they do.
local folders = require "lib.folder"
local perigee = require "perigee"
local uv = require "luv"

local sealed = {}

local SECRET, NONCE = 32, 12 -- bytes (runtime/seal.h)
local MODE = 384 -- 0600
local MARK = "perigee+" -- before what was sealed here; all of it is base64
local secret = uv.random(SECRET)

--- Writes a new secret, unless there is one. Linked when it is complete: another process may start
--- at the same time.
local function make(path)
  local new = ("%s.%d"):format(path, uv.os_getpid())
  local fd = assert(uv.fs_open(new, "w", MODE))
  local n, why = uv.fs_write(fd, uv.random(SECRET))
  uv.fs_close(fd)
  local ok, code = n == SECRET, nil
  if ok then ok, why, code = uv.fs_link(new, path) end
  uv.fs_unlink(new)
  if not ok and code ~= "EEXIST" then error(why or ("%s: %d bytes written"):format(new, n), 0) end
end

local function read(path)
  local fd, why, code = uv.fs_open(path, "r", 0)
  if not fd and code == "ENOENT" then return nil end
  if not fd then error(why, 0) end
  local text = assert(uv.fs_read(fd, SECRET + 1))
  uv.fs_close(fd)
  if #text ~= SECRET then
    error(("%s is not a secret: it has %d bytes, not %d"):format(path, #text, SECRET), 0)
  end
  return text
end

--- A server starts: it has the secret of this folder, or one of its own. Raises what is wrong with
--- the folder.
function sealed.start(folder)
  secret = uv.random(SECRET)
  if not folder then return end
  local path = folders.private("responses.folder", folder, "server") .. "/secret"
  if not read(path) then make(path) end
  secret = read(path)
end

--- The text sealed by this server, as base64.
function sealed.close(text) return MARK .. perigee.sys.seal(secret, uv.random(NONCE), text) end

--- Was a text sealed by a server of this kind?
function sealed.is_ours(text) return text:sub(1, #MARK) == MARK end

--- The text again; nil if it was not sealed with this server's secret.
function sealed.open(text)
  return sealed.is_ours(text) and perigee.sys.unseal(secret, text:sub(#MARK + 1)) or nil
end

return sealed
