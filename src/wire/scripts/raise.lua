-- raise.lua: raises the fencing counter to the token of the owner that holds the lock.
--
-- KEYS[1]  lock key
-- KEYS[2]  fencing counter
-- ARGV[1]  owner token
-- ARGV[2]  fencing token, a whole number below 2^53
-- ARGV[3]  life of the counter, whole milliseconds; 0 for no end
--
-- Returns { status, counter }
--   status     1 the token is the counter now
--              2 the counter was not below the token: not taken, and this node must not be counted
--              0 the lock key is gone or another owner's, or there is no counter: not taken
--             -1 the counter is not a string
--             -2 the counter is not a whole number below 2^53
--   counter    as it was found
--
-- Only while our key is set: a raise that arrives after our release would raise the counter during another owner's hold,
-- and tokens would no longer be ordered like holds. And only where a counter is: otherwise it was lost since the acquire.
local found = redis.call("MGET", KEYS[1], KEYS[2])
local owner, counter = found[1], found[2]
-- include counter.lua
local seen, wrong = read_counter(KEYS[2], counter)
if wrong then
  return { wrong, 0 }
end

if owner ~= ARGV[1] or not counter then
  return { 0, seen }
end
if tonumber(ARGV[2]) <= seen then
  return { 2, seen }
end
set_counter(redis.call, KEYS[2], ARGV[2], ARGV[3])
return { 1, seen }
