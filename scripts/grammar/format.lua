-- format: the formats of strings that are enforced, as patterns for the whole string. A format that
-- is not here is an annotation, as the standard has it: real schemas say "byte", "path" or "color".
--
-- Digits that a format does not bound end here at 20, or at 100 in durations, so that no answer
-- consists of digits alone.
local format = {}

-- ---- dates and times (RFC 3339) -----------------------------------------------------------------

local DAY30, DAY31 = "(?:0[1-9]|[12][0-9]|30)", "(?:0[1-9]|[12][0-9]|3[01])"
local LEAP = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)"
local DATE = ("(?:[0-9]{4}-(?:(?:0[13578]|1[02])-%s|(?:0[469]|11)-%s|02-(?:0[1-9]|1[0-9]|2[0-8]))"
  .. "|%s-02-29)"):format(DAY31, DAY30, LEAP)

local HOUR, PART = "(?:[01][0-9]|2[0-3])", "(?:\\.[0-9]{1,20})?"
local OFFSET = "[+-]" .. HOUR .. ":[0-5][0-9]"
-- A leap second is the last one of a day in UTC; with an offset it may have any hour.
local TIME = ("(?:%s:[0-5][0-9]:[0-5][0-9]%s(?:[Zz]|%s)|23:59:60%s[Zz]|%s:[0-5][0-9]:60%s%s)")
  :format(HOUR, PART, OFFSET, PART, HOUR, PART, OFFSET)

local N = "[0-9]{1,100}"
local CLOCK = ("T(?:%sH(?:%sM(?:%sS)?)?|%sM(?:%sS)?|%sS)"):format(N, N, N, N, N, N)
local DURATION = ("P(?:%sW|(?:%sY(?:%sM(?:%sD)?)?|%sM(?:%sD)?|%sD)(?:%s)?|%s)")
  :format(N, N, N, N, N, N, N, CLOCK, CLOCK)

-- ---- addresses ----------------------------------------------------------------------------------

local BYTE = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
local IPV4 = ("%s(?:\\.%s){3}"):format(BYTE, BYTE)

--- Eight groups, of which two may be an IPv4 address, and :: once for one or more of them.
local function ipv6()
  local group = "[0-9A-Fa-f]{1,4}"
  local list = { ("(?:%s:){7}%s"):format(group, group), ("(?:%s:){6}%s"):format(group, IPV4) }
  for before = 0, 7 do
    local head = before == 0 and ":" or ("(?:%s:){%d}"):format(group, before)
    local most = 7 - before
    list[#list + 1] = most == 0 and head .. ":" or
      ("%s(?::|(?::%s){1,%d})"):format(head, group, most)
    if before <= 5 then
      list[#list + 1] = ("%s:(?:%s:){0,%d}%s"):format(head, group, 5 - before, IPV4)
    end
  end
  return "(?:" .. table.concat(list, "|") .. ")"
end
local IPV6 = ipv6()

local LABEL = "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
local HOST = ("%s(?:\\.%s)*"):format(LABEL, LABEL)

local ATOM = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
local QUOTED = '"(?:[ !#-\\[\\]-~]|\\\\[ -~])*"'
local EMAIL = "(?:" .. ATOM .. "(?:\\." .. ATOM .. ")*|" .. QUOTED .. ")@(?:" .. HOST .. "|\\[(?:"
  .. IPV4 .. "|IPv6:" .. IPV6 .. ")\\])"

-- ---- URIs (RFC 3986) ----------------------------------------------------------------------------

--- `more` are characters beyond ASCII, in IRIs (RFC 3987).
local function uri_parts(more)
  local plain = "A-Za-z0-9._~" .. more
  local hex = "%[0-9A-Fa-f]{2}"
  local function of(class) return "(?:[" .. plain .. class .. "-]|" .. hex .. ")" end
  local char, free = of "!$&'()*+,;=:@", of "!$&'()*+,;=:@/?"
  local host = "(?:\\[(?:" .. IPV6 .. "|v[0-9A-Fa-f]+\\.[A-Za-z0-9._~!$&'()*+,;=:-]+)\\]|"
    .. of "!$&'()*+,;=" .. "*)"
  local authority = "(?:" .. of "!$&'()*+,;=:" .. "*@)?" .. host .. "(?::[0-9]*)?"
  local path = "(?:/" .. char .. "*)*"
  local net = "//" .. authority .. path
  local absolute = "/(?:" .. char .. "+" .. path .. ")?"
  local after = "(?:\\?" .. free .. "*)?(?:#" .. free .. "*)?"
  local uri = "[A-Za-z][A-Za-z0-9+.-]*:(?:" .. net .. "|" .. absolute .. "|" .. char .. "+" .. path
    .. "|)" .. after
  local relative = "(?:" .. net .. "|" .. absolute .. "|" .. of "!$&'()*+,;=@" .. "+" .. path
    .. "|)" .. after
  return uri, "(?:" .. uri .. "|" .. relative .. ")"
end
local URI, URI_REFERENCE = uri_parts ""
local IRI, IRI_REFERENCE = uri_parts "\u{A0}-\u{D7FF}\u{F900}-\u{FDCF}\u{FDF0}-\u{FFEF}"

local POINTER = "(?:/(?:[^~/]|~[01])*)*"
local HEX = "[0-9A-Fa-f]"

--- By name: the pattern, and the longest string where the pattern does not say.
format.patterns = {
  ["date-time"] = { DATE .. "[Tt]" .. TIME },
  date = { DATE },
  time = { TIME },
  duration = { DURATION },
  email = { EMAIL },
  hostname = { HOST, 253 },
  ipv4 = { IPV4 },
  ipv6 = { IPV6 },
  uuid = { ("%s{8}-%s{4}-%s{4}-%s{4}-%s{12}"):format(HEX, HEX, HEX, HEX, HEX) },
  uri = { URI },
  ["uri-reference"] = { URI_REFERENCE },
  iri = { IRI },
  ["iri-reference"] = { IRI_REFERENCE },
  ["json-pointer"] = { POINTER },
  ["relative-json-pointer"] = { "(?:0|[1-9][0-9]{0,19})(?:#|" .. POINTER .. ")" },
}

return format
