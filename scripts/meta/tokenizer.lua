---@meta

---@class perigee.tokenizer  Text to token ids and back, as the model's own tokenizer does it.
local tokenizer = {}

---Opens a tokenizer.json, a model directory that contains one, or a GGUF file. With a callback it
---is opened by a background job: the call returns true at once, and the callback gets the result.
---@param path string
---@param callback? fun(tokenizer: perigee.Tokenizer?, err: perigee.Error?)
---@return perigee.Tokenizer|boolean|nil tokenizer
---@return perigee.Error? err
function tokenizer.open(path, callback) end

---@class perigee.Tokenizer
---@field size integer   Highest id + 1.
---@field bos integer?   Id of the begin token, if known.
---@field eos integer?   Id of the end token, if known.
---@field unk integer?   Id of the unknown token, if known.
---@field pad integer?   Id of the padding token, if known.
local Tokenizer = {}

---@alias perigee.Span { [1]: integer, [2]: integer, [3]: boolean }  from, to, trusted; 1-based

---@class perigee.EncodeOptions
---@field add_special? boolean    Put the model's special tokens around the text. Default: false.
---@field parse_special? boolean  Recognise special tokens written in the text. Default: true.
---@field spans? perigee.Span[]   Special tokens are recognised only inside trusted spans.
---@field marks? integer[]        Added tokens that are treated like special ones.
---@field positions? integer[]    Byte offsets, 0 to #text, ascending.
---@field max_ids? integer        More are an error "limit", whose `count` is their number. A job
---                               ends as soon as there are more: then `above` is max_ids instead.
---@field stop? perigee.Stop      Ends a job early.

---Ids of a text. With positions, the second result has for each offset the number of ids that lie
---completely before it; a token ends where the next one begins. With a callback the text is encoded
---by a background job: the call returns true at once, and the callback gets the results.
---@param text string
---@param options? perigee.EncodeOptions
---@param callback? fun(ids: integer[]?, positions: integer[]|perigee.Error|nil)
---@return integer[]|boolean|nil ids
---@return integer[]|perigee.Error|nil positions  or the error
function Tokenizer:encode(text, options, callback) end

---Text of ids. Unknown ids are dropped.
---@param ids integer[]
---@param options? { skip_special?: boolean }
---@return string? text
---@return perigee.Error? err
function Tokenizer:decode(ids, options) end

---A streaming decoder. Its pieces are whole characters and join to the decode of all ids.
---@param options? { skip_special?: boolean }
---@return perigee.Detokenizer? stream
---@return perigee.Error? err
function Tokenizer:stream(options) end

---A token as written in the vocabulary ("Ġhello", "▁hello", "<0x0A>").
---@param id integer
---@return string?
function Tokenizer:token(id) end

---The raw bytes of one token (" hello", "\n"), which may be part of a character. Special tokens are
---their own text; an unknown id has no bytes.
---@param id integer
---@return string? bytes
---@return perigee.Error? err
function Tokenizer:bytes(id) end

---The id of a token as written in the vocabulary.
---@param token string
---@return integer?
function Tokenizer:id(token) end

---@param id integer
---@return boolean
function Tokenizer:is_special(id) end

---Ids of the added tokens, special or not, in ascending order.
---@return integer[]
function Tokenizer:added() end

---Releases the vocabulary. May be called twice.
function Tokenizer:close() end

---@class perigee.Detokenizer
local Detokenizer = {}

---The text that the id makes certain; may be empty.
---@param id integer
---@return string? piece
---@return perigee.Error? err
function Detokenizer:push(id) end

---The rest; afterwards the stream is ready for another text.
---@return string? piece
---@return perigee.Error? err
function Detokenizer:finish() end

---May be called twice.
function Detokenizer:close() end

return tokenizer
