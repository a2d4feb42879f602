-- raise_shared.lua: lifts the fencing counter to the number that a reader has found, if it is below.
--
-- KEYS[1]  lock key
-- KEYS[2]  fencing counter
-- KEYS[3]  readers
-- ARGV[1]  owner token
-- ARGV[2]  the number, a whole number below 2^53
-- ARGV[3]  life of the counter, whole milliseconds; 0 for no end
--
-- Returns { status, counter }
--   status     1 the number is the counter now. It may have been before: readers need no number of their own
--              2 the counter is above the number: this node must not be counted
--              0 the reader's entry is gone or over, or there is no counter: not taken
--             -1 the counter or the readers have another type
--             -2 the counter is not a whole number below 2^53
--   counter    as it was found
--
-- Only while the reader's entry stands: otherwise a writer may have been granted the lock since, with that number or one
-- below. And only where a counter is: otherwise it was lost since the acquire.
local found = redis.call("MGET", KEYS[1], KEYS[2])
local lock, counter = found[1], found[2]
-- include counter.lua
local seen, wrong = read_counter(KEYS[2], counter)
if wrong then
  return { wrong, 0 }
end

local clock = redis.call("TIME")
local score = lock == "quorlock:shared" and redis.pcall("ZSCORE", KEYS[3], ARGV[1])
if type(score) == "table" then
  return string.find(score.err, "WRONGTYPE", 1, true) and { -1, 0 } or score
end
if not counter or not score or tonumber(score) <= clock[1] * 1000 + math.floor(clock[2] / 1000) then
  return { 0, seen }
end
local number = tonumber(ARGV[2])
if seen > number then
  return { 2, seen }
end
if seen < number then
  set_counter(redis.call, KEYS[2], ARGV[2], ARGV[3])
end
return { 1, seen }
