-- extend.lua: sets the time to live of a lock that its owner still holds to its full length again, or heals the lock.
--
-- KEYS[1]  lock key
-- KEYS[2]  fencing counter
-- KEYS[3]  canary
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the lock, whole milliseconds, at least 1
-- ARGV[3]  fencing token of the owner, a whole number below 2^53
-- ARGV[4]  life of the counter, whole milliseconds; 0 for no end
-- ARGV[5]  length of the quarantine of a node that has lost its data, whole milliseconds; 0 for none
-- ARGV[6]  "keep": gives the counter its full life again
--          "heal": the same, and sets a missing lock key again. Only for an owner that a majority has just confirmed
--
-- Returns the node time if extended and the counter is the token; otherwise
-- { status, counter, node time, time left }
--   status     1 extended
--              4 set again
--              5 extended, but this node has lost its data: it must not be counted before its quarantine is over
--              2 the counter is above the token: not extended, another owner has been granted the lock since
--              0 the lock key is gone
--              3 the lock key is another owner's
--             -1 the counter is not a string
--             -2 the counter is not a whole number below 2^53
--   counter    as it was found
--   node time  microseconds since 1970
--   time left  of the lock before it was extended, or of the quarantine if the node is in one: milliseconds
--
-- Only "heal" creates the key, and never where the counter is ahead: a lock that has expired may have had another owner
-- since. The life of the key is never shortened: the owner relies on what an earlier extension gave.
local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]

local found = redis.call("MGET", KEYS[1], KEYS[2])
local owner, counter = found[1], found[2]

-- The common case. Extensions are most of the server's work for locks that are held for long.
if owner == ARGV[1] and counter == ARGV[3] then
  local left = redis.call("PTTL", KEYS[1])
  if left >= 0 and left < tonumber(ARGV[2]) then
    redis.call("PEXPIRE", KEYS[1], ARGV[2])
  end
  if ARGV[6] and ARGV[4] ~= "0" then
    redis.call("PEXPIRE", KEYS[2], ARGV[4])
  end
  return now
end

-- include counter.lua
local seen, wrong = read_counter(KEYS[2], counter)
if wrong then
  return { wrong, 0, now, 0 }
end

if owner and owner ~= ARGV[1] then
  return { 3, seen, now, 0 }
end
local token = tonumber(ARGV[3])
if not owner and (ARGV[6] ~= "heal" or seen > token) then
  return { 0, seen, now, 0 }
end
if seen > token then
  return { 2, seen, now, 0 }
end

local status, left = 1, 0
if owner then
  left = redis.call("PTTL", KEYS[1])
  if left >= 0 and left < tonumber(ARGV[2]) then
    redis.call("PEXPIRE", KEYS[1], ARGV[2])
  end
elseif redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2]) then
  status = 4
else
  -- A key of another type.
  return { 3, seen, now, 0 }
end

if not counter then
  -- include canary.lua
  local quarantine = ARGV[5] ~= "0" and quarantine_left(KEYS[3], now, tonumber(ARGV[5])) or 0
  if quarantine > 0 then
    -- The counter is not set: an acquire would take it as a sign that this node has not lost its data.
    return { status == 1 and 5 or status, seen, now, quarantine }
  end
end
if seen < token then
  set_counter(redis.call, KEYS[2], ARGV[3], ARGV[4])
elseif ARGV[6] and ARGV[4] ~= "0" then
  redis.call("PEXPIRE", KEYS[2], ARGV[4])
end
return { status, seen, now, left }
