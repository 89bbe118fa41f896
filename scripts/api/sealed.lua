-- sealed: text that a client keeps for this server: the reasoning of an earlier turn, so that it
-- comes back without the server keeping anything. It is the encrypted_content of the Responses API
-- and the signature of a thinking block.
--
-- The secret is made when the process starts: what another process sealed is not opened.
local perigee = require "perigee"
local uv = require "luv"

local sealed = {}

local SECRET, NONCE = 32, 12 -- bytes (runtime/seal.h)
local secret = uv.random(SECRET)

--- The text sealed by this server, as base64.
function sealed.close(text) return perigee.sys.seal(secret, uv.random(NONCE), text) end

--- The text again; nil if this process did not seal it.
function sealed.open(text) return perigee.sys.unseal(secret, text) end

return sealed
