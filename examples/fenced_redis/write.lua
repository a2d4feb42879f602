-- write.lua: writes, unless a larger fencing token has been registered.
--
-- KEYS[1]  the resource: a hash of "token", the largest seen, and "left"
-- ARGV[1]  token, a whole number below 2^53
-- ARGV[2]  what to write
--
-- Returns { 1, what was written }, or { 0, token seen } if that one is larger; then nothing is changed.
local seen = redis.call("HGET", KEYS[1], "token")
if seen and tonumber(ARGV[1]) < tonumber(seen) then
  return { 0, seen }
end
redis.call("HSET", KEYS[1], "token", ARGV[1], "left", ARGV[2])
return { 1, ARGV[2] }
