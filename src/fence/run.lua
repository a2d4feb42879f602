-- run.lua: registers a fencing token and runs a command, unless a larger token is registered.
--
-- KEYS[1]   the largest token: a string of its own, without expiry
-- KEYS[2…]  the keys of the command, with the hash tag of KEYS[1] in a cluster
-- ARGV[1]   token, a whole number below 2^53: exact in this language
-- ARGV[2…]  the command and its arguments; none to register only
--
-- Returns { 1, reply of the command }, or { 0, largest token } if that one is larger; then nothing
-- is changed.
local largest = redis.call("GET", KEYS[1])
if largest and not (tonumber(largest) <= tonumber(ARGV[1])) then
  return { 0, largest }
end
redis.call("SET", KEYS[1], ARGV[1])
return { 1, ARGV[2] and redis.call(unpack(ARGV, 2)) }
