-- relax: the keywords of a schema that cannot be followed, left out. For the tools that nobody
-- called strict: a client does not choose their schemas, and types, names and what is required are
-- worth having even where uniqueItems is not.
--
-- A node is `loose` once something was left out: it has more values than its schema means, so its
-- negation, which could have too few, has all of them (apply.lua). What is wrong in the shape of a
-- keyword is left out where it is read (Reader:try).
local relax = {}

-- { field of a node, what to try of it }: these are read later than the others.
local TRIES = {
  { "pattern", function(c, node) c.words:pattern(node, "pattern", node.pattern) end },
  { "min_length", function(c, node) c.words:length(node, node.min_length) end },
  { "multiple", function(c, node) c.number:own(node, true) end },
  { "patterns", function(c, node)
    for _, entry in ipairs(node.patterns) do c:name_pattern(node, entry.name) end
  end },
}

--- Leaves out of a node that has been read what the converter cannot follow.
function relax.check(c, node)
  for _, try in ipairs(TRIES) do
    local field, follow = try[1], try[2]
    if node[field] and not c.reader:try(node, function() follow(c, node) end) then
      node[field] = nil
      if field == "patterns" then node.additional = nil end -- which names those are is unknown
    end
  end
end

return relax
