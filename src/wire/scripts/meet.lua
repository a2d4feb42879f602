-- meet.lua: asks for the node's id, and notes there which nodes this client uses. Run now and then on every connection,
-- before the commands of locks.
--
-- KEYS[1]  set
-- ARGV[1]  an id for a node that has none: a whole number below 2^53
-- ARGV[2]  fingerprint of the ids of all nodes of this client, hex digits; empty as long as the client does not know them
-- ARGV[3]  the number of these nodes
-- ARGV[4]  earlier fingerprints of the same nodes, from before some of them got other ids, separated by spaces
--
-- Returns { id, nodes }
--   id     of this node; 0 if it could not be stored
--   nodes  how many nodes a client with another set uses; 0 if there is none, or as long as ARGV[2] is empty
--
-- Set: a key without expiry. A node that loses its data loses it too, and so becomes another node. Its value:
--
--   FORMAT ID, and for each set in use, the latest first, FINGERPRINT NODES HOUR
--
--   FORMAT  1
--   HOUR    when a client last noted it, hours since 1970

-- How many sets are kept besides the client's own.
local SETS_MAX = 4
-- After how many hours a set counts as no longer used.
local UNUSED_AFTER = 24

local hour = math.floor(redis.call("TIME")[1] / 3600)
local found = redis.pcall("GET", KEYS[1])
found = type(found) == "string" and found or ""
local format, id, rest = string.match(found, "^(%d+) (%d+)(.*)$")
local is_new = not id or #id > 15
if is_new then
  format, id, rest = "1", ARGV[1], ""
end

local kept, nodes = {}, 0
if ARGV[2] ~= "" then
  kept[1] = string.format(" %s %s %.0f", ARGV[2], ARGV[3], hour)
end
for print, count, at in string.gmatch(rest, " (%x+) (%d%d?%d?) (%d+)") do
  -- A time in the future: the clock was set back.
  at = math.min(tonumber(at), hour)
  local is_own = print == ARGV[2] or string.find(ARGV[4], print, 1, true)
  if #print == 16 and not is_own and hour - at < UNUSED_AFTER and #kept <= SETS_MAX then
    kept[#kept + 1] = string.format(" %s %s %.0f", print, count, at)
    if ARGV[2] ~= "" and nodes == 0 then
      nodes = tonumber(count)
    end
  end
end

local value = format .. " " .. id .. table.concat(kept)
if value ~= found then
  local done = redis.pcall("SET", KEYS[1], value)
  if is_new and done.err then
    id = 0
  end
end
return { tonumber(id), nodes }
