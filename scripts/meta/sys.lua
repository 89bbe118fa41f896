---@meta

---@class perigee.sys  The machine, the libraries, and the scripts of this program.
local sys = {}

---@class perigee.Machine
---@field system string            Operating system, release and architecture.
---@field cpu string               The processor's name, "" when it has none.
---@field cores integer            This process may use.
---@field cores_online integer     The machine has.
---@field memory integer           Bytes.
---@field memory_available integer Bytes that could be had without swapping.
---@field memory_limit integer     Bytes allowed by the control group, 0 when it does not matter.
---@field page_size integer        Bytes.
---@field open_files integer       How many files may be open.
---@field locked_memory integer    Bytes that may be locked; math.maxinteger: no limit.
---@field features string[]        Instruction sets.

---What this machine has.
---@return perigee.Machine
function sys.machine() end

---Versions of what is linked in: lua, libuv, pcre2, pcre2_jit, utf8proc, xxhash, compiler.
---@return table<string, string|boolean>
function sys.versions() end

---The text of a script of this program, by its path below scripts/.
---@param name string
---@return string?
function sys.script(name) end

---All scripts of this program.
---@return string[] names
---@return string? folder  where they are, when they are not the embedded ones
function sys.scripts() end

---CPU time of the loop thread in nanoseconds: what deadlines count.
---@return integer
function sys.cpu_ns() end

---Columns that a text takes on a terminal.
---@param text string
---@return integer
function sys.width(text) end

---Are the two texts the same? How long it takes tells nothing about where they differ.
---@param a string
---@param b string
---@return boolean
function sys.equal(a, b) end

---Lets this process open as many files as the system allows it; returns how many.
---@return integer? files
---@return perigee.Error? err
function sys.raise_files() end

---Did whoever bound that Unix socket leave it behind, so that a connection is refused? Nothing else than a refusal counts.
---@param path string
---@return boolean
function sys.is_refused(path) end

return sys
