-- raise.lua: raises the fencing counters of one or several locks to the token of the owner that holds all of them.
--
-- KEYS[1]      lock keys, n of them
-- KEYS[n + 1]  fencing counters, in the same order
-- ARGV[1]      owner token
-- ARGV[2]      fencing token, a whole number below 2^53
-- ARGV[3]      life of the counters, whole milliseconds; 0 for no end
--
-- Returns { status, counter }
--   status     1 the token is each counter now
--              2 a counter was not below the token: none is raised, and this node must not be counted
--              0 a lock key is gone or another owner's, or a counter is missing: none is raised
--             -1 a counter is not a string
--             -2 a counter is not a whole number below 2^53
--   counter    the largest that was found
--
-- Only while our keys are set: a raise that arrives after our release would raise a counter during another owner's hold,
-- and tokens would no longer be ordered like holds. And only where a counter is: otherwise it was lost since the acquire.
-- include counter.lua
local n = #KEYS / 2
local found = redis.call("MGET", unpack(KEYS))
local seen, owned = 0, true
for i = 1, n do
  owned = owned and found[i] == ARGV[1] and found[n + i]
  local number, wrong = read_counter(KEYS[n + i], found[n + i])
  if wrong then
    return { wrong, 0 }
  end
  seen = math.max(seen, number)
end

if not owned then
  return { 0, seen }
end
if tonumber(ARGV[2]) <= seen then
  return { 2, seen }
end
for i = n + 1, 2 * n do
  set_counter(redis.call, KEYS[i], ARGV[2], ARGV[3])
end
return { 1, seen }
