-- router: finds the handler for a method and a path.
--
--   local router = http.router()
--   router:get("/health", function(request, response) … end)
--   router:delete("/v1/requests/{id}", function(request, response, params) … params.id … end)
--   router:get("/v1/models/{name*}", …)         -- the rest of the path, slashes and all
--   local route, params = router:match(request.method, request.raw_path)
--
-- A {name} is one segment, decoded after the path was split, so an encoded slash stays inside.
-- Fixed segments take precedence over names, names over the rest. HEAD uses the handler of GET.
local url = require "http.url"

local router = {}

local Router = {}
Router.__index = Router

function router.new()
  return setmetatable({ root = {} }, Router)
end

--- "/a/b" -> { "a", "b" }, "/a/" -> { "a", "" }
local function segments_of(path)
  local list, pos = {}, 2
  repeat
    local slash = path:find("/", pos, true)
    list[#list + 1] = path:sub(pos, (slash or 0) - 1)
    pos = slash and slash + 1
  until not pos
  return list
end

--- The node of a pattern in the tree; collects its names.
local function node_of(self, pattern, names)
  local node = self.root
  local list = segments_of(pattern)
  for i, segment in ipairs(list) do
    local name, star = segment:match "^{([%a_][%w_]*)(%*?)}$"
    if not name then
      if segment:find "[{}]" then
        error(("route '%s': a {name} must be a whole segment"):format(pattern), 4)
      end
      node.fixed = node.fixed or {}
      node.fixed[segment] = node.fixed[segment] or {}
      node = node.fixed[segment]
    else
      if star ~= "" and i < #list then
        error(("route '%s': {%s*} must be the last segment"):format(pattern, name), 4)
      end
      local key = star ~= "" and "rest" or "any"
      names[#names + 1] = name
      node[key] = node[key] or {}
      node = node[key]
    end
  end
  return node
end

--- Adds a route. Raises if the method and path already have one.
function Router:on(method, pattern, fn)
  if pattern:sub(1, 1) ~= "/" then error(("route '%s' must begin with '/'"):format(pattern), 2) end
  local names = {}
  local node = node_of(self, pattern, names)
  node.methods = node.methods or {}
  if node.methods[method] then
    error(("route '%s %s' already exists"):format(method, pattern), 2)
  end
  node.methods[method] = { fn = fn, names = names, pattern = pattern }
end

for _, method in ipairs { "GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS" } do
  Router[method:lower()] = function(self, pattern, fn) self:on(method, pattern, fn) end
end

--- The node for segments i…, filling `values`: fixed segments are tried first, then names, then the
--- rest.
local function find(node, segments, i, values)
  local segment = segments[i]
  if not segment then return node.methods and node end
  local n = #values
  local found = node.fixed and node.fixed[segment]
    and find(node.fixed[segment], segments, i + 1, values)
  if found then return found end
  if node.any and segment ~= "" then
    values[n + 1] = segment
    found = find(node.any, segments, i + 1, values)
    if found then return found end
    for k = n + 1, #values do values[k] = nil end
  end
  if node.rest and node.rest.methods and segment ~= "" then
    values[n + 1] = table.concat(segments, "/", i)
    return node.rest
  end
end

--- The methods of a node, for the Allow header.
local function allowed(methods)
  local list = {}
  for method in pairs(methods) do list[#list + 1] = method end
  if methods.GET and not methods.HEAD then list[#list + 1] = "HEAD" end
  table.sort(list)
  return table.concat(list, ", ")
end

--- The function for a method and a raw path, its parameters and its pattern; or nil, the status and
--- the value of Allow.
function Router:match(method, raw_path)
  local segments, values = segments_of(raw_path), {}
  for i, segment in ipairs(segments) do segments[i] = url.decode(segment) or segment end
  local node = find(self.root, segments, 1, values)
  if not node then return nil, 404 end
  local route = node.methods[method] or method == "HEAD" and node.methods.GET
  if not route then return nil, 405, allowed(node.methods) end
  local params = {}
  for i, name in ipairs(route.names) do params[name] = values[i] end
  return route.fn, params, route.pattern
end

return router
