---@meta

---@class perigee.sys  The machine, the libraries, and the scripts of this program.
local sys = {}

---@class perigee.Machine
---@field system string            Operating system, release and architecture.
---@field cpu string               Name of the processor, "" if unknown.
---@field cores integer            Cores that this process may use.
---@field cores_online integer     Cores of the machine.
---@field memory integer           Bytes.
---@field memory_available integer Bytes available without swapping.
---@field memory_limit integer     Limit of the control group in bytes, 0: none.
---@field page_size integer        Bytes.
---@field open_files integer       Limit of open files.
---@field locked_memory integer    Limit of locked memory in bytes; math.maxinteger: none.
---@field features string[]        Instruction sets.
---Versions of the kernels that can run here, the best first, "scalar" last. The environment
---variable PERIGEE_ISA chooses one for engines that are opened later.
---@field kernels string[]

---Properties of this machine.
---@return perigee.Machine
function sys.machine() end

---Versions of the libraries: lua, libuv, pcre2, pcre2_jit, utf8proc, xxhash, libwebp, zlib,
---zstd, compiler.
---@return table<string, string|boolean>
function sys.versions() end

---The text of a script of this program, by its path below scripts/.
---@param name string
---@return string?
function sys.script(name) end

---All scripts of this program.
---@return string[] names
---@return string? folder  that replaces the embedded scripts
function sys.scripts() end

---CPU time of the loop thread in nanoseconds, the clock of deadlines.
---@return integer
function sys.cpu_ns() end

---Columns of a text on a terminal.
---@param text string
---@return integer
function sys.width(text) end

---Are two strings equal? The time it takes does not depend on where they differ.
---@param a string
---@param b string
---@return boolean
function sys.equal(a, b) end

---A text that only the holder of the secret can read or make (runtime/seal.h), as base64.
---@param secret string  32 bytes.
---@param nonce string   12 random bytes, never used twice.
---@param text string
---@return string sealed
function sys.seal(secret, nonce, text) end

---The text that was sealed with this secret; nil for anything else.
---@param secret string
---@param sealed string
---@return string? text
function sys.unseal(secret, sealed) end

---Raises the limit of open files as high as the system allows, and returns it.
---@return integer? files
---@return perigee.Error? err
function sys.raise_files() end

---Returns memory that was freed to the system, where the allocator would keep it.
function sys.trim() end

---Is this Unix socket left over from a process that has ended, so that connections are refused?
---@param path string
---@return boolean
function sys.is_refused(path) end

return sys
