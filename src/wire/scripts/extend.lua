-- extend.lua: gives a lock that its owner still holds its full time to live again, or heals it.
--
-- KEYS[1]  lock key
-- KEYS[2]  fencing counter
-- KEYS[3]  canary
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the lock, whole milliseconds, at least 1
-- ARGV[3]  fencing token of the owner, a whole number below 2^53
-- ARGV[4]  life of the counter, whole milliseconds; 0 for no end
-- ARGV[5]  for how long a node that has forgotten is silent, whole milliseconds; 0 for not at all
-- ARGV[6]  "keep": gives the counter its full life again
--          "heal": that, and sets a lock key that is gone again. Only for an owner who has just been confirmed by a majority
--
-- Returns the node time if extended and the counter is the token; otherwise
-- { status, counter, node time, time left }, of a node that is silent the time until that is over
--   status     1 extended
--              4 set again
--              5 extended, but this node has forgotten what it knew: it must not be counted before its silence is over
--              2 the counter is above the token: not extended, another owner has been granted the lock since
--              0 the lock key is gone
--              3 the lock key is someone else's
--             -1 the counter is not a string
--             -2 the counter is not a whole number below 2^53
--   counter    as it was found
--   node time  microseconds since 1970
--   time left  of the lock before it was extended: milliseconds
--
-- Only to heal creates the key, and never where the counter is ahead: a lock that has expired may have had another owner
-- in between. Never shortens its life: the owner counts on what an earlier extension gave.
local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]

local found = redis.call("MGET", KEYS[1], KEYS[2])
local owner, counter = found[1], found[2]

-- What nearly every extension finds. They are most of what a server does for locks that are held for long.
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

local seen = 0
if counter then
  if #counter > 16 or not string.find(counter, "^%d+$") then
    return { -2, 0, now, 0 }
  end
  seen = tonumber(counter)
  if seen >= 9007199254740992 then
    return { -2, 0, now, 0 }
  end
elseif redis.call("EXISTS", KEYS[2]) == 1 then
  return { -1, 0, now, 0 }
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
  -- Something that is not a string.
  return { 3, seen, now, 0 }
end

if not counter then
  -- include canary.lua
  local silence = ARGV[5] ~= "0" and silent_for(KEYS[3], now, tonumber(ARGV[5])) or 0
  if silence > 0 then
    -- Without the counter, which would tell the next one that this node remembers.
    return { status == 1 and 5 or status, seen, now, silence }
  end
end
if seen < token then
  if ARGV[4] == "0" then
    redis.call("SET", KEYS[2], ARGV[3])
  else
    redis.call("SET", KEYS[2], ARGV[3], "PX", ARGV[4])
  end
elseif ARGV[6] and ARGV[4] ~= "0" then
  redis.call("PEXPIRE", KEYS[2], ARGV[4])
end
return { status, seen, now, left }
