---@meta

---A tool or reasoning format: what a file in parsers/tools or parsers/reasoning returns.
---@class perigee.Format
---@field name? string        The file's name by default.
---@field aliases? string[]   Other names for --format and --reasoning.
---In a site: used for models whose chat template contains all of these texts.
---@field detect? string[]
---@field marks? table<string, perigee.Handler>   The texts that begin markup, and what reads each.
---@field start? table<string, perigee.Handler>   Handlers by the first character of the answer.
---Decides by the text after a mark whether it counts; nil: more text is needed.
---@field follow? table<string, fun(s: perigee.Scan, at: integer): boolean?>
---Marks that also occur in prose: at the end of the answer they are text unless a call had begun.
---@field soft? table<string, boolean>
---@field run? fun(s: perigee.Scan)      Reads the whole answer, instead of marks.
---Other texts it looks for; special tokens among them are kept in the answer's text.
---@field inner? string[]
---The text before and after the name of a forced call.
---@field opening? perigee.Opening|perigee.Opening[]
---@field opened? fun(tail?: string): boolean?   Has the prompt opened a block of thinking?
---The text that ends thinking. Without it a thinking budget has no effect.
---@field closing? string
---@field closing_again? string   The same when the model begins to think once more.
---The mark in `closing`, around which the template's own white space is put.
---@field mark? string
---@field selftest perigee.FormatCase[]

---@alias perigee.Opening { [1]: string, [2]: string, shows?: string }

---@class perigee.FormatCase  One case: the result must have these fields and no others.
---@field text string
---@field tools? table[]      As in a request.
---@field prompt_tail? string
---@field content? string
---@field reasoning? string
---@field calls? { [1]: string, [2]: string }[]   Name, and arguments as JSON text.
---@field unfinished? string
---@field unknown? string
---@field analysis? string
---@field commentary? string

---Reads the text after a mark: true for markup, false for text that only looked like it.
---@alias perigee.Handler fun(s: perigee.Scan, mark: string): any

---The text of an answer, read as if it were complete; see scripts/parsers/scan.lua.
---@class perigee.Scan
---@field tools perigee.ParserTools   The declared tools.
---@field tail? string        The end of the prompt.
---@field at_start boolean    No text but white space has come yet.
---@field thinking? boolean    To be set by reasoning formats: what comes next is reasoning.
---@field content perigee.Channel
---@field reasoning perigee.Channel
local Scan = {}

---Skips white space.
function Scan:space() end

---Reads this text if it comes next.
---@param literal string
---@return boolean
function Scan:take(literal) end

---Does this text come next? Reads nothing.
---@param literal string
---@return boolean
function Scan:ahead(literal) end

---Reads the longest match of an anchored pattern of one class, such as "^[%w_]*"; nil if it is
---longer than `most` bytes.
---@param pattern string
---@param most? integer  256
---@return string?
function Scan:word(pattern, most) end

---Like `word`, for names: letters, digits, _ . - or the pattern's class; nil if there is none.
---@param pattern? string
---@return string?
function Scan:name(pattern) end

---Reads whichever of these texts comes next. If one is a prefix of another, the longer must be
---listed first.
---@param list string[]
---@return string?
function Scan:one_of(list) end

---The next byte; nil at the end.
---@return integer?
function Scan:peek() end

---Reads white space and returns it.
---@return string
function Scan:gap() end

---Reads a name and the character after it.
---@param c string
---@return string?
function Scan:name_before(c) end

---Reads up to and including the first of the marks (scan.marks of a list); nil at the end.
---@param marks table
---@return string? text
---@return string? mark
function Scan:field(marks) end

---Like `field`, but reads nothing if more than `most` bytes come before the mark.
---@param marks table
---@param most integer
---@return string? text
---@return string? mark
function Scan:short_field(marks, most) end

---Like `field`, but passes the text to `sink` as it arrives.
---@param marks table
---@param sink fun(text: string)
---@return string? mark
function Scan:upto(marks, sink) end

---Steps back over text that has just been read.
---@param literal string
function Scan:back(literal) end

---The calls made so far stay calls, whatever follows.
function Scan:commit() end

---Content or reasoning on its way out; drops white space next to removed marks.
---@class perigee.Channel
local Channel = {}

---@param text string
function Channel:text(text) end

---A mark was removed here.
function Channel:mark() end

---A block of text ended here: the next begins on a new line.
function Channel:cut() end

---@class perigee.ParserTools
---@field given boolean   Were any tools declared?
local ParserTools = {}

---@param name string
---@return boolean
function ParserTools:known(name) end

---The JSON types that a parameter may have; nil if the schema does not restrict them.
---@param name string
---@param key string
---@return table<string, true>?
function ParserTools:types(name, key) end

return Scan
