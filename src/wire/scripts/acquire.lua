-- acquire.lua: takes a lock that is free, and offers a fencing token.
--
-- KEYS[1]  lock key
-- KEYS[2]  fencing counter
-- ARGV[1]  owner token
-- ARGV[2]  time to live of the lock, whole milliseconds, at least 1
-- ARGV[3]  proposed fencing token, a whole number below 2^53
-- ARGV[4]  life of the counter, whole milliseconds; 0 for no end
--
-- Returns { status, counter, node time, time left }
--   status     1 granted and the proposal is the counter now
--              2 granted, but the counter is not below the proposal
--              0 held by someone else
--             -1 the lock key or the counter is not a string
--             -2 the counter is not a whole number below 2^53
--   counter    as it was found
--   node time  microseconds since 1970
--   time left  of a key that is held: milliseconds, -1 if it has no expiry
--
-- All reads and checks come first and both writes last: an error on the way leaves nothing behind.
--
-- A key that already holds our token is a grant (the command may have been executed twice), but a counter that
-- already is our proposal is never an acceptance: it may be another owner's.
local clock = redis.call("TIME")
local now = clock[1] * 1000000 + clock[2]

local owner = redis.pcall("GET", KEYS[1])
local counter = redis.pcall("GET", KEYS[2])
for _, value in ipairs({ owner, counter }) do
  if type(value) == "table" then
    if string.find(value.err, "WRONGTYPE", 1, true) then
      return { -1, 0, now, 0 }
    end
    return value
  end
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
end

if owner ~= ARGV[1] then
  if owner then
    return { 0, seen, now, redis.call("PTTL", KEYS[1]) }
  end
  redis.call("SET", KEYS[1], ARGV[1], "NX", "PX", ARGV[2])
end
-- The proposal is stored as it came: a number formatted by the script would lose digits.
if tonumber(ARGV[3]) > seen then
  if ARGV[4] == "0" then
    redis.call("SET", KEYS[2], ARGV[3])
  else
    redis.call("SET", KEYS[2], ARGV[3], "PX", ARGV[4])
  end
  return { 1, seen, now, 0 }
end
if ARGV[4] ~= "0" then
  redis.call("PEXPIRE", KEYS[2], ARGV[4])
end
return { 2, seen, now, 0 }
