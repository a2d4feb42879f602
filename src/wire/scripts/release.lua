-- release.lua: deletes a lock that its owner holds, and nothing else.
--
-- KEYS[1]  lock key
-- ARGV[1]  owner token
--
-- Returns { status, node time }
--   status     1 deleted
--              0 gone already, or someone else's
--   node time  microseconds since 1970
--
-- Harmless when repeated, and when it arrives late: the token of another round is another one.
local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]

local owner = redis.pcall("GET", KEYS[1])
if type(owner) == "table" then
  if string.find(owner.err, "WRONGTYPE", 1, true) then
    return { 0, now }
  end
  return owner
end
if owner ~= ARGV[1] then
  return { 0, now }
end
redis.call("DEL", KEYS[1])
return { 1, now }
