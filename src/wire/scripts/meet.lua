-- meet.lua: asks for the node's id, and leaves word there which nodes this client uses. Run now and then on every
-- connection, before what is about locks.
--
-- KEYS[1]  set
-- ARGV[1]  an id for a node that has none: a whole number below 2^53
-- ARGV[2]  fingerprint of the ids of all nodes of this client, hex digits; empty as long as it does not know them
-- ARGV[3]  how many nodes these are
-- ARGV[4]  fingerprints that it left before, of the same nodes, some of which have got other ids since: with spaces between
--
-- Returns { id, nodes }
--   id     of this node; 0 if it could not be noted
--   nodes  how many nodes another client uses whose set is not this one; 0 if there is none, or if it is too early to say
--
-- Set: a key without expiry, gone with everything else when a node forgets, which makes it another node. Its value:
--
--   FORMAT ID, and for each set in use, the latest first, FINGERPRINT NODES HOUR
--
--   FORMAT  1
--   HOUR    when a client last left word of it, hours since 1970

-- So many sets are kept, besides the client's own.
local SETS = 4
-- After so many hours a set is not in use any more.
local FADES = 24

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
  -- Of a time to come: the clock was set back.
  at = math.min(tonumber(at), hour)
  local is_own = print == ARGV[2] or string.find(ARGV[4], print, 1, true)
  if #print == 16 and not is_own and hour - at < FADES and #kept <= SETS then
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
