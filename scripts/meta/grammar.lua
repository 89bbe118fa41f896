---@meta

---@class perigee.grammar  What a text may be, and which tokens may come next in it.
local grammar = {}

---@alias perigee.Term integer  A regular language over bytes, made by a builder.
---@alias perigee.Rule integer  A rule of a builder.
---@alias perigee.Symbol perigee.Term|perigee.Rule|table  A table: of token or with.

---@class perigee.GrammarLimits
---@field rules? integer    At most and by default 50,000.
---@field symbols? integer  Of all alternatives together. At most and by default 1,000,000.
---@field terms? integer    At most and by default 500,000.
---@field steps? integer    Of searches for words while compiling. At most and by default 2,000,000.

---A grammar to be written. Makers of terms do not fail: the first failure is kept, and compile
---reports it.
---@param limits? perigee.GrammarLimits
---@return perigee.GrammarBuilder? builder
---@return perigee.Error? err
function grammar.builder(limits) end

---Given to what may take long: it is called with the results, and a helper thread computes.
---@alias perigee.GrammarCallback fun(result?: any, err?: perigee.Error)

---The whole text matches a regular expression.
---@param pattern string
---@param callback? perigee.GrammarCallback
---@return perigee.Grammar|true|nil grammar  true: the callback gets it.
---@return perigee.Error? err
function grammar.regex(pattern, callback) end

---The text is one of these.
---@param texts string[]
---@return perigee.Grammar? grammar
---@return perigee.Error? err
function grammar.choice(texts) end

---A grammar in llama.cpp's language; its rule root.
---@param text string
---@param callback? perigee.GrammarCallback
---@return perigee.Grammar|true|nil grammar
---@return perigee.Error? err
function grammar.gbnf(text, callback) end

---A grammar in Lark's language; its rule start. Terminals have no priority and no greed.
---@param text string
---@param callback? perigee.GrammarCallback
---@return perigee.Grammar|true|nil grammar
---@return perigee.Error? err
function grammar.lark(text, callback) end

---The tokens of a vocabulary, for masks. Added tokens may come only where a grammar names them;
---those that end a text only where it may end.
---@param tokenizer perigee.Tokenizer
---@param ends? integer[]  Ids that end a text.
---@return perigee.TokenMask? tokens
---@return perigee.Error? err
function grammar.tokens(tokenizer, ends) end

---@class perigee.GrammarBuilder
local GrammarBuilder = {}

---The term of one text.
---@param text string
---@return perigee.Term
function GrammarBuilder:text(text) end

---The term of a regular expression. search: it may match anywhere in the text, as in JSON schema.
---json: of the inside of a JSON string, where a line end is written \n. ecma: `.` and \s are those
---of ECMA-262, not Python's.
---@param pattern string
---@param options? { search?: boolean, json?: boolean, ecma?: boolean }
---@param callback? fun(term?: perigee.Term, err?: perigee.Error)  Reads on a helper thread; nothing
---else can use the builder until it is called. The same for gbnf, lark and term.
---@return perigee.Term? term
---@return perigee.Error? err
function GrammarBuilder:pattern(pattern, options, callback) end

---One character of these ranges of code points, in UTF-8.
---@param ranges { [1]: integer, [2]: integer }[]
---@return perigee.Term
function GrammarBuilder:chars(ranges) end

---One of the bytes of a string.
---@param set string
---@return perigee.Term
function GrammarBuilder:bytes(set) end

---Terms one after the other, as arguments or in one list. None: the empty text.
---@param ... perigee.Term|perigee.Term[]
---@return perigee.Term
function GrammarBuilder:cat(...) end

---A text of any of these terms. None: no text at all.
---@param ... perigee.Term|perigee.Term[]
---@return perigee.Term
function GrammarBuilder:any(...) end

---A text of all of these terms at once.
---@param ... perigee.Term|perigee.Term[]
---@return perigee.Term
function GrammarBuilder:both(...) end

---All texts but those of a term.
---@param term perigee.Term
---@return perigee.Term
function GrammarBuilder:except(term) end

---A term least to most times; most nil: without end. Large counts cost nothing.
---@param term perigee.Term
---@param least integer
---@param most? integer
---@return perigee.Term
function GrammarBuilder:times(term, least, most) end

---Decimal digits that, after a number with this remainder, make one that the divisor divides.
---@param divisor integer  1 to 1,000,000.
---@param rest integer
---@param most? integer  How many digits at most.
---@return perigee.Term
function GrammarBuilder:remainder(divisor, rest, most) end

---One of many texts; better than any(text(…), …), since their beginnings are shared.
---@param texts string[]
---@return perigee.Term
function GrammarBuilder:words(texts) end

---Whether a term has no text at all. steps: with more, the error is "limit", and the builder goes
---on. Until the callback is called, the builder cannot be used.
---@param term perigee.Term
---@param options? { steps?: integer }
---@param callback? perigee.GrammarCallback
---@return boolean? empty  true with a callback, which gets it.
---@return perigee.Error? err
function GrammarBuilder:empty(term, options, callback) end

---Whether a text belongs to a term.
---@param term perigee.Term
---@param text string
---@return boolean? matches
---@return perigee.Error? err
function GrammarBuilder:matches(term, text) end

---A new rule, which may be used before it is defined.
---@param name string  For messages.
---@return perigee.Rule? rule
---@return perigee.Error? err
function GrammarBuilder:rule(name) end

---@class perigee.GrammarTest
---@field mask? integer   Bits of the parameter, neighbours. Default: all.
---@field count? boolean  Compare the number of set bits, not the number that they make.
---@field least? integer  Default: 0.
---@field most? integer   Default: no bound.

---@class perigee.Alternative  A list of symbols.
---@field [integer] perigee.Symbol
---@field when? perigee.GrammarTest[]  The parameters that it is open to: all tests hold.

---Gives a rule its alternatives; more calls add more.
---@param rule perigee.Rule
---@param alternatives perigee.Alternative[]
---@return boolean? defined
---@return perigee.Error? err
function GrammarBuilder:define(rule, alternatives) end

---The symbol of a token of the vocabulary, such as a special one.
---@param id integer
---@return perigee.Symbol
function GrammarBuilder:token(id) end

---The symbol of a rule with a parameter of 64 bits, made from that of the rule it stands in: put a
---number, set bits, or add to the bits of a mask, which stop at their largest number. A rule as it
---is has the parameter 0.
---@param rule perigee.Rule
---@param change { put?: integer, set?: integer, add?: integer, mask?: integer }
---@return perigee.Symbol
function GrammarBuilder:with(rule, change) end

---A new rule: a symbol least to most times; most nil: without end.
---@param symbol perigee.Symbol
---@param least integer
---@param most? integer
---@return perigee.Rule? rule
---@return perigee.Error? err
function GrammarBuilder:list(symbol, least, most) end

---The rule of a GBNF text, as perigee.grammar.gbnf reads it: its `root`. Names in the text are its
---own. json: its texts are written inside of a JSON string.
---@param text string
---@param options? { json?: boolean }
---@param callback? fun(rule?: perigee.Rule, err?: perigee.Error)
---@return perigee.Rule? rule
---@return perigee.Error? err
function GrammarBuilder:gbnf(text, options, callback) end

---The rule of a Lark text, as perigee.grammar.lark reads it: its `start`. json: its texts are
---written inside of a JSON string.
---@param text string
---@param options? { json?: boolean }
---@param callback? fun(rule?: perigee.Rule, err?: perigee.Error)
---@return perigee.Rule? rule
---@return perigee.Error? err
function GrammarBuilder:lark(text, options, callback) end

---The term of a rule that does not refer to itself, so that it can be combined with others. Its
---rules must be defined.
---@param rule perigee.Rule
---@param callback? fun(term?: perigee.Term, err?: perigee.Error)
---@return perigee.Term? term
---@return perigee.Error? err
function GrammarBuilder:term(rule, callback) end

---Compiles the grammar and uses up the builder. Its errors have the codes format, unsupported,
---unsatisfiable (no text fits) and limit. keep: rules stay as they are, without folding.
---@param root perigee.Rule
---@param options? { keep?: boolean }
---@param callback? perigee.GrammarCallback
---@return perigee.Grammar|true|nil grammar  true: the callback gets it.
---@return perigee.Error? err
function GrammarBuilder:compile(root, options, callback) end

function GrammarBuilder:close() end

---@class perigee.Grammar  Compiled, immutable.
---@field rules integer    That are left after folding.
---@field lexemes integer
---@field memory integer   Bytes, with the automaton that matchers have built so far.
---@field worn boolean     Its automaton is half full: compile it again for later requests.
local Grammar = {}

---Follows a text along the grammar.
---@param tokens? perigee.TokenMask  Needed for take and mask.
---@return perigee.Matcher? matcher
---@return perigee.Error? err
function Grammar:matcher(tokens) end

function Grammar:close() end

---@class perigee.TokenMask
---@field size integer    Highest id + 1.
---@field memory integer  Bytes.
local TokenMask = {}

---Builds what masks need, once, on a helper thread. Whoever needs it before waits for it.
---@param callback fun(built?: boolean, err?: perigee.Error)
---@return boolean? started
---@return perigee.Error? err
function TokenMask:build(callback) end

function TokenMask:close() end

---@class perigee.Matcher
---@field complete boolean  The text may end here.
---@field length integer    Steps taken.
---@field memory integer    Bytes.
local Matcher = {}

---Takes all bytes as one step, or nothing.
---@param bytes string
---@return integer? taken  How many of them could be taken.
---@return perigee.Error? err
function Matcher:feed(bytes) end

---Takes a token, if the mask has it.
---@param id integer
---@return boolean? taken
---@return perigee.Error? err
function Matcher:take(id) end

---Makes the mask of the tokens that may come next.
---@return integer? count  Of them.
---@return integer|perigee.Error nanoseconds  That it took, or the error.
function Matcher:mask() end

---The last mask: id i is bit i % 8 of byte i / 8, counted from 0.
---@return string
function Matcher:bitmap() end

---Whether an id is in the last mask.
---@param id integer
---@return boolean
function Matcher:allows(id) end

---The n-th id of the last mask, counted from 1.
---@param n integer
---@return integer?
function Matcher:nth(n) end

---The bytes that must come next.
---@param most? integer  Default: 4096.
---@return string? bytes
---@return perigee.Error? err
function Matcher:forced(most) end

---Whether the text is complete and nothing can follow.
---@return boolean? over
---@return perigee.Error? err
function Matcher:over() end

---Keeps the first steps.
---@param length integer
function Matcher:trim(length) end

---A matcher at the same position, with the same past.
---@return perigee.Matcher? matcher
---@return perigee.Error? err
function Matcher:fork() end

function Matcher:close() end

return grammar
