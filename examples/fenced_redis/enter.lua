-- enter.lua: registers the fencing token of a new holder, then reads.
--
-- KEYS[1]  the resource: a hash of "token", the largest seen, and "left"
-- ARGV[1]  token, a whole number below 2^53: exact in this language
--
-- Returns { 1, left }, or { 0, token seen } if that one is larger; then nothing is changed.
local seen = redis.call("HGET", KEYS[1], "token")
if seen and tonumber(ARGV[1]) < tonumber(seen) then
  return { 0, seen }
end
redis.call("HSET", KEYS[1], "token", ARGV[1])
return { 1, redis.call("HGET", KEYS[1], "left") }
