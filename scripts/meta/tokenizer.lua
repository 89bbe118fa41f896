---@meta

---@class perigee.tokenizer  Text to token ids and back, as the model's own tokenizer does it.
local tokenizer = {}

---Opens a tokenizer.json, a model directory that holds one, or a GGUF file. With a callback it is opened beside the loop,
---and the callback gets the same; then true comes back at once.
---@param path string
---@param callback? fun(tokenizer: perigee.Tokenizer?, err: perigee.Error?)
---@return perigee.Tokenizer|boolean|nil tokenizer
---@return perigee.Error? err
function tokenizer.open(path, callback) end

---@class perigee.Tokenizer
---@field size integer   Highest id + 1.
---@field bos integer?   Id of the begin token, where known.
---@field eos integer?   Id of the end token, where known.
---@field unk integer?   Id of the unknown token, where known.
---@field pad integer?   Id of the padding token, where known.
local Tokenizer = {}

---Ids of a text. Special tokens written in the text are recognised unless parse_special is false; with spans (1-based,
---inclusive, in order) only where they lie wholly in trusted ones. With positions (byte offsets 0 to #text, ascending) the
---second result tells for each how many of the ids lie wholly in that many bytes: a token ends where the next begins. More
---than max_ids are an error of the code "limit", whose field `count` says how many there are. With a callback the text is
---encoded beside the loop, and the callback gets the same; then true comes back at once.
---@param text string
---@param options? { add_special?: boolean, parse_special?: boolean, spans?: { [1]: integer, [2]: integer, [3]: boolean }[], positions?: integer[], max_ids?: integer }
---@param callback? fun(ids: integer[]?, positions: integer[]|perigee.Error|nil)
---@return integer[]|boolean|nil ids
---@return integer[]|perigee.Error|nil positions  or the error
function Tokenizer:encode(text, options, callback) end

---Text of ids; ids that do not exist are dropped.
---@param ids integer[]
---@param options? { skip_special?: boolean }
---@return string? text
---@return perigee.Error? err
function Tokenizer:decode(ids, options) end

---A streaming decoder whose pieces join to the whole decode and never hold half a character.
---@param options? { skip_special?: boolean }
---@return perigee.Detokenizer? stream
---@return perigee.Error? err
function Tokenizer:stream(options) end

---A token as the vocabulary writes it.
---@param id integer
---@return string?
function Tokenizer:token(id) end

---@param token string
---@return integer?
function Tokenizer:id(token) end

---@param id integer
---@return boolean
function Tokenizer:is_special(id) end

---Lets go of the vocabulary. Harmless twice.
function Tokenizer:close() end

---@class perigee.Detokenizer
local Detokenizer = {}

---What the id makes certain; may be empty.
---@param id integer
---@return string? piece
---@return perigee.Error? err
function Detokenizer:push(id) end

---The rest; afterwards the stream is ready for another text.
---@return string? piece
---@return perigee.Error? err
function Detokenizer:finish() end

---Harmless twice.
function Detokenizer:close() end

return tokenizer
